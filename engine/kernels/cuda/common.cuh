// What every kernel of this folder may use: half precision as 16 bits that convert to and from float, index arithmetic,
// sums over warps and blocks. Needs no header of the CUDA toolkit.

#define DEVICE __device__ __forceinline__
#define MEMBER DEVICE

typedef long long int64;
typedef unsigned int uint32;
typedef unsigned long long uint64;

DEVICE uint32 float_bits(float value) {
    return __float_as_uint(value);
}

DEVICE float bits_float(uint32 bits) {
    return __uint_as_float(bits);
}

// bfloat16: the upper half of a float32, rounded to nearest even; NaN stays NaN.
struct bfloat16 {
    unsigned short bits;
    bfloat16() = default;
    MEMBER bfloat16(float value) {
        uint32 whole = float_bits(value);
        bits = (whole & 0x7fffffffu) > 0x7f800000u
                   ? (unsigned short)((whole >> 16) | 0x40u)
                   : (unsigned short)((whole + 0x7fffu + ((whole >> 16) & 1u)) >> 16);
    }
    MEMBER operator float() const { return bits_float((uint32)bits << 16); }
};

// IEEE half precision, converted by the device's own instruction.
struct float16 {
    unsigned short bits;
    float16() = default;
    MEMBER float16(float value) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    MEMBER operator float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

// The type in which a sum of T is accumulated: float for the halves and float, T itself for double and integers.
template <typename T> struct accumulator { typedef T type; };
template <> struct accumulator<float16> { typedef float type; };
template <> struct accumulator<bfloat16> { typedef float type; };

struct Sum {
    template <typename A> static MEMBER A of(A a, A b) { return a + b; }
};
struct Maximum {
    template <typename A> static MEMBER A of(A a, A b) { return a > b || a != a ? a : b; }  // NaN wins
};

// The same result in every lane of a warp.
template <typename Combine, typename A> DEVICE A over_warp(A value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = Combine::of(value, (A)__shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// The same result in every thread of a one-dimensional block of whole warps (at most 32). `scratch`: 32 elements of
// shared memory, free again when the function returns. The order of summation depends on the block's size only.
template <typename Combine, typename A> DEVICE A over_block(A value, A* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = over_warp<Combine>(value);
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    A total = scratch[0];
    for (int other = 1; other < warps; other++) total = Combine::of(total, scratch[other]);
    __syncthreads();
    return total;
}
