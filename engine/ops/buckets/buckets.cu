// What is done to a bucket of gradients: the sum of the ranks' slices, scaling, checks for overflow, norms, and 8 bits
// an element for the wire. `ELEMENT` is a macro.

typedef ELEMENT element;
typedef accumulator<ELEMENT>::type real;

#define MOST_RANKS 64
#define MOST_ARRAYS 128

struct Ranks {
    uint64 addends[MOST_RANKS], targets[MOST_RANKS];
    double weights[MOST_RANKS];
    int addend_count, target_count;
};

template <int N> DEVICE void sum_at(const Ranks& ranks, int64 at, real divisor, bool divided, bool weighted) {
    typedef Pack<element, N> Elements;
    real total[N];
    bool first = true;
    for (int rank = 0; rank < ranks.addend_count; rank++) {
        if (weighted && ranks.weights[rank] == 0) continue;
        Elements addend = *(const Elements*)((const element*)ranks.addends[rank] + at);
        real weight = (real)ranks.weights[rank];
#pragma unroll
        for (int i = 0; i < N; i++) {
            real value = (real)addend.at[i];
            if (weighted) value = (real)(value * weight);
            total[i] = first ? value : (real)(total[i] + value);
        }
        first = false;
    }
    Elements sum;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum.at[i] = (element)(first ? (real)0 : divided ? (real)(total[i] / divisor) : total[i]);
    for (int rank = 0; rank < ranks.target_count; rank++)
        *(Elements*)((element*)ranks.targets[rank] + at) = sum;
}

// Rank order, then one division, then one rounding: the bits of ddp/transport/summing.py. `wide`: all addresses are
// multiples of 16 bytes.
extern "C" __global__ void sum_slices(Ranks ranks, int64 count, double divisor, bool weighted, bool wide) {
    const int N = Sixteen<element>::elements;
    bool divided = divisor != 1;
    int64 packs = wide ? count / N : 0;
    for (int64 pack = FIRST_THREAD; pack < packs; pack += ALL_THREADS)
        sum_at<N>(ranks, pack * N, (real)divisor, divided, weighted);
    for (int64 at = packs * N + FIRST_THREAD; at < count; at += ALL_THREADS)
        sum_at<1>(ranks, at, (real)divisor, divided, weighted);
}

struct Arrays {
    uint64 addresses[MOST_ARRAYS];
    int64 sizes[MOST_ARRAYS];
};

// Calls visit(value) -> new value for every element of the array of blockIdx.y, in packs where it is aligned.
template <bool WRITE, typename Visit> DEVICE void each_of(const Arrays& arrays, Visit visit) {
    const int N = Sixteen<element>::elements;
    element* array = (element*)arrays.addresses[blockIdx.y];
    int64 size = arrays.sizes[blockIdx.y], packs = aligned(array) ? size / N : 0;
    for (int64 pack = FIRST_THREAD; pack < packs; pack += ALL_THREADS) {
        Pack<element, N> values = ((const Pack<element, N>*)array)[pack];
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] = (element)visit((real)values.at[i]);
        if (WRITE) ((Pack<element, N>*)array)[pack] = values;
    }
    for (int64 at = packs * N + FIRST_THREAD; at < size; at += ALL_THREADS) {
        real value = visit((real)array[at]);
        if (WRITE) array[at] = (element)value;
    }
}

// x *= factor * single * twofold, the last two on the device, or null. found_inf (may be null) becomes 1 where an
// element was infinite or NaN.
extern "C" __global__ void scale(Arrays arrays, double factor, const float* single, const double* twofold,
                                 float* found_inf) {
    real by = (real)(factor * (single ? (double)*single : 1.0) * (twofold ? *twofold : 1.0));
    bool all_finite = true;
    each_of<true>(arrays, [&](real value) {
        all_finite = all_finite && is_finite((float)(value - value));
        return by == 1 ? value : (real)(value * by);
    });
    if (found_inf && !all_finite) atomicExch(found_inf, 1.0f);
}

// Every element within [-limit, limit]; NaN stays.
extern "C" __global__ void clamp(Arrays arrays, double limit) {
    real most = (real)limit;
    each_of<true>(arrays, [&](real value) { return value > most ? most : value < -most ? -most : value; });
}

// Of every block one sum of |x|^p (p: 2, 1 or 0 for the largest) to partial[blockIdx.y * gridDim.x + blockIdx.x].
extern "C" __global__ void partial_norms(Arrays arrays, int power, double* partial) {
    __shared__ double scratch[32];
    double sum = 0;
    each_of<false>(arrays, [&](real value) {
        double size = value < 0 ? -(double)value : (double)value;
        if (power == 0) {
            sum = Maximum::of(sum, size);
        } else {
            sum += power == 2 ? size * size : size;
        }
        return value;
    });
    sum = power == 0 ? over_block<Maximum>(sum, scratch) : over_block<Sum>(sum, scratch);
    if (threadIdx.x == 0) partial[(int64)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// One block: the norm from its parts.
extern "C" __global__ void finish_norm(const double* partial, int64 count, int power, double* norm) {
    __shared__ double scratch[32];
    double sum = 0;
    for (int64 at = threadIdx.x; at < count; at += blockDim.x)
        sum = power == 0 ? Maximum::of(sum, partial[at]) : sum + partial[at];
    sum = power == 0 ? over_block<Maximum>(sum, scratch) : over_block<Sum>(sum, scratch);
    if (threadIdx.x == 0) *norm = power == 2 ? sqrt(sum) : sum;
}

// 8 bits: blocks of `length` elements, each cut into `parts` pieces of `piece` elements that a block of threads serves.

extern "C" __global__ void largest_magnitudes(const element* values, int64 count, int64 length, int64 piece,
                                              int64 parts, int64 pieces, float* largest) {
    __shared__ float scratch[32];
    for (int64 part = blockIdx.x; part < pieces; part += gridDim.x) {
        int64 begin = part / parts * length, end = begin + length < count ? begin + length : count;
        begin += part % parts * piece;
        end = begin + piece < end ? begin + piece : end;
        float most = 0;
        for (int64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
            float value = (float)values[at];
            most = Maximum::of(most, value < 0 ? -value : value);
        }
        most = over_block<Maximum>(most, scratch);
        if (threadIdx.x == 0) largest[part] = most;
    }
}

extern "C" __global__ void quantise(const element* values, int64 count, int64 length, int64 piece, int64 parts,
                                    int64 pieces, const float* largest, float* scales, signed char* levels) {
    __shared__ float scratch[32];
    for (int64 part = blockIdx.x; part < pieces; part += gridDim.x) {
        int64 row = part / parts, begin = row * length, end = begin + length;
        float most = 0;
        for (int64 other = threadIdx.x; other < parts; other += blockDim.x)
            most = Maximum::of(most, largest[row * parts + other]);
        float scale = over_block<Maximum>(most, scratch) / 127.0f;
        float unit = scale > 0 ? scale : 1.0f;
        if (threadIdx.x == 0 && part % parts == 0) scales[row] = scale;
        begin += part % parts * piece;
        end = begin + piece < end ? begin + piece : end;
        for (int64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
            float level = at < count ? (float)values[at] / unit : 0.0f;
            levels[at] = is_finite(level) ? (signed char)__float2int_rn(level) : (signed char)0;
        }
    }
}

// The weighted mean of the ranks' quantised blocks: targets[0] from `addends` (levels) and `scales` (addresses).
struct Scales {
    uint64 addresses[MOST_RANKS];
};
extern "C" __global__ void dequantised_mean(Ranks ranks, Scales scales, int64 count, int64 length, double divisor) {
    element* target = (element*)ranks.targets[0];
    for (int64 at = FIRST_THREAD; at < count; at += ALL_THREADS) {
        float total = 0;
        for (int rank = 0; rank < ranks.addend_count; rank++) {
            float weight = (float)ranks.weights[rank];
            if (weight == 0) continue;
            float scale = ((const float*)scales.addresses[rank])[at / length] * weight;
            total = total + (float)((const signed char*)ranks.addends[rank])[at] * scale;
        }
        target[at] = (element)(real)(total / (float)divisor);
    }
}
