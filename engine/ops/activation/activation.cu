// Activations over flat memory, forward and backward, half precision computed in float. a, b and c are an activation's
// parameters in the order of its attributes.

DEVICE real logistic(real x) { return (real)1 / ((real)1 + exponential(-x)); }
DEVICE real clipped(real x, real low, real high) { return x < low ? low : x > high ? high : x; }
DEVICE real soft(real x) { return (x > 0 ? x : x < 0 ? (real)0 : x) + logarithm_one_more(exponential(-magnitude(x))); }
DEVICE real bent(real x) {
    return hyperbolic_tangent((real)0.7978845608028654 * (x + (real)0.044715 * x * x * x));
}
DEVICE real bent_softly(real x) { return hyperbolic_tangent(soft(x)); }

struct Numbers {
    real a, b, c;
};

// Elements of the first `packs` accesses are done WIDTH at a time, the rest one by one.
template <typename Function>
DEVICE void forward(const element* x, element* out, int64 count, int64 packs, Numbers numbers) {
    int64 step = (int64)gridDim.x * blockDim.x, first = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64 pack = first; pack < packs; pack += step) {
        Elements values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values.at[i] = (element)Function::of((real)values.at[i], numbers);
        ((Elements*)out)[pack] = values;
    }
    for (int64 i = packs * WIDTH + first; i < count; i += step) out[i] = (element)Function::of((real)x[i], numbers);
}

// `x`: what the activation was applied to, or its result for those whose slope is a function of it.
template <typename Function>
DEVICE void backward(const element* g, const element* x, element* out, int64 count, int64 packs, Numbers numbers) {
    int64 step = (int64)gridDim.x * blockDim.x, first = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64 pack = first; pack < packs; pack += step) {
        Elements slopes = ((const Elements*)g)[pack], values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            slopes.at[i] = (element)Function::slope((real)slopes.at[i], (real)values.at[i], numbers);
        ((Elements*)out)[pack] = slopes;
    }
    for (int64 i = packs * WIDTH + first; i < count; i += step)
        out[i] = (element)Function::slope((real)g[i], (real)x[i], numbers);
}

struct Gelu {
    static MEMBER real of(real x, Numbers) {
        return (real)0.5 * x * ((real)1 + error_function(x * (real)0.7071067811865476));
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * ((real)0.5 * ((real)1 + error_function(x * (real)0.7071067811865476)) +
             x * (real)0.3989422804014327 * exponential((real)-0.5 * x * x));
    }
};

struct GeluTanh {
    static MEMBER real of(real x, Numbers) {
        return (real)0.5 * x * ((real)1 + bent(x));
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * ((real)0.5 * ((real)1 + bent(x)) + (real)0.3989422804014327 * x * ((real)1 - bent(x) * bent(x)) *
             ((real)1 + (real)0.134145 * x * x));
    }
};

struct Silu {
    static MEMBER real of(real x, Numbers) {
        return x * logistic(x);
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * logistic(x) * ((real)1 + x * ((real)1 - logistic(x)));
    }
};

struct LeakyRelu {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a;
        return x > 0 ? x : x * a;
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a;
        return x > 0 ? g : g * a;
    }
};

struct Elu {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b, c = numbers.c;
        return x > 0 ? x * b : exponential_less_one(x * c) * (a * b);
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b, c = numbers.c;
        return x <= 0 ? g * exponential(x * c) * (a * b * c) : g * b;  // of NaN, too, as on the CPU
    }
};

struct Hardtanh {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b;
        return x < a ? a : x > b ? b : x;
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b;
        return x > a && x < b ? g : (real)0;
    }
};

struct Hardsigmoid {
    static MEMBER real of(real x, Numbers) {
        return clipped(x + (real)3, 0, 6) / (real)6;
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return x > (real)-3 && x < (real)3 ? g / (real)6 : (real)0;
    }
};

struct Hardswish {
    static MEMBER real of(real x, Numbers) {
        return x * clipped(x + (real)3, 0, 6) / (real)6;
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return x <= (real)-3 ? (real)0 : x < (real)3 ? g * (x / (real)3 + (real)0.5) : g;
    }
};

struct Threshold {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b;
        return x <= a ? b : x;
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a;
        return x <= a ? (real)0 : g;
    }
};

struct Hardshrink {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a;
        return x >= -a && x <= a ? (real)0 : x;
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a;
        return x < -a || x > a ? g : (real)0;
    }
};

struct Softshrink {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a;
        return x - clipped(x, -a, a);
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a;
        return x < -a || x > a ? g : (real)0;
    }
};

struct Softplus {
    static MEMBER real of(real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b;
        return x * a > b ? x : soft(x * a) / a;
    }
    static MEMBER real slope(real g, real x, Numbers numbers) {
        real a = numbers.a, b = numbers.b;
        return x * a > b ? g : g * logistic(x * a);
    }
};

struct Mish {
    static MEMBER real of(real x, Numbers) {
        return x * hyperbolic_tangent(soft(x));
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * (bent_softly(x) + x * ((real)1 - bent_softly(x) * bent_softly(x)) * logistic(x));
    }
};

struct Logsigmoid {
    static MEMBER real of(real x, Numbers) {
        return -soft(-x);
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * logistic(-x);
    }
};

// Slopes of these are functions of the result.

struct Relu {
    static MEMBER real of(real x, Numbers) {
        return x < 0 ? (real)0 : x;
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return x <= 0 ? (real)0 : g;
    }
};

struct Sigmoid {
    static MEMBER real of(real x, Numbers) {
        return logistic(x);
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * x * ((real)1 - x);
    }
};

struct Tanh {
    static MEMBER real of(real x, Numbers) {
        return hyperbolic_tangent(x);
    }
    static MEMBER real slope(real g, real x, Numbers) {
        return g * ((real)1 - x * x);
    }
};

#define FORWARD_PARAMETERS const element *x, element *out, int64 count, int64 packs, double a, double b, double c
#define BACKWARD_PARAMETERS                                                                                        \
    const element *g, const element *x, element *out, int64 count, int64 packs, double a, double b, double c
#define FORWARD(Function)                                    \
    {                                                        \
        Numbers numbers = {(real)a, (real)b, (real)c};       \
        forward<Function>(x, out, count, packs, numbers);    \
    }
#define BACKWARD(Function)                                   \
    {                                                        \
        Numbers numbers = {(real)a, (real)b, (real)c};       \
        backward<Function>(g, x, out, count, packs, numbers);\
    }

extern "C" __global__ void gelu_forward(FORWARD_PARAMETERS) FORWARD(Gelu)
extern "C" __global__ void gelu_backward(BACKWARD_PARAMETERS) BACKWARD(Gelu)
extern "C" __global__ void gelu_tanh_forward(FORWARD_PARAMETERS) FORWARD(GeluTanh)
extern "C" __global__ void gelu_tanh_backward(BACKWARD_PARAMETERS) BACKWARD(GeluTanh)
extern "C" __global__ void silu_forward(FORWARD_PARAMETERS) FORWARD(Silu)
extern "C" __global__ void silu_backward(BACKWARD_PARAMETERS) BACKWARD(Silu)
extern "C" __global__ void leaky_relu_forward(FORWARD_PARAMETERS) FORWARD(LeakyRelu)
extern "C" __global__ void leaky_relu_backward(BACKWARD_PARAMETERS) BACKWARD(LeakyRelu)
extern "C" __global__ void elu_forward(FORWARD_PARAMETERS) FORWARD(Elu)
extern "C" __global__ void elu_backward(BACKWARD_PARAMETERS) BACKWARD(Elu)
extern "C" __global__ void hardtanh_forward(FORWARD_PARAMETERS) FORWARD(Hardtanh)
extern "C" __global__ void hardtanh_backward(BACKWARD_PARAMETERS) BACKWARD(Hardtanh)
extern "C" __global__ void hardsigmoid_forward(FORWARD_PARAMETERS) FORWARD(Hardsigmoid)
extern "C" __global__ void hardsigmoid_backward(BACKWARD_PARAMETERS) BACKWARD(Hardsigmoid)
extern "C" __global__ void hardswish_forward(FORWARD_PARAMETERS) FORWARD(Hardswish)
extern "C" __global__ void hardswish_backward(BACKWARD_PARAMETERS) BACKWARD(Hardswish)
extern "C" __global__ void threshold_forward(FORWARD_PARAMETERS) FORWARD(Threshold)
extern "C" __global__ void threshold_backward(BACKWARD_PARAMETERS) BACKWARD(Threshold)
extern "C" __global__ void hardshrink_forward(FORWARD_PARAMETERS) FORWARD(Hardshrink)
extern "C" __global__ void hardshrink_backward(BACKWARD_PARAMETERS) BACKWARD(Hardshrink)
extern "C" __global__ void softshrink_forward(FORWARD_PARAMETERS) FORWARD(Softshrink)
extern "C" __global__ void softshrink_backward(BACKWARD_PARAMETERS) BACKWARD(Softshrink)
extern "C" __global__ void softplus_forward(FORWARD_PARAMETERS) FORWARD(Softplus)
extern "C" __global__ void softplus_backward(BACKWARD_PARAMETERS) BACKWARD(Softplus)
extern "C" __global__ void mish_forward(FORWARD_PARAMETERS) FORWARD(Mish)
extern "C" __global__ void mish_backward(BACKWARD_PARAMETERS) BACKWARD(Mish)
extern "C" __global__ void logsigmoid_forward(FORWARD_PARAMETERS) FORWARD(Logsigmoid)
extern "C" __global__ void logsigmoid_backward(BACKWARD_PARAMETERS) BACKWARD(Logsigmoid)
extern "C" __global__ void relu_forward(FORWARD_PARAMETERS) FORWARD(Relu)
extern "C" __global__ void relu_backward(BACKWARD_PARAMETERS) BACKWARD(Relu)
extern "C" __global__ void sigmoid_forward(FORWARD_PARAMETERS) FORWARD(Sigmoid)
extern "C" __global__ void sigmoid_backward(BACKWARD_PARAMETERS) BACKWARD(Sigmoid)
extern "C" __global__ void tanh_forward(FORWARD_PARAMETERS) FORWARD(Tanh)
extern "C" __global__ void tanh_backward(BACKWARD_PARAMETERS) BACKWARD(Tanh)
