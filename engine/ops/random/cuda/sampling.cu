// Draws from gamma, Poisson and binomial distributions by rejection, in double precision. A thread draws one element and
// calls philox with one offset after another until a proposal is accepted.

DEVICE double not_a_number() { return (double)bits_float(0x7fc00000u); }

struct Source {
    Draws draws;
    uint64 index, call;
    double first, second;  // uniform on (0, 1]

    MEMBER void next() {
        Words words = philox(draws.seed, draws.offset + call++, index);
        first = unit_open_below(words.word[0], words.word[1]);
        second = unit_open_below(words.word[2], words.word[3]);
    }
};

// Marsaglia and Tsang (2000). Below 1, a draw for alpha + 1 times a power of a uniform number.
DEVICE double gamma_draw(Source& source, double alpha) {
    if (!(alpha > 0)) return alpha == 0 ? 0.0 : not_a_number();
    if (alpha - alpha != 0) return alpha;  // infinite: no proposal would ever be accepted
    double boost = 1;
    if (alpha < 1) {
        source.next();
        boost = pow(source.first, 1 / alpha);
        alpha += 1;
    }
    double d = alpha - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        source.next();
        double x = sqrt(-2 * log(source.first)) * cos(6.283185307179586 * source.second);
        double v = 1 + c * x;
        v = v * v * v;
        source.next();
        if (v > 0 && log(source.first) < 0.5 * x * x + d - d * v + d * log(v)) return d * v * boost;
    }
}

// Small rates: how many uniform numbers can be multiplied before they fall below exp(-rate). Others: Hoermann (1993),
// transformed rejection with squeeze.
DEVICE double poisson_draw(Source& source, double rate) {
    if (!(rate > 0)) return rate == 0 ? 0.0 : not_a_number();
    if (rate < 10) {
        double limit = exp(-rate), product = 1;
        for (double count = 0;; count += 2) {
            source.next();
            product *= source.first;
            if (product <= limit) return count;
            product *= source.second;
            if (product <= limit) return count + 1;
        }
    }
    double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b, squeeze = 0.9277 - 3.6224 / (b - 2);
    double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), log_rate = log(rate);
    for (;;) {
        source.next();
        double u = source.first - 0.5, v = source.second, us = 0.5 - fabs(u);
        double k = floor((2 * a / us + b) * u + rate + 0.43);
        if (us >= 0.07 && v <= squeeze) return k;
        if (k < 0 || us <= 0 || (us < 0.013 && v > us)) continue;
        if (log(v * inverse_alpha / (a / (us * us) + b)) <= k * log_rate - rate - lgamma(k + 1)) return k;
    }
}

// Few expected successes: the trials between one success and the next. Others: Hoermann (1993), as above.
DEVICE double binomial_draw(Source& source, double trials, double chance) {
    if (!(trials >= 0 && chance >= 0 && chance <= 1)) return not_a_number();
    double p = chance <= 0.5 ? chance : 1 - chance, k;
    if (p == 0) {
        k = 0;
    } else if (trials * p < 10) {
        double rate = log1p(-p), place = 0;
        for (k = 0;; k++) {
            source.next();
            place += floor(log(source.first) / rate) + 1;
            if (place > trials) break;
        }
    } else {
        double spread = sqrt(trials * p * (1 - p)), b = 1.15 + 2.53 * spread, a = -0.0873 + 0.0248 * b + 0.01 * p;
        double squeeze = 0.92 - 4.2 / b, alpha = (2.83 + 5.1 / b) * spread, mode = floor((trials + 1) * p);
        double log_odds = log(p / (1 - p)), top = lgamma(mode + 1) + lgamma(trials - mode + 1);
        for (;;) {
            source.next();
            double u = source.first - 0.5, v = source.second, us = 0.5 - fabs(u);
            k = floor((2 * a / us + b) * u + trials * p + 0.5);
            if (k < 0 || k > trials || us <= 0) continue;
            if (us >= 0.07 && v <= squeeze) break;
            double ratio = top - lgamma(k + 1) - lgamma(trials - k + 1) + (k - mode) * log_odds;
            if (log(v * alpha / (a / (us * us) + b)) <= ratio) break;
        }
    }
    return chance <= 0.5 ? k : trials - k;
}

#define STREAM_PARAMETERS uint64 captured, uint64 seed, uint64 offset
#define EACH_ELEMENT                                                                                               \
    Draws draws = draws_from(captured, seed, offset);                                                              \
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64)gridDim.x * blockDim.x)

extern "C" __global__ void gamma_draws(double* out, const double* alpha, int64 count, STREAM_PARAMETERS) {
    EACH_ELEMENT {
        Source source = {draws, (uint64)i, 0, 0, 0};
        out[i] = gamma_draw(source, alpha[i]);
    }
}

extern "C" __global__ void poisson_draws(double* out, const double* rate, int64 count, STREAM_PARAMETERS) {
    EACH_ELEMENT {
        Source source = {draws, (uint64)i, 0, 0, 0};
        out[i] = poisson_draw(source, rate[i]);
    }
}

extern "C" __global__ void binomial_draws(
    double* out, const double* trials, const double* chance, int64 count, STREAM_PARAMETERS) {
    EACH_ELEMENT {
        Source source = {draws, (uint64)i, 0, 0, 0};
        out[i] = binomial_draw(source, trials[i], chance[i]);
    }
}
