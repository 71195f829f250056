// cuSOLVER: the dense factorisations that cupy.linalg calls, computed by LAPACK when it is the stream's turn. What is
// not here returns CUSOLVER_STATUS_NOT_SUPPORTED (tests/cuda_driver/build.py adds it).

#include "library.h"

using namespace driver;

enum Status { SUCCESS = 0, INVALID_VALUE = 3, EXECUTION_FAILED = 6, NOT_SUPPORTED = 9 };
enum Type { FLOAT = 0, DOUBLE = 1, COMPLEX = 4, DOUBLE_COMPLEX = 5 };  // cudaDataType

struct Handle : OnStream {};
struct Options {};  // of functions: tolerances and the like, at their defaults

const int BLOCK = 32;  // columns of a workspace; what its size is, is the library's own affair
static const char *const LOWER_UPPER = "LU", *const VALUES_VECTORS = "NV", *const AS_IS_TURNED = "NTC";

// What LAPACK says, where the device wants it.
static bool report(int* to, Integer info) { return *to = (int)info, true; }

// LU

static int lu_workspace(int m, int n) { return BLOCK * std::max(1, std::max(m, n)); }

template <typename T> static int lu(Handle* handle, int m, int n, T* a, int step, T* work, int* pivots, int* info) {
    if (m < 0 || n < 0 || step < std::max(1, m)) return INVALID_VALUE;
    int count = std::min(m, n);
    std::vector<Operand> operands{matrix(a, m, n, step, WRITES), vector(work, lu_workspace(m, n), WRITES),
                                  vector(info, 1, WRITES)};
    if (pivots) operands.push_back(vector(pivots, count, WRITES));
    return queue(*handle, "cusolver getrf", EXECUTION_FAILED, operands, [=] {
        if (!pivots) return problem("cusolver getrf: without pivoting, which is not there"), false;
        Integer rows = m, columns = n, leading = step, said;
        std::vector<Integer> wide(count + 1);
        if (!lapack<T>("getrf", "getrf", &rows, &columns, a, &leading, wide.data(), &said)) return false;
        std::copy_n(wide.begin(), count, pivots);
        return report(info, said);
    });
}
template <typename T>
static int lu_solve(Handle* handle, int how, int n, int columns, const T* a, int step, const int* pivots, T* b,
                    int step_b, int* info) {
    if (how < 0 || how > 2 || n < 0 || columns < 0 || step < std::max(1, n) || step_b < std::max(1, n))
        return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, n, n, step, READS), vector(pivots, n, READS),
                                  matrix(b, n, columns, step_b, WRITES), vector(info, 1, WRITES)};
    return queue(*handle, "cusolver getrs", EXECUTION_FAILED, operands, [=] {
        Integer size = n, sides = columns, leading = step, leading_b = step_b, said;
        std::vector<Integer> wide(pivots, pivots + n);
        return lapack<T>("getrs", "getrs", &AS_IS_TURNED[how], &size, &sides, a, &leading, wide.data(), b, &leading_b,
                         &said) && report(info, said);
    });
}

// Cholesky

template <typename T> static bool triangle(int uplo, int n, T* a, int step, int* info) {
    Integer size = n, leading = step, said;
    return lapack<T>("potrf", "potrf", &LOWER_UPPER[uplo], &size, a, &leading, &said) && report(info, said);
}
template <typename T>
static int cholesky(Handle* handle, int uplo, int n, T* a, int step, T* work, int size, int* info) {
    if (uplo < 0 || uplo > 1 || n < 0 || step < std::max(1, n) || size < BLOCK * n) return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, n, n, step, WRITES), vector(work, size, WRITES), vector(info, 1, WRITES)};
    return queue(*handle, "cusolver potrf", EXECUTION_FAILED, operands,
                 [=] { return triangle(uplo, n, a, step, info); });
}
template <typename T>
static int choleskys(Handle* handle, int uplo, int n, T** all, int step, int* info, int count) {
    if (uplo < 0 || uplo > 1 || n < 0 || count < 0 || step < std::max(1, n)) return INVALID_VALUE;
    std::vector<Operand> operands{vector(all, count, READS), vector(info, count, WRITES)};
    return queue(*handle, "cusolver potrfBatched", EXECUTION_FAILED, operands, [=] {
        for (int i = 0; i < count; i++)
            if (!touched(matrix(all[i], n, n, step, WRITES), "cusolver potrfBatched") ||
                !triangle(uplo, n, all[i], step, info + i))
                return false;
        return true;
    });
}

// QR: the factor R above reflections, and Q of them

template <typename T>
static int reflect(Handle* handle, int m, int n, T* a, int step, T* factors, T* work, int size, int* info) {
    if (m < 0 || n < 0 || step < std::max(1, m) || size < BLOCK * n) return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, m, n, step, WRITES), vector(factors, std::min(m, n), WRITES),
                                  vector(work, size, WRITES), vector(info, 1, WRITES)};
    return queue(*handle, "cusolver geqrf", EXECUTION_FAILED, operands, [=] {
        Integer rows = m, columns = n, leading = step, said;
        return with_workspace<T>([&](T* space, Integer* of) {
            return lapack<T>("geqrf", "geqrf", &rows, &columns, a, &leading, factors, space, of, &said);
        }) && report(info, said);
    });
}
template <typename T>
static int unfold(Handle* handle, int m, int n, int k, T* a, int step, const T* factors, T* work, int size,
                  int* info) {
    if (m < 0 || n < 0 || n > m || k < 0 || k > n || step < std::max(1, m) || size < BLOCK * n) return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, m, n, step, WRITES), vector(factors, k, READS),
                                  vector(work, size, WRITES), vector(info, 1, WRITES)};
    return queue(*handle, "cusolver orgqr", EXECUTION_FAILED, operands, [=] {
        Integer rows = m, columns = n, count = k, leading = step, said;
        return with_workspace<T>([&](T* space, Integer* of) {
            return lapack<T>("orgqr", "ungqr", &rows, &columns, &count, a, &leading, factors, space, of, &said);
        }) && report(info, said);
    });
}

// Singular values

template <typename T>
static bool singular_values(char left, char right, int m, int n, T* a, int step, real_of<T>* s, T* u, int step_u,
                            T* vh, int step_vh, int* info) {
    Integer rows = m, columns = n, leading = step, leading_u = step_u, leading_vh = step_vh, said;
    std::vector<real_of<T>> more(5 * (size_t)std::min(m, n) + 1);
    return with_workspace<T>([&](T* space, Integer* of) {
        if constexpr (is_complex<T>)
            return lapack<T>("", "gesvd", &left, &right, &rows, &columns, a, &leading, s, u, &leading_u, vh,
                             &leading_vh, space, of, more.data(), &said);
        else
            return lapack<T>("gesvd", "", &left, &right, &rows, &columns, a, &leading, s, u, &leading_u, vh,
                             &leading_vh, space, of, &said);
    }) && report(info, said);
}
template <typename T>
static int svd(Handle* handle, signed char left, signed char right, int m, int n, T* a, int step, real_of<T>* s, T* u,
               int step_u, T* vh, int step_vh, T* work, int size, real_of<T>*, int* info) {
    bool of_u = left == 'A' || left == 'S', of_vh = right == 'A' || right == 'S';
    if (n < 0 || m < n || step < std::max(1, m) || (of_u && step_u < m) || (of_vh && step_vh < n) ||
        (left == 'O' && right == 'O') || size < BLOCK * (m + n))
        return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, m, n, step, WRITES), vector(s, n, WRITES), vector(work, size, WRITES),
                                  vector(info, 1, WRITES)};
    if (of_u) operands.push_back(matrix(u, m, left == 'A' ? m : n, step_u, WRITES));
    if (of_vh) operands.push_back(matrix(vh, n, n, step_vh, WRITES));
    return queue(*handle, "cusolver gesvd", EXECUTION_FAILED, operands, [=] {
        return singular_values<T>(left, right, m, n, a, step, s, u, std::max(1, step_u), vh, std::max(1, step_vh),
                                  info);
    });
}
template <typename T>
static int svds(Handle* handle, int vectors, int m, int n, T* a, int step, real_of<T>* s, T* u, int step_u, T* v,
                int step_v, T* work, int size, int* info, Options*, int count) {
    int inner = std::min(m, n);
    if (m < 0 || n < 0 || m > 32 || n > 32 || count < 0 || step < std::max(1, m) || (vectors && step_u < m) ||
        (vectors && step_v < n) || size < BLOCK * (m + n))
        return INVALID_VALUE;
    std::vector<Operand> operands{vector(a, (long long)step * n * count, WRITES), vector(s, inner * count, WRITES),
                                  vector(work, size, WRITES), vector(info, count, WRITES)};
    if (vectors) {
        operands.push_back(vector(u, (long long)step_u * m * count, WRITES));
        operands.push_back(vector(v, (long long)step_v * n * count, WRITES));
    }
    return queue(*handle, "cusolver gesvdjBatched", EXECUTION_FAILED, operands, [=] {
        std::vector<T> vh((size_t)n * n + 1);
        char job = vectors ? 'A' : 'N';
        for (int i = 0; i < count; i++) {
            T *turned = v + (size_t)i * step_v * n, *left = u + (size_t)i * step_u * m;
            if (!singular_values<T>(job, job, m, n, a + (size_t)i * step * n, step, s + (size_t)i * inner, left,
                                    std::max(1, step_u), vh.data(), std::max(1, n), info + i))
                return false;
            for (int row = 0; vectors && row < n; row++)
                for (int column = 0; column < n; column++)
                    turned[row + (size_t)column * step_v] = conjugate(vh[column + (size_t)row * n]);
        }
        return true;
    });
}

// Eigenvalues

template <typename T>
static bool eigenvalues(int vectors, int uplo, int n, T* a, int step, real_of<T>* values, int* info) {
    Integer size = n, leading = step, said, of_more = 1 + 5 * size + 2 * size * size, of_whole = 3 + 5 * size;
    std::vector<real_of<T>> more(is_complex<T> ? of_more : 0);
    std::vector<Integer> whole(of_whole);
    return with_workspace<T>([&](T* space, Integer* of) {
        const char *job = &VALUES_VECTORS[vectors], *part = &LOWER_UPPER[uplo];
        if constexpr (is_complex<T>)
            return lapack<T>("", "heevd", job, part, &size, a, &leading, values, space, of, more.data(), &of_more,
                             whole.data(), &of_whole, &said);
        else
            return lapack<T>("syevd", "", job, part, &size, a, &leading, values, space, of, whole.data(), &of_whole,
                             &said);
    }) && report(info, said);
}
template <typename T>
static int eighs(Handle* handle, int vectors, int uplo, int n, T* a, int step, real_of<T>* values, T* work, int size,
                 int* info, Options*, int count) {
    if (vectors < 0 || vectors > 1 || uplo < 0 || uplo > 1 || n < 0 || count < 0 || step < std::max(1, n) ||
        size < BLOCK * n)
        return INVALID_VALUE;
    std::vector<Operand> operands{vector(a, (long long)step * n * count, WRITES), vector(values, n * count, WRITES),
                                  vector(work, size, WRITES), vector(info, count, WRITES)};
    return queue(*handle, "cusolver syevjBatched", EXECUTION_FAILED, operands, [=] {
        for (int i = 0; i < count; i++)
            if (!eigenvalues(vectors, uplo, n, a + (size_t)i * step * n, step, values + (size_t)i * n, info + i))
                return false;
        return true;
    });
}
template <typename T>
static int eigh(Handle* handle, int vectors, int uplo, int n, T* a, int step, real_of<T>* values, void* work,
                size_t size, int* info) {
    if (vectors < 0 || vectors > 1 || uplo < 0 || uplo > 1 || n < 0 || step < std::max(1, n) ||
        size < BLOCK * n * sizeof(T))
        return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, n, n, step, WRITES), vector(values, n, WRITES),
                                  vector((char*)work, (long long)size, WRITES), vector(info, 1, WRITES)};
    return queue(*handle, "cusolver Xsyevd", EXECUTION_FAILED, operands,
                 [=] { return eigenvalues(vectors, uplo, n, a, step, values, info); });
}
// Of any matrix. Of a real one, pairs of complex vectors are two columns, as in LAPACK.
template <typename T>
static int eig(Handle* handle, int vectors, int n, T* a, int step, std::complex<real_of<T>>* values, T* v, int step_v,
               void* work, size_t size, int* info) {
    if (n < 0 || step < std::max(1, n) || (vectors && step_v < n) || size < BLOCK * n * sizeof(T))
        return INVALID_VALUE;
    std::vector<Operand> operands{matrix(a, n, n, step, WRITES), vector(values, n, WRITES),
                                  vector((char*)work, (long long)size, WRITES), vector(info, 1, WRITES)};
    if (vectors) operands.push_back(matrix(v, n, n, step_v, WRITES));
    return queue(*handle, "cusolver Xgeev", EXECUTION_FAILED, operands, [=] {
        Integer order = n, leading = step, leading_v = std::max(1, step_v), one = 1, said;
        std::vector<real_of<T>> real(2 * (size_t)n + 1), imaginary((size_t)n + 1);
        bool done = with_workspace<T>([&](T* space, Integer* of) {
            if constexpr (is_complex<T>)
                return lapack<T>("", "geev", "N", &VALUES_VECTORS[vectors], &order, a, &leading, values, (T*)nullptr,
                                 &one, v, &leading_v, space, of, real.data(), &said);
            else
                return lapack<T>("geev", "", "N", &VALUES_VECTORS[vectors], &order, a, &leading, real.data(),
                                 imaginary.data(), (T*)nullptr, &one, v, &leading_v, space, of, &said);
        });
        for (int i = 0; done && !is_complex<T> && i < n; i++) values[i] = {real[i], imaginary[i]};
        return done && report(info, said);
    });
}

extern "C" {

int cusolverDnCreate(Handle** handle) { return *handle = new Handle{{nullptr}}, SUCCESS; }
int cusolverDnDestroy(Handle* handle) { return delete handle, SUCCESS; }
int cusolverDnSetStream(Handle* handle, cudaStream_t stream) { return handle->stream = stream, SUCCESS; }
int cusolverDnGetStream(Handle* handle, cudaStream_t* stream) { return *stream = handle->stream, SUCCESS; }
int cusolverGetProperty(int which, int* value) {  // of its version: major, minor, patch
    const int version[] = {11, 7, 5};
    if (which < 0 || which > 2) return INVALID_VALUE;
    return *value = version[which], SUCCESS;
}
int cusolverDnCreateParams(Options** options) { return *options = new Options, SUCCESS; }
int cusolverDnDestroyParams(Options* options) { return delete options, SUCCESS; }
int cusolverDnCreateGesvdjInfo(Options** options) { return *options = new Options, SUCCESS; }
int cusolverDnDestroyGesvdjInfo(Options* options) { return delete options, SUCCESS; }
int cusolverDnCreateSyevjInfo(Options** options) { return *options = new Options, SUCCESS; }
int cusolverDnDestroySyevjInfo(Options* options) { return delete options, SUCCESS; }

#define OF_TYPE(letter, T, R, OR, SY)                                                                                  \
    int cusolverDn##letter##getrf_bufferSize(Handle*, int m, int n, T*, int, int* size) {                              \
        return *size = lu_workspace(m, n), SUCCESS;                                                                    \
    }                                                                                                                  \
    int cusolverDn##letter##getrf(Handle* handle, int m, int n, T* a, int step, T* work, int* pivots, int* info) {     \
        return lu(handle, m, n, a, step, work, pivots, info);                                                          \
    }                                                                                                                  \
    int cusolverDn##letter##getrs(Handle* handle, int how, int n, int columns, const T* a, int step,                   \
                                  const int* pivots, T* b, int step_b, int* info) {                                    \
        return lu_solve(handle, how, n, columns, a, step, pivots, b, step_b, info);                                    \
    }                                                                                                                  \
    int cusolverDn##letter##potrf_bufferSize(Handle*, int, int n, T*, int, int* size) {                                \
        return *size = BLOCK * n, SUCCESS;                                                                             \
    }                                                                                                                  \
    int cusolverDn##letter##potrf(Handle* handle, int uplo, int n, T* a, int step, T* work, int size, int* info) {     \
        return cholesky(handle, uplo, n, a, step, work, size, info);                                                   \
    }                                                                                                                  \
    int cusolverDn##letter##potrfBatched(Handle* handle, int uplo, int n, T** all, int step, int* info, int count) {   \
        return choleskys(handle, uplo, n, all, step, info, count);                                                     \
    }                                                                                                                  \
    int cusolverDn##letter##geqrf_bufferSize(Handle*, int, int n, T*, int, int* size) {                                \
        return *size = BLOCK * n, SUCCESS;                                                                             \
    }                                                                                                                  \
    int cusolverDn##letter##geqrf(Handle* handle, int m, int n, T* a, int step, T* factors, T* work, int size,         \
                                  int* info) {                                                                         \
        return reflect(handle, m, n, a, step, factors, work, size, info);                                              \
    }                                                                                                                  \
    int cusolverDn##letter##OR##gqr_bufferSize(Handle*, int, int n, int, const T*, int, const T*, int* size) {         \
        return *size = BLOCK * n, SUCCESS;                                                                             \
    }                                                                                                                  \
    int cusolverDn##letter##OR##gqr(Handle* handle, int m, int n, int k, T* a, int step, const T* factors, T* work,    \
                                    int size, int* info) {                                                             \
        return unfold(handle, m, n, k, a, step, factors, work, size, info);                                            \
    }                                                                                                                  \
    int cusolverDn##letter##gesvd_bufferSize(Handle*, int m, int n, int* size) {                                       \
        return *size = BLOCK * (m + n), SUCCESS;                                                                       \
    }                                                                                                                  \
    int cusolverDn##letter##gesvd(Handle* handle, signed char left, signed char right, int m, int n, T* a, int step,   \
                                  R* s, T* u, int step_u, T* vh, int step_vh, T* work, int size, R* more, int* info) { \
        return svd(handle, left, right, m, n, a, step, s, u, step_u, vh, step_vh, work, size, more, info);             \
    }                                                                                                                  \
    int cusolverDn##letter##gesvdjBatched_bufferSize(Handle*, int, int m, int n, const T*, int, const R*, const T*,    \
                                                     int, const T*, int, int* size, Options*, int) {                   \
        return *size = BLOCK * (m + n), SUCCESS;                                                                       \
    }                                                                                                                  \
    int cusolverDn##letter##gesvdjBatched(Handle* handle, int vectors, int m, int n, T* a, int step, R* s, T* u,       \
                                          int step_u, T* v, int step_v, T* work, int size, int* info,                  \
                                          Options* options, int count) {                                               \
        return svds(handle, vectors, m, n, a, step, s, u, step_u, v, step_v, work, size, info, options, count);        \
    }                                                                                                                  \
    int cusolverDn##letter##SY##evjBatched_bufferSize(Handle*, int, int, int n, const T*, int, const R*, int* size,    \
                                                      Options*, int) {                                                 \
        return *size = BLOCK * n, SUCCESS;                                                                             \
    }                                                                                                                  \
    int cusolverDn##letter##SY##evjBatched(Handle* handle, int vectors, int uplo, int n, T* a, int step, R* values,    \
                                           T* work, int size, int* info, Options* options, int count) {                \
        return eighs(handle, vectors, uplo, n, a, step, values, work, size, info, options, count);                     \
    }
OF_TYPE(S, float, float, or, sy)
OF_TYPE(D, double, double, or, sy)
OF_TYPE(C, complex64, float, un, he)
OF_TYPE(Z, complex128, double, un, he)

// Those whose types are arguments.

static size_t bytes_of(int type, long long n) {
    return BLOCK * (size_t)n * (type == FLOAT ? 4 : type == DOUBLE_COMPLEX ? 16 : 8);
}
int cusolverDnXsyevd_bufferSize(Handle*, Options*, int, int, long long n, int type, const void*, long long, int,
                                const void*, int, size_t* size, size_t* on_host) {
    return *size = bytes_of(type, n), *on_host = 0, SUCCESS;
}
int cusolverDnXsyevd(Handle* handle, Options*, int vectors, int uplo, long long n, int type, void* a, long long step,
                     int of_values, void* values, int compute, void* work, size_t size, void*, size_t, int* info) {
    if (compute != type) return INVALID_VALUE;
#define CASE(kind, T, R, of_real)                                                                                      \
    if (type == kind && of_values == of_real)                                                                          \
        return eigh(handle, vectors, uplo, (int)n, (T*)a, (int)step, (R*)values, work, size, info);
    CASE(FLOAT, float, float, FLOAT)
    CASE(DOUBLE, double, double, DOUBLE)
    CASE(COMPLEX, complex64, float, FLOAT)
    CASE(DOUBLE_COMPLEX, complex128, double, DOUBLE)
#undef CASE
    return INVALID_VALUE;
}
int cusolverDnXgeev_bufferSize(Handle*, Options*, int, int, long long n, int type, const void*, long long, int,
                               const void*, int, const void*, long long, int, const void*, long long, int,
                               size_t* size, size_t* on_host) {
    return *size = bytes_of(type, n), *on_host = bytes_of(type, n), SUCCESS;
}
int cusolverDnXgeev(Handle* handle, Options*, int left, int vectors, long long n, int type, void* a, long long step,
                    int of_values, void* values, int, void*, long long, int of_v, void* v, long long step_v,
                    int compute, void* work, size_t size, void*, size_t on_host, int* info) {
    if (left || compute != type || of_v != type || on_host < bytes_of(type, n)) return INVALID_VALUE;
#define CASE(kind, T, of_complex)                                                                                      \
    if (type == kind && of_values == of_complex)                                                                       \
        return eig(handle, vectors, (int)n, (T*)a, (int)step, (std::complex<real_of<T>>*)values, (T*)v, (int)step_v,   \
                   work, size, info);
    CASE(FLOAT, float, COMPLEX)
    CASE(DOUBLE, double, DOUBLE_COMPLEX)
    CASE(COMPLEX, complex64, COMPLEX)
    CASE(DOUBLE_COMPLEX, complex128, DOUBLE_COMPLEX)
#undef CASE
    return INVALID_VALUE;
}
}
