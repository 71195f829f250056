// What kernels over rows and over flat memory share: accesses of several elements at once, elementary functions by
// precision, reductions over the threads that work on one row. `ELEMENT` and `WIDTH` (elements an access; 1 where the
// memory is not aligned for more) are macros.

typedef ELEMENT element;
typedef accumulator<ELEMENT>::type real;  // what is computed in

template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};
typedef Pack<element, WIDTH> Elements;

DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE float exponential_less_one(float x) { return expm1f(x); }
DEVICE double exponential_less_one(double x) { return expm1(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE double logarithm(double x) { return log(x); }
DEVICE float logarithm_one_more(float x) { return log1pf(x); }
DEVICE double logarithm_one_more(double x) { return log1p(x); }
DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
DEVICE double hyperbolic_tangent(double x) { return tanh(x); }
DEVICE float error_function(float x) { return erff(x); }
DEVICE double error_function(double x) { return erf(x); }
DEVICE float square_root(float x) { return sqrtf(x); }
DEVICE double square_root(double x) { return sqrt(x); }
DEVICE float magnitude(float x) { return fabsf(x); }
DEVICE double magnitude(double x) { return fabs(x); }

// --- rows ------------------------------------------------------------------------------------------------------------
// A row is the work of the threads of one threadIdx.y: of a warp where blockDim.x is 32, else of a block of one row.

#define CACHED 4  // accesses of a row that each thread keeps in registers between its passes

template <typename Combine> DEVICE real over_row(real value, real* scratch) {
    return blockDim.x == 32 ? over_warp<Combine>(value) : over_block<Combine>(value, scratch);
}

struct Row {
    const Elements* memory;
    Elements near[CACHED];
    int64 packs;

    MEMBER void load(const element* begin, int64 columns) {
        memory = (const Elements*)begin;
        packs = columns / WIDTH;
#pragma unroll
        for (int k = 0; k < CACHED; k++) {
            int64 pack = threadIdx.x + (int64)k * blockDim.x;
            if (pack < packs) near[k] = memory[pack];
        }
    }
};

// Calls visit(k, pack, elements) for each access this thread does of a row; k is a constant below CACHED for those kept
// in registers, CACHED for all others.
template <typename Visit> DEVICE void each(const Row& row, Visit visit) {
#pragma unroll
    for (int k = 0; k < CACHED; k++) {
        int64 pack = threadIdx.x + (int64)k * blockDim.x;
        if (pack < row.packs) visit(k, pack, row.near[k]);
    }
    for (int64 first = threadIdx.x + (int64)CACHED * blockDim.x; first < row.packs; first += CACHED * blockDim.x) {
        Elements far[CACHED];  // all on their way before the first is used
#pragma unroll
        for (int k = 0; k < CACHED; k++)
            if (first + k * blockDim.x < row.packs) far[k] = row.memory[first + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < CACHED; k++)
            if (first + k * blockDim.x < row.packs) visit(CACHED, first + k * blockDim.x, far[k]);
    }
}

// The same for two rows of equal length.
template <typename Visit> DEVICE void each(const Row& first, const Row& second, Visit visit) {
#pragma unroll
    for (int k = 0; k < CACHED; k++) {
        int64 pack = threadIdx.x + (int64)k * blockDim.x;
        if (pack < first.packs) visit(k, pack, first.near[k], second.near[k]);
    }
    for (int64 pack = threadIdx.x + (int64)CACHED * blockDim.x; pack < first.packs; pack += blockDim.x)
        visit(CACHED, pack, first.memory[pack], second.memory[pack]);
}

#define FIRST_ROW ((int64)blockIdx.x * blockDim.y + threadIdx.y)
#define ROWS_A_STEP ((int64)gridDim.x * blockDim.y)
