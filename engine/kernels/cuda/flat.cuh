// What kernels over flat memory share. Sources that promise the CPU's bits are compiled without contraction of products
// and sums (--fmad=false), and write `fma` where the CPU has one.

template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

// Elements of T in 16 bytes.
template <typename T> struct Sixteen { static const int elements = 16 / sizeof(T); };

DEVICE bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }
DEVICE bool is_finite(double x) { return x - x == 0; }

DEVICE bool aligned(const void* address) { return (uint64)address % 16 == 0; }

#define FIRST_THREAD ((int64)blockIdx.x * blockDim.x + threadIdx.x)
#define ALL_THREADS ((int64)gridDim.x * blockDim.x)
