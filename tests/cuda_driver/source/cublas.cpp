// cuBLAS: handles and the family of gemm, in plain loops with cuBLAS's own checks of its arguments. What is not here
// returns CUBLAS_STATUS_NOT_SUPPORTED (tests/cuda_driver/build.py adds it).

#include "library.h"

#include <cstring>

using namespace driver;

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
const int FAST_TF32 = 77;  // CUBLAS_COMPUTE_32F_FAST_TF32
enum Kind { FLOAT = 0, DOUBLE = 1, HALF = 2, COMPLEX = 4, DOUBLE_COMPLEX = 5, BFLOAT = 14 };  // cudaDataType

struct Handle : OnStream {
    int math_mode, pointer_mode, device;
    void* workspace;
    size_t workspace_size;
};

struct bfloat16 {
    uint16_t bits;
    bfloat16(float value) {
        uint32_t whole;
        memcpy(&whole, &value, 4);
        bits = value != value ? (uint16_t)(whole >> 16 | 0x40) : (uint16_t)((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t whole = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &whole, 4);
        return value;
    }
};
struct half {
    _Float16 value;
    half(float from) : value((_Float16)from) {}
    operator float() const { return (float)value; }
};

struct Matrix {
    char* start;
    long long step, batch;  // in elements, of columns and of matrices
    int how;                // 0: as it is, 1: transposed, 2: conjugated as well
};
struct Product {
    int m, n, k, count, compute;
    Matrix a, b, c;
};

// Factors as tensor cores take them with `compute`: TF32 has 10 bits of mantissa, halves go to even.
template <typename T> T factor(T value, int) { return value; }
inline float factor(float value, int compute) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (compute != FAST_TF32 || (bits >> 23 & 0xff) == 0xff) return value;
    bits = (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000;
    memcpy(&value, &bits, 4);
    return value;
}
inline complex64 factor(complex64 value, int compute) {
    return {factor(value.real(), compute), factor(value.imag(), compute)};
}

template <typename T, typename A> static void multiply(const Product& p, A alpha, A beta, int batch) {
    const T *a = (const T*)p.a.start + p.a.batch * batch, *b = (const T*)p.b.start + p.b.batch * batch;
    T* c = (T*)p.c.start + p.c.batch * batch;
    std::vector<A> left((size_t)p.m * p.k), column(p.k), sums(p.m);
    for (int l = 0; l < p.k; l++)
        for (int i = 0; i < p.m; i++) {
            A value = factor((A)(p.a.how ? a[l + i * p.a.step] : a[i + l * p.a.step]), p.compute);
            left[(size_t)l * p.m + i] = p.a.how == 2 ? conjugate(value) : value;
        }
    for (int j = 0; j < p.n; j++) {
        for (int l = 0; l < p.k; l++) {
            A value = factor((A)(p.b.how ? b[j + l * p.b.step] : b[l + j * p.b.step]), p.compute);
            column[l] = p.b.how == 2 ? conjugate(value) : value;
        }
        std::fill(sums.begin(), sums.end(), A(0));
        for (int l = 0; l < p.k; l++) {
            const A* from = left.data() + (size_t)l * p.m;
            for (int i = 0; i < p.m; i++) sums[i] += from[i] * column[l];
        }
        for (int i = 0; i < p.m; i++) {
            T& to = c[i + j * p.c.step];
            to = (T)(beta == A(0) ? alpha * sums[i] : alpha * sums[i] + beta * (A)to);  // 0 times NaN is 0 here
        }
    }
}

static bool touch_all(const Matrix& matrix, int rows, int columns, int batch, size_t size, bool write) {
    if (matrix.how) std::swap(rows, columns);
    for (int column = 0; column < columns; column++) {
        const char* start = matrix.start + (matrix.batch * batch + matrix.step * column) * (long long)size;
        if (!find(start)) {
            problem("cublas gemm: an operand that is not in device memory");
            return false;
        }
        if (!touch(start, size * rows, write, "cublas gemm")) return false;
    }
    return true;
}

template <typename T, typename A>
static int product(Handle* handle, const Product& p, const void* alpha, const void* beta) {
    int rows_a = p.a.how ? p.k : p.m, rows_b = p.b.how ? p.n : p.k;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0 || p.a.step < std::max(1, rows_a) ||
        p.b.step < std::max(1, rows_b) || p.c.step < std::max(1, p.m))
        return INVALID_VALUE;
    Locked locked;
    Stream* stream = stream_of(handle->stream);
    if (!stream) return EXECUTION_FAILED;
    if (!stream->capture) note("launch gemm %d %d", p.compute, handle->math_mode);
    if (!kernels_run || !p.m || !p.n || !p.count) return SUCCESS;
    bool on_device = handle->pointer_mode == 1;
    A one = on_device ? A() : *(const A*)alpha, other = on_device ? A() : *(const A*)beta;
    const char* wrong = submit(*stream, "cublas gemm", [=]() -> const char* {
        A factor = on_device ? *(const A*)alpha : one, old = on_device ? *(const A*)beta : other;
        for (int batch = 0; batch < p.count; batch++) {
            if (!touch_all(p.a, p.m, p.k, batch, sizeof(T), false) ||
                !touch_all(p.b, p.k, p.n, batch, sizeof(T), false) ||
                !touch_all(p.c, p.m, p.n, batch, sizeof(T), true))
                return last_problem.c_str();
            multiply<T, A>(p, factor, old, batch);
        }
        return nullptr;
    });
    return wrong ? EXECUTION_FAILED : SUCCESS;
}

static int product_of_kind(Handle* handle, int kind, const Product& p, const void* alpha, const void* beta) {
    int compute = p.compute;
    bool in_float = compute == 68 || compute == FAST_TF32 || compute == FLOAT;  // CUBLAS_COMPUTE_32F
    if (kind == FLOAT && in_float) return product<float, float>(handle, p, alpha, beta);
    if (kind == HALF && in_float) return product<half, float>(handle, p, alpha, beta);
    if (kind == BFLOAT && in_float) return product<bfloat16, float>(handle, p, alpha, beta);
    if (kind == COMPLEX && in_float) return product<complex64, complex64>(handle, p, alpha, beta);
    if (kind == DOUBLE && (compute == 70 || compute == DOUBLE)) return product<double, double>(handle, p, alpha, beta);
    if (kind == DOUBLE_COMPLEX && (compute == 70 || compute == DOUBLE))
        return product<complex128, complex128>(handle, p, alpha, beta);
    return NOT_SUPPORTED;
}

extern "C" {

int cublasCreate_v2(Handle** handle) { return *handle = new Handle{{nullptr}, 0, 0, device, nullptr, 0}, SUCCESS; }
int cublasDestroy_v2(Handle* handle) { return delete handle, SUCCESS; }
int cublasGetVersion_v2(Handle*, int* version) { return *version = 120901, SUCCESS; }
int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
    handle->stream = stream;
    handle->workspace = nullptr;  // as the real one does
    return SUCCESS;
}
int cublasGetStream_v2(Handle* handle, cudaStream_t* stream) { return *stream = handle->stream, SUCCESS; }
int cublasSetMathMode(Handle* handle, int mode) { return handle->math_mode = mode, SUCCESS; }
int cublasGetMathMode(Handle* handle, int* mode) { return *mode = handle->math_mode, SUCCESS; }
int cublasSetPointerMode_v2(Handle* handle, int mode) { return handle->pointer_mode = mode, SUCCESS; }
int cublasGetPointerMode_v2(Handle* handle, int* mode) { return *mode = handle->pointer_mode, SUCCESS; }
int cublasSetWorkspace_v2(Handle* handle, void* start, size_t size) {
    if ((uintptr_t)start % 256) return INVALID_VALUE;
    handle->workspace = start;
    handle->workspace_size = size;
    return SUCCESS;
}

int cublasGemmStridedBatchedEx(Handle* handle, int how_a, int how_b, int m, int n, int k, const void* alpha,
                               const void* a, int kind_a, int step_a, long long batch_a, const void* b, int kind_b,
                               int step_b, long long batch_b, const void* beta, void* c, int kind_c, int step_c,
                               long long batch_c, int count, int compute, int) {
    if (kind_a != kind_b || kind_a != kind_c) return NOT_SUPPORTED;
    Product p{m, n, k, count, compute, {(char*)a, step_a, batch_a, how_a}, {(char*)b, step_b, batch_b, how_b},
              {(char*)c, step_c, batch_c, 0}};
    return product_of_kind(handle, kind_a, p, alpha, beta);
}
int cublasGemmEx(Handle* handle, int how_a, int how_b, int m, int n, int k, const void* alpha, const void* a,
                 int kind_a, int step_a, const void* b, int kind_b, int step_b, const void* beta, void* c, int kind_c,
                 int step_c, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, how_a, how_b, m, n, k, alpha, a, kind_a, step_a, 0, b, kind_b, step_b, 0,
                                      beta, c, kind_c, step_c, 0, 1, compute, algorithm);
}
int cublasSgemmEx(Handle* handle, int how_a, int how_b, int m, int n, int k, const float* alpha, const void* a,
                  int kind_a, int step_a, const void* b, int kind_b, int step_b, const float* beta, void* c, int kind_c,
                  int step_c) {
    return cublasGemmEx(handle, how_a, how_b, m, n, k, alpha, a, kind_a, step_a, b, kind_b, step_b, beta, c, kind_c,
                        step_c, 68, 0);
}
#define GEMM(letter, type, kind, compute)                                                                              \
    int cublas##letter##gemm_v2(Handle* handle, int how_a, int how_b, int m, int n, int k, const type* alpha,          \
                                const type* a, int step_a, const type* b, int step_b, const type* beta, type* c,       \
                                int step_c) {                                                                          \
        return cublasGemmEx(handle, how_a, how_b, m, n, k, alpha, a, kind, step_a, b, kind, step_b, beta, c, kind,     \
                            step_c, compute, 0);                                                                       \
    }                                                                                                                  \
    int cublas##letter##gemmStridedBatched(Handle* handle, int how_a, int how_b, int m, int n, int k,                  \
                                           const type* alpha, const type* a, int step_a, long long batch_a,            \
                                           const type* b, int step_b, long long batch_b, const type* beta, type* c,    \
                                           int step_c, long long batch_c, int count) {                                 \
        return cublasGemmStridedBatchedEx(handle, how_a, how_b, m, n, k, alpha, a, kind, step_a, batch_a, b, kind,     \
                                          step_b, batch_b, beta, c, kind, step_c, batch_c, count, compute, 0);         \
    }
GEMM(S, float, FLOAT, 68)
GEMM(D, double, DOUBLE, 70)
GEMM(C, complex64, COMPLEX, 68)
GEMM(Z, complex128, DOUBLE_COMPLEX, 70)

// y = alpha op(a) x + beta y, as a product with a matrix of one column where x and y have no gaps.
#define GEMV(letter, type, kind, compute)                                                                              \
    int cublas##letter##gemv_v2(Handle* handle, int how, int m, int n, const type* alpha, const type* a, int step,     \
                                const type* x, int step_x, const type* beta, type* y, int step_y) {                    \
        if (step_x != 1 || step_y != 1) return NOT_SUPPORTED;                                                          \
        int rows = how ? n : m, terms = how ? m : n;                                                                   \
        return cublasGemmEx(handle, how, 0, rows, 1, terms, alpha, a, kind, step, x, kind, std::max(1, terms), beta,   \
                            y, kind, std::max(1, rows), compute, 0);                                                   \
    }
GEMV(S, float, FLOAT, 68)
GEMV(D, double, DOUBLE, 70)
GEMV(C, complex64, COMPLEX, 68)
GEMV(Z, complex128, DOUBLE_COMPLEX, 70)
}
