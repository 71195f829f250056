// Losses over class indices. Logits are (outer, classes, inner), and a row has a target for each (outer, inner). A
// target that is no class gives NaN in its row's loss and gradient: raising an error would have to wait for the device.

struct Options {
    const int64* target;
    const element* weight;  // of each class, or null
    int64 classes, ignore_index;

    MEMBER bool ignores(int64 t) const { return t == ignore_index; }
    MEMBER bool knows(int64 t) const { return t >= 0 && t < classes; }
    MEMBER real weight_of(int64 t) const { return weight ? (real)weight[t] : (real)1; }
};

#define NOT_A_NUMBER ((real)bits_float(0x7fc00000u))
#define OPTIONS_PARAMETERS const int64 *target, const element *weight, int64 classes, int64 ignore_index
#define OPTIONS_ARGUMENTS \
    { target, weight, classes, ignore_index }

// --- cross-entropy ---------------------------------------------------------------------------------------------------

// What forward leaves of each row: its loss, the weight of its target (0 if ignored), log of the sum of exponentials.
struct Results {
    real *losses, *weights, *log_sums;

    MEMBER void put(int64 row, real loss, real weight, real log_sum) const {
        losses[row] = loss;
        weights[row] = weight;
        log_sums[row] = log_sum;
    }
    // `spread`: the sum over classes of weight times negative logarithm of the probability.
    MEMBER void put(
        int64 row, const Options& options, int64 t, Online all, real at_target, real spread, real smoothing) const {
        if (options.ignores(t)) return put(row, 0, 0, 0);
        if (!options.knows(t)) return put(row, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER);
        real logarithm_of_sum = logarithm(all.sum), weight = options.weight_of(t);
        real loss = ((real)1 - smoothing) * weight * (logarithm_of_sum - (at_target - all.greatest));
        if (smoothing != 0) loss += smoothing / (real)options.classes * spread;
        put(row, loss, weight, all.greatest + logarithm_of_sum);
    }
};

extern "C" __global__ void __launch_bounds__(512) cross_entropy_forward(
    const element* x, OPTIONS_PARAMETERS, double smoothing, real* losses, real* weights, real* log_sums, int64 rows) {
    __shared__ real scratch[32];
    Options options = OPTIONS_ARGUMENTS;
    Results results = {losses, weights, log_sums};
    for (int64 row = FIRST_ROW; row < rows; row += ROWS_A_STEP) {
        Row in;
        in.load(x + row * classes, classes);
        Online own = nothing_yet();
        each(in, [&](int, int64, const Elements& elements) {
            real values[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) values[i] = (real)elements.at[i];
            own.add(values, WIDTH);
        });
        Online all = over_row(own, scratch);
        real spread = 0;
        if (smoothing != 0) {
            real logarithm_of_sum = logarithm(all.sum);
            each(in, [&](int, int64 pack, const Elements& elements) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    spread += options.weight_of(pack * WIDTH + i) *
                              (logarithm_of_sum - ((real)elements.at[i] - all.greatest));
            });
            spread = over_row<Sum>(spread, scratch);
        }
        if (threadIdx.x == 0) {
            int64 t = target[row];
            real at_target = options.knows(t) ? (real)x[row * classes + t] : (real)0;
            results.put(row, options, t, all, at_target, spread, (real)smoothing);
        }
    }
}

extern "C" __global__ void cross_entropy_columns_forward(
    const element* x, OPTIONS_PARAMETERS, double smoothing, real* losses, real* weights, real* log_sums, int64 rows,
    int64 inner) {
    Options options = OPTIONS_ARGUMENTS;
    Results results = {losses, weights, log_sums};
    for (int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += (int64)gridDim.x * blockDim.x) {
        const element* in = x + row / inner * classes * inner + row % inner;
        Online all = nothing_yet();
        for (int64 j = 0; j < classes; j++) {
            real value = (real)in[j * inner];
            all.add(&value, 1);
        }
        real spread = 0;
        if (smoothing != 0) {
            real logarithm_of_sum = logarithm(all.sum);
            for (int64 j = 0; j < classes; j++)
                spread += options.weight_of(j) * (logarithm_of_sum - ((real)in[j * inner] - all.greatest));
        }
        int64 t = target[row];
        real at_target = options.knows(t) ? (real)in[t * inner] : (real)0;
        results.put(row, options, t, all, at_target, spread, (real)smoothing);
    }
}

// The gradient of a row's loss: one for each row, or one for all; divided by `total` where that is not null.
struct Gradient {
    const element* g;
    const real* total;
    bool shared;

    MEMBER real of(int64 row) const {
        real value = (real)g[shared ? 0 : row];
        return total ? value / *total : value;
    }
};

// The gradient of one logit is everywhere * probability - at_target (of the target's class) - spread * its weight.
struct Slope {
    int64 t;
    real log_sum, everywhere, at_target, spread;
    bool ignored;

    MEMBER Slope(
        const Options& options, const Gradient& gradient, const real* log_sums, const real* all_weights, real smoothing,
        int64 row) {
        t = options.target[row];
        ignored = options.ignores(t);
        if (ignored) return;
        log_sum = log_sums[row];
        real g = gradient.of(row);
        spread = smoothing != 0 ? g * smoothing / (real)options.classes : (real)0;
        at_target = options.knows(t) ? g * ((real)1 - smoothing) * options.weight_of(t) : NOT_A_NUMBER;
        real weights = !options.weight ? (real)options.classes : smoothing != 0 ? *all_weights : (real)0;
        everywhere = at_target + spread * weights;
    }
    MEMBER element of(const Options& options, int64 column, real x) const {
        if (ignored) return (element)(real)0;
        real slope = everywhere * exponential(x - log_sum);
        if (column == t) slope -= at_target;
        if (spread != 0) slope -= spread * options.weight_of(column);
        return (element)slope;
    }
};

#define BACKWARD_PARAMETERS                                                                                        \
    const element *g, int shared_gradient, const real *total, const element *x, OPTIONS_PARAMETERS, double smoothing, \
        const real *log_sums, const real *all_weights, element *of_x, int64 rows

extern "C" __global__ void __launch_bounds__(512) cross_entropy_backward(BACKWARD_PARAMETERS) {
    Options options = OPTIONS_ARGUMENTS;
    Gradient gradient = {g, total, shared_gradient != 0};
    for (int64 row = FIRST_ROW; row < rows; row += ROWS_A_STEP) {
        Slope slope(options, gradient, log_sums, all_weights, (real)smoothing, row);
        const Elements* in = (const Elements*)(x + row * classes);
        Elements* out = (Elements*)(of_x + row * classes);
        for (int64 pack = threadIdx.x; pack < classes / WIDTH; pack += blockDim.x) {
            Elements elements = in[pack], made;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) made.at[i] = slope.of(options, pack * WIDTH + i, (real)elements.at[i]);
            out[pack] = made;
        }
    }
}

extern "C" __global__ void cross_entropy_columns_backward(BACKWARD_PARAMETERS, int64 inner) {
    Options options = OPTIONS_ARGUMENTS;
    Gradient gradient = {g, total, shared_gradient != 0};
    for (int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += (int64)gridDim.x * blockDim.x) {
        Slope slope(options, gradient, log_sums, all_weights, (real)smoothing, row);
        int64 first = row / inner * classes * inner + row % inner;
        for (int64 j = 0; j < classes; j++)
            of_x[first + j * inner] = slope.of(options, j, (real)x[first + j * inner]);
    }
}

// --- negative log-likelihood -----------------------------------------------------------------------------------------

// losses may be null: then only the weights of the targets.
extern "C" __global__ void nll_forward(
    const element* x, OPTIONS_PARAMETERS, real* losses, real* weights, int64 rows, int64 inner) {
    Options options = OPTIONS_ARGUMENTS;
    for (int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += (int64)gridDim.x * blockDim.x) {
        int64 t = target[row];
        real weight_of_target = options.ignores(t) ? (real)0 : options.knows(t) ? options.weight_of(t) : NOT_A_NUMBER;
        weights[row] = weight_of_target;
        if (!losses) continue;
        int64 first = row / inner * classes * inner + row % inner;
        losses[row] = options.ignores(t) ? (real)0
                      : options.knows(t) ? -weight_of_target * (real)x[first + t * inner]
                                         : NOT_A_NUMBER;
    }
}

extern "C" __global__ void nll_backward(
    const element* g, int shared_gradient, const real* total, OPTIONS_PARAMETERS, element* of_x, int64 rows,
    int64 inner) {
    Options options = OPTIONS_ARGUMENTS;
    Gradient gradient = {g, total, shared_gradient != 0};
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < rows * classes;
         at += (int64)gridDim.x * blockDim.x) {
        int64 row = at / (inner * classes) * inner + at % inner, column = at / inner % classes;
        int64 t = target[row];
        real slope = 0;
        if (!options.ignores(t)) {
            if (!options.knows(t)) slope = NOT_A_NUMBER;
            if (column == t) slope = -options.weight_of(t) * gradient.of(row);
        }
        of_x[at] = (element)slope;
    }
}

// --- sums over the rows ----------------------------------------------------------------------------------------------

// Sums of two vectors: each block of a part of `part` elements. With one block and `result` given: result is the sum of
// the losses, divided by that of the weights if `mean`.
extern "C" __global__ void __launch_bounds__(1024) loss_totals(
    const real* losses, const real* weights, int64 count, int64 part, real* of_losses, real* of_weights, int mean,
    element* result) {
    __shared__ real scratch[32];
    int64 begin = blockIdx.x * part, end = begin + part < count ? begin + part : count;
    real loss = 0, weight = 0;
    for (int64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        if (losses) loss += losses[i];
        weight += weights[i];
    }
    loss = over_block<Sum>(loss, scratch);
    weight = over_block<Sum>(weight, scratch);
    if (threadIdx.x) return;
    of_losses[blockIdx.x] = loss;
    of_weights[blockIdx.x] = weight;
    if (result) *result = (element)(mean ? loss / weight : loss);
}
