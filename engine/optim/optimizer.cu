// One optimizer step on many parameters at once. Macros: `ELEMENT`, the type of parameters and gradients; `STATE`, that
// of the state (float for half precision parameters with float32 master weights); `ALGORITHM`, a struct below.
//
// `advance` counts the step and computes what depends on it, in double precision, into `coefficients`, so that no count
// is a number of the host's and a captured graph can be replayed. `update` is elementwise; its formulas are those of
// engine/optim, rounded in the same order (`fma` where engine/optim/kernels.py has it).

typedef ELEMENT element;
typedef STATE state_type;
typedef accumulator<ELEMENT>::type real;

#define MOST_MEMBERS 448
#define MOST_STATES 4
#define COEFFICIENTS 16
#define CHUNK 8192  // elements of a parameter that a block updates

struct Options {
    double lr, weight_decay, eps, a, b, c, d, e;
    uint64 lr_address;  // of a number on the device that is the learning rate instead, or 0
    int lr_is_double, maximize, one, other;
};
struct Gradients {
    uint64 addresses[MOST_MEMBERS];
};
struct States {
    uint64 addresses[MOST_STATES];
    uint64 master;
};
struct Member {
    uint64 parameter;
    int64 size, offset;  // elements; where its state begins in the arrays of the state
};

DEVICE float root(float x) { return sqrtf(x); }
DEVICE double root(double x) { return sqrt(x); }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

// Coefficients of all algorithms; their own follow.
enum { KEEP, DECAY, SCALE, OWN };

// average + weight (value - average), exact at the nearer end. rest: 1 - weight.
DEVICE real lerp(real average, real value, real weight, real rest) {
    real difference = value - average;
    return weight < (real)0.5 ? average + difference * weight : value - difference * rest;
}
// beta average + rest value^2
DEVICE real track_square(real average, real value, real beta, real rest) {
    return average * beta + value * rest * value;
}
DEVICE real decayed(real p, real g, const real* c) { return c[DECAY] != 0 ? g + c[DECAY] * p : g; }

struct Sgd {  // a momentum, b 1 - dampening, one: nesterov; state: momentum_buffer
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double*) {
        c[OWN] = lr, c[OWN + 1] = o.a, c[OWN + 2] = step == 1 ? 1 : o.b, c[OWN + 3] = step == 1, c[OWN + 4] = o.one;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States& states) {
        if (c[DECAY] != 0) g = fused(c[DECAY], p, g);
        if (states.addresses[0]) {
            real b = c[OWN + 3] != 0 ? g : fused(c[OWN + 2], g, s[0] * c[OWN + 1]);
            s[0] = b;
            g = c[OWN + 4] != 0 ? fused(c[OWN + 1], b, g) : b;
        }
        p = fused(-c[OWN], g, p);
    }
};

struct Adam {  // a beta1, b beta2; state: exp_avg, exp_avg_sq, max_exp_avg_sq
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double*) {
        c[OWN] = 1 - o.a, c[OWN + 1] = o.b, c[OWN + 2] = 1 - o.b;
        c[OWN + 3] = lr / (1 - pow(o.a, step)), c[OWN + 4] = sqrt(1 - pow(o.b, step)), c[OWN + 5] = o.eps;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States& states) {
        p = p * c[KEEP];
        if (c[DECAY] != 0) g = fused(c[DECAY], p, g);
        real rest = c[OWN], m = s[0];
        m = rest < (real)0.5 ? fused(rest, g - m, m) : fused(rest - 1, g - m, g);
        real v = fused(c[OWN + 2] * g, g, s[1] * c[OWN + 1]);
        s[0] = m, s[1] = v;
        if (states.addresses[2]) v = s[2] = Maximum::of(s[2], v);
        p = p - c[OWN + 3] * m / (root(v) / c[OWN + 4] + c[OWN + 5]);
    }
};

struct Adamax {  // a beta1, b beta2; state: exp_avg, exp_inf
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double*) {
        c[OWN] = 1 - o.a, c[OWN + 1] = o.a, c[OWN + 2] = o.b, c[OWN + 3] = o.eps;
        c[OWN + 4] = lr / (1 - pow(o.a, step));
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        g = decayed(p, g, c);
        s[0] = lerp(s[0], g, c[OWN], c[OWN + 1]);
        s[1] = Maximum::of(s[1] * c[OWN + 2], (g < 0 ? -g : g) + c[OWN + 3]);
        p = p - s[0] * c[OWN + 4] / s[1];
    }
};

DEVICE double nadam_momentum(const Options& o, double step) { return o.a * (1 - 0.5 * pow(0.96, step * o.c)); }

struct NAdam {  // a beta1, b beta2, c momentum_decay; state: exp_avg, exp_avg_sq; scalars: mu_product
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double* scalars) {
        double now = nadam_momentum(o, step), next = nadam_momentum(o, step + 1);
        scalars[0] = (float)scalars[0] * (float)now;  // kept in float32
        c[OWN] = 1 - o.a, c[OWN + 1] = o.a, c[OWN + 2] = o.b, c[OWN + 3] = 1 - o.b, c[OWN + 4] = 1 - pow(o.b, step);
        c[OWN + 5] = o.eps, c[OWN + 6] = lr * (1 - now) / (1 - scalars[0]);
        c[OWN + 7] = lr * next / (1 - scalars[0] * next);
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        p = p * c[KEEP];
        g = decayed(p, g, c);
        s[0] = lerp(s[0], g, c[OWN], c[OWN + 1]);
        s[1] = track_square(s[1], g, c[OWN + 2], c[OWN + 3]);
        real denominator = root(s[1] / c[OWN + 4]) + c[OWN + 5];
        p = p - g * c[OWN + 6] / denominator;
        p = p - s[0] * c[OWN + 7] / denominator;
    }
};

struct RAdam {  // a beta1, b beta2; state: exp_avg, exp_avg_sq
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double*) {
        double correction = 1 - pow(o.b, step), longest = 2 / (1 - o.b) - 1;
        double length = longest - 2 * step * pow(o.b, step) / correction;
        c[OWN] = 1 - o.a, c[OWN + 1] = o.a, c[OWN + 2] = o.b, c[OWN + 3] = 1 - o.b, c[OWN + 4] = 1 - pow(o.a, step);
        c[OWN + 5] = lr, c[OWN + 6] = o.eps, c[OWN + 7] = length > 5, c[OWN + 8] = sqrt(correction);
        c[OWN + 9] = length > 5 ? sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
                                : 0;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        p = p * c[KEEP];
        g = decayed(p, g, c);
        s[0] = lerp(s[0], g, c[OWN], c[OWN + 1]);
        s[1] = track_square(s[1], g, c[OWN + 2], c[OWN + 3]);
        real change = s[0] / c[OWN + 4] * c[OWN + 5];
        if (c[OWN + 7] != 0) change = change * (c[OWN + 8] / (root(s[1]) + c[OWN + 6])) * c[OWN + 9];
        p = p - change;
    }
};

struct Asgd {  // a lambd, b alpha, c t0; state: ax; scalars: eta, mu, whose values before the step count in it
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double* scalars) {
        if (step == 1) scalars[0] = (float)lr;
        c[OWN] = 1 - o.a * scalars[0], c[OWN + 1] = scalars[0], c[OWN + 2] = scalars[1];
        scalars[0] = lr / pow(1 + o.a * lr * step, o.b);
        scalars[1] = 1 / (step - o.c > 1 ? step - o.c : 1);
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        g = decayed(p, g, c);
        p = p * c[OWN];
        p = p - g * c[OWN + 1];
        s[0] = c[OWN + 2] == 1 ? p : s[0] + (p - s[0]) * c[OWN + 2];
    }
};

struct Rprop {  // a, b the smaller and the larger factor, c, d the bounds of a step's size; state: prev, step_size
    static MEMBER void advance(const Options& o, double, double, double* c, double*) {
        c[OWN] = o.a, c[OWN + 1] = o.b, c[OWN + 2] = o.c, c[OWN + 3] = o.d;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        real agreement = g * s[0];
        real size = s[1] * (agreement > 0 ? c[OWN + 1] : agreement < 0 ? c[OWN] : (real)1);
        size = size < c[OWN + 2] ? c[OWN + 2] : size > c[OWN + 3] ? c[OWN + 3] : size;
        if (agreement < 0) g = 0;
        p = p - (g > 0 ? size : g < 0 ? -size : g * size);
        s[0] = g, s[1] = size;
    }
};

struct RmsProp {  // a alpha, b momentum; state: square_avg, momentum_buffer, grad_avg
    static MEMBER void advance(const Options& o, double lr, double, double* c, double*) {
        c[OWN] = lr, c[OWN + 1] = o.a, c[OWN + 2] = 1 - o.a, c[OWN + 3] = o.eps, c[OWN + 4] = o.b;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States& states) {
        g = decayed(p, g, c);
        real v = s[0] = track_square(s[0], g, c[OWN + 1], c[OWN + 2]);
        if (states.addresses[2]) {
            s[2] = lerp(s[2], g, c[OWN + 2], c[OWN + 1]);
            v = v - s[2] * s[2];
        }
        real denominator = root(v) + c[OWN + 3];
        if (states.addresses[1]) {
            s[1] = s[1] * c[OWN + 4] + g / denominator;
            p = p - c[OWN] * s[1];
        } else {
            p = p - c[OWN] * g / denominator;
        }
    }
};

struct Adadelta {  // a rho; state: square_avg, acc_delta
    static MEMBER void advance(const Options& o, double lr, double, double* c, double*) {
        c[OWN] = lr, c[OWN + 1] = o.a, c[OWN + 2] = 1 - o.a, c[OWN + 3] = o.eps;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        g = decayed(p, g, c);
        s[0] = track_square(s[0], g, c[OWN + 1], c[OWN + 2]);
        real change = root(s[1] + c[OWN + 3]) / root(s[0] + c[OWN + 3]) * g;
        s[1] = track_square(s[1], change, c[OWN + 1], c[OWN + 2]);
        p = p - c[OWN] * change;
    }
};

struct Adagrad {  // a lr_decay; state: sum
    static MEMBER void advance(const Options& o, double lr, double step, double* c, double*) {
        c[OWN] = lr / (1 + (step - 1) * o.a), c[OWN + 1] = o.eps;
    }
    static MEMBER void update(real& p, real g, real* s, const real* c, const States&) {
        g = decayed(p, g, c);
        s[0] = s[0] + g * g;
        p = p - g * c[OWN] / (root(s[0]) + c[OWN + 1]);
    }
};

// One block. steps (count,): how many updates there were, the same number for all members; first and second (count,):
// the algorithm's scalars, or null. Where found_inf is not 0 there is no step. other: weight decay is decoupled.
extern "C" __global__ void advance(Options options, float* steps, float* first, float* second, int64 count,
                                   double* coefficients, const float* grad_scale, const float* found_inf) {
    __shared__ double scalars[3];
    if (found_inf && *found_inf != 0) return;
    if (threadIdx.x == 0) {
        double lr = options.lr;
        if (options.lr_address)
            lr = options.lr_is_double ? *(const double*)options.lr_address : (double)*(const float*)options.lr_address;
        scalars[0] = first ? (double)first[0] : 0;
        scalars[1] = second ? (double)second[0] : 0;
        scalars[2] = (double)(steps[0] + 1);
        double c[COEFFICIENTS] = {};
        c[KEEP] = options.other ? 1 - lr * options.weight_decay : 1;
        c[DECAY] = options.other ? 0 : options.weight_decay;
        c[SCALE] = (options.maximize ? -1.0 : 1.0) / (grad_scale ? (double)*grad_scale : 1.0);
        ALGORITHM::advance(options, lr, scalars[2], c, scalars);
        for (int i = 0; i < COEFFICIENTS; i++) coefficients[i] = c[i];
    }
    __syncthreads();
    for (int64 member = threadIdx.x; member < count; member += blockDim.x) {
        steps[member] = (float)scalars[2];
        if (first) first[member] = (float)scalars[0];
        if (second) second[member] = (float)scalars[1];
    }
}

template <int N> DEVICE void update_at(element* parameter, const element* gradient, int64 at, int64 offset,
                                       const States& states, const real* c) {
    typedef Pack<element, N> Elements;
    typedef Pack<state_type, N> Values;
    Elements p = *(const Elements*)(parameter + at), g = *(const Elements*)(gradient + at);
    Values s[MOST_STATES], master;
#pragma unroll
    for (int k = 0; k < MOST_STATES; k++)
        if (states.addresses[k]) s[k] = *(const Values*)((const state_type*)states.addresses[k] + offset + at);
    if (states.master) master = *(const Values*)((const state_type*)states.master + offset + at);
#pragma unroll
    for (int i = 0; i < N; i++) {
        real value = states.master ? (real)master.at[i] : (real)p.at[i], own[MOST_STATES];
#pragma unroll
        for (int k = 0; k < MOST_STATES; k++) own[k] = states.addresses[k] ? (real)s[k].at[i] : (real)0;
        ALGORITHM::update(value, (real)g.at[i] * c[SCALE], own, c, states);
        p.at[i] = (element)value;
        master.at[i] = (state_type)value;
#pragma unroll
        for (int k = 0; k < MOST_STATES; k++) s[k].at[i] = (state_type)own[k];
    }
    *(Elements*)(parameter + at) = p;
#pragma unroll
    for (int k = 0; k < MOST_STATES; k++)
        if (states.addresses[k]) *(Values*)((state_type*)states.addresses[k] + offset + at) = s[k];
    if (states.master) *(Values*)((state_type*)states.master + offset + at) = master;
}

// A block a chunk. chunks (blocks, 2): the number of the parameter, and which part of it.
extern "C" __global__ void update(Gradients gradients, States states, const Member* members, const int* chunks,
                                  const double* coefficients, const float* found_inf) {
    const int N = Sixteen<element>::elements;
    if (found_inf && *found_inf != 0) return;
    int number = chunks[2 * (int64)blockIdx.x];
    Member member = members[number];
    element* parameter = (element*)member.parameter;
    const element* gradient = (const element*)gradients.addresses[number];
    real c[COEFFICIENTS];
#pragma unroll
    for (int i = 0; i < COEFFICIENTS; i++) c[i] = (real)coefficients[i];
    int64 begin = (int64)chunks[2 * (int64)blockIdx.x + 1] * CHUNK, end = begin + CHUNK;
    end = end < member.size ? end : member.size;
    int64 wide = aligned(parameter) && aligned(gradient) ? begin + (end - begin) / N * N : begin;
    for (int64 at = begin + (int64)threadIdx.x * N; at < wide; at += (int64)blockDim.x * N)
        update_at<N>(parameter, gradient, at, member.offset, states, c);
    for (int64 at = wide + threadIdx.x; at < end; at += blockDim.x)
        update_at<1>(parameter, gradient, at, member.offset, states, c);
}
