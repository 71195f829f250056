// Fills of device memory with random values. A thread draws four neighbours in row-major order, by one or two calls of
// philox, and puts each where shape and strides say: the layout of the memory does not change a value.

const int GROUP = 4;
const int AXES = 6;

// Arithmetic in which values are made before they are rounded to the element's type.
template <typename T> struct arithmetic { typedef float type; };
template <> struct arithmetic<double> { typedef double type; };
template <typename T> struct mantissa { static const int bits = 24; };
template <> struct mantissa<float16> { static const int bits = 11; };
template <> struct mantissa<bfloat16> { static const int bits = 8; };

typedef ELEMENT element;
typedef arithmetic<element>::type real;

struct Layout {
    int64 size[AXES], step[AXES];
};

#define LAYOUT_PARAMETERS                                                                                          \
    int64 size0, int64 size1, int64 size2, int64 size3, int64 size4, int64 size5, int64 step0, int64 step1,        \
        int64 step2, int64 step3, int64 step4, int64 step5
#define LAYOUT_ARGUMENTS                                                                                           \
    { {size0, size1, size2, size3, size4, size5}, { step0, step1, step2, step3, step4, step5 } }
#define STREAM_PARAMETERS uint64 captured, uint64 seed, uint64 offset

struct alignas(4 * sizeof(element) < 16 ? 4 * sizeof(element) : 16) Group {
    element value[GROUP];
};

// Calls make(words of the group, position in it) for each element. `calls`: how often philox is called for four of them.
template <int calls, typename Make>
DEVICE void fill(element* out, int64 count, const Layout& layout, Draws draws, const Make& make) {
    bool row_major = layout.step[AXES - 1] == 1 && layout.size[AXES - 1] == count;
    bool aligned = row_major && (uint64)out % sizeof(Group) == 0;
    int64 groups = (count + GROUP - 1) / GROUP;
    for (int64 group = (int64)blockIdx.x * blockDim.x + threadIdx.x; group < groups;
         group += (int64)gridDim.x * blockDim.x) {
        uint32 words[4 * calls];
#pragma unroll
        for (int call = 0; call < calls; call++) {
            Words drawn = philox(draws.seed, draws.offset + call, group);
#pragma unroll
            for (int i = 0; i < 4; i++) words[4 * call + i] = drawn.word[i];
        }
        int64 first = group * GROUP;
        Group made;
#pragma unroll
        for (int i = 0; i < GROUP; i++) made.value[i] = make(words, i, first + i < count ? first + i : count - 1);
        if (aligned && first + GROUP <= count) {
            *(Group*)(out + first) = made;
            continue;
        }
        int64 place[AXES], rest = first;
#pragma unroll
        for (int axis = AXES - 1; axis >= 0; axis--) {
            place[axis] = rest % layout.size[axis];
            rest /= layout.size[axis];
        }
        for (int i = 0; i < GROUP && first + i < count; i++) {
            int64 address = 0;
#pragma unroll
            for (int axis = 0; axis < AXES; axis++) address += place[axis] * layout.step[axis];
            out[address] = made.value[i];
            bool carry = true;
#pragma unroll
            for (int axis = AXES - 1; axis >= 0; axis--) {
                place[axis] += carry;
                carry = place[axis] == layout.size[axis];
                if (carry) place[axis] = 0;
            }
        }
    }
}

// What differs between float and double arithmetic: how many words a value takes.
template <typename R> struct Unit {
    static const int calls = 1;
    static MEMBER R below_one(const uint32* words, int i) {
        const int dropped = 32 - mantissa<element>::bits;  // so that rounding to a half type cannot give 1
        return (float)(words[i] >> dropped) / (float)(1u << mantissa<element>::bits);
    }
    static MEMBER R above_zero(const uint32* words, int i) { return unit_open_below(words[i]); }
};
template <> struct Unit<double> {
    static const int calls = 2;
    static MEMBER double below_one(const uint32* words, int i) { return unit(words[2 * i], words[2 * i + 1]); }
    static MEMBER double above_zero(const uint32* words, int i) { return unit_open_below(words[2 * i], words[2 * i + 1]); }
};

DEVICE float logarithm(float value) { return logf(value); }
DEVICE double logarithm(double value) { return log(value); }
DEVICE float root(float value) { return sqrtf(value); }
DEVICE double root(double value) { return sqrt(value); }
DEVICE void turn(float part, float* sine, float* cosine) { sincospif(2.0f * part, sine, cosine); }
DEVICE void turn(double part, double* sine, double* cosine) { sincospi(2.0 * part, sine, cosine); }

struct Uniform {  // on [low, high)
    real low, high;
    MEMBER element operator()(const uint32* words, int i, int64) const {
        element value = (element)(Unit<real>::below_one(words, i) * (high - low) + low);
        return (real)value >= high ? (element)low : value;
    }
};

struct Normal {  // Box and Muller: a radius and an angle give two values
    real mean, deviation;
    MEMBER element operator()(const uint32* words, int i, int64) const {
        real radius = root((real)-2 * logarithm(Unit<real>::above_zero(words, i & ~1))), sine, cosine;
        turn(Unit<real>::above_zero(words, i | 1), &sine, &cosine);
        return (element)(mean + deviation * radius * (i & 1 ? sine : cosine));
    }
};

struct Exponential {  // never 0
    real rate;
    MEMBER element operator()(const uint32* words, int i, int64) const {
        const real small = sizeof(real) == 4 ? (real)5.9604644775390625e-8 : (real)1.1102230246251565e-16;
        real part = Unit<real>::above_zero(words, i);
        return (element)(-(part >= 1 - small ? -small : logarithm(part)) / rate);
    }
};

struct Bits {  // 64 bits of two words
    static MEMBER uint64 of(const uint32* words, int i) { return (uint64)words[2 * i] << 32 | words[2 * i + 1]; }
};

struct Integers {  // low + [0, range), a range of 0 meaning 2^64; one value is likelier than another by range / 2^64
    int64 low;
    uint64 range;
    MEMBER element operator()(const uint32* words, int i, int64) const {
        uint64 bits = Bits::of(words, i);
        uint64 scaled = __umul64hi(bits, range);
        return (element)(int64)((uint64)low + (range ? scaled : bits));
    }
};

struct Bernoulli {
    uint64 limit;
    MEMBER element operator()(const uint32* words, int i, int64) const { return (element)(float)(words[i] < limit); }
};

extern "C" __global__ void uniform(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, double low, double high) {
    Layout layout = LAYOUT_ARGUMENTS;
    Uniform make = {(real)low, (real)high};
    fill<Unit<real>::calls>(out, count, layout, draws_from(captured, seed, offset), make);
}

extern "C" __global__ void normal(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, double mean, double deviation) {
    Layout layout = LAYOUT_ARGUMENTS;
    Normal make = {(real)mean, (real)deviation};
    fill<Unit<real>::calls>(out, count, layout, draws_from(captured, seed, offset), make);
}

extern "C" __global__ void exponential(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, double rate) {
    Layout layout = LAYOUT_ARGUMENTS;
    Exponential make = {(real)rate};
    fill<Unit<real>::calls>(out, count, layout, draws_from(captured, seed, offset), make);
}

extern "C" __global__ void integers(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, int64 low, uint64 range) {
    Layout layout = LAYOUT_ARGUMENTS;
    Integers make = {low, range};
    fill<2>(out, count, layout, draws_from(captured, seed, offset), make);
}

extern "C" __global__ void bernoulli(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, double probability) {
    Layout layout = LAYOUT_ARGUMENTS;
    Bernoulli make = {threshold(probability)};
    fill<1>(out, count, layout, draws_from(captured, seed, offset), make);
}

// `probabilities`: row-major, one an element.
struct BernoulliOf {
    const double* probabilities;
    MEMBER element operator()(const uint32* words, int i, int64 place) const {
        return (element)(float)(words[i] < threshold(probabilities[place]));
    }
};

extern "C" __global__ void bernoulli_of(
    element* out, int64 count, LAYOUT_PARAMETERS, STREAM_PARAMETERS, const double* probabilities) {
    Layout layout = LAYOUT_ARGUMENTS;
    BernoulliOf make = {probabilities};
    fill<1>(out, count, layout, draws_from(captured, seed, offset), make);
}

extern "C" __global__ void set_state(uint64* state, uint64 seed, uint64 offset) {
    state[0] = seed;
    state[1] = offset;
}
