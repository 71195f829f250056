// cuBLAS's LU of many small matrices, whose addresses are in device memory, by LAPACK.

#include "library.h"

using namespace driver;

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

template <typename T>
static int factor(OnStream* handle, int n, T** all, int step, int* pivots, int* info, int count) {
    if (n < 0 || count < 0 || step < std::max(1, n)) return INVALID_VALUE;
    std::vector<Operand> operands{vector(all, count, READS), vector(info, count, WRITES)};
    if (pivots) operands.push_back(vector(pivots, (long long)n * count, WRITES));
    return queue(*handle, "cublas getrfBatched", EXECUTION_FAILED, operands, [=] {
        if (!pivots) return problem("cublas getrfBatched: without pivoting, which is not there"), false;
        std::vector<Integer> wide((size_t)n + 1);
        for (int i = 0; i < count; i++) {
            Integer size = n, leading = step, said;
            if (!touched(matrix(all[i], n, n, step, WRITES), "cublas getrfBatched") ||
                !lapack<T>("getrf", "getrf", &size, &size, all[i], &leading, wide.data(), &said))
                return false;
            std::copy_n(wide.begin(), n, pivots + (size_t)i * n);
            info[i] = (int)said;
        }
        return true;
    });
}

// Solves with factors of `factor`'s; `said` is of the arguments and on the host.
template <typename T>
static int solve(OnStream* handle, int how, int n, int columns, const T* const* all, int step, const int* pivots,
                 T* const* sides, int step_b, int* said, int count) {
    *said = how < 0 || how > 2 ? -1 : n < 0 ? -2 : columns < 0 ? -3 : step < std::max(1, n) ? -5
            : step_b < std::max(1, n) ? -8 : count < 0 ? -10 : 0;
    if (*said) return INVALID_VALUE;
    std::vector<Operand> operands{vector(all, count, READS), vector(sides, count, READS),
                                  vector(pivots, (long long)n * count, READS)};
    return queue(*handle, "cublas getrsBatched", EXECUTION_FAILED, operands, [=] {
        for (int i = 0; i < count; i++) {
            Integer size = n, right = columns, leading = step, leading_b = step_b, info;
            std::vector<Integer> wide(pivots + (size_t)i * n, pivots + (size_t)(i + 1) * n);
            if (!touched(matrix(all[i], n, n, step, READS), "cublas getrsBatched") ||
                !touched(matrix(sides[i], n, columns, step_b, WRITES), "cublas getrsBatched") ||
                !lapack<T>("getrs", "getrs", &"NTC"[how], &size, &right, all[i], &leading, wide.data(), sides[i],
                           &leading_b, &info))
                return false;
        }
        return true;
    });
}

template <typename T>
static int invert(OnStream* handle, int n, const T* const* all, int step, const int* pivots, T* const* results,
                  int step_c, int* info, int count) {
    if (n < 0 || count < 0 || step < std::max(1, n) || step_c < std::max(1, n)) return INVALID_VALUE;
    std::vector<Operand> operands{vector(all, count, READS), vector(results, count, READS),
                                  vector(pivots, (long long)n * count, READS), vector(info, count, WRITES)};
    return queue(*handle, "cublas getriBatched", EXECUTION_FAILED, operands, [=] {
        for (int i = 0; i < count; i++) {
            Integer size = n, leading = step_c, said;
            std::vector<Integer> wide(pivots + (size_t)i * n, pivots + (size_t)(i + 1) * n);
            if (!touched(matrix(all[i], n, n, step, READS), "cublas getriBatched") ||
                !touched(matrix(results[i], n, n, step_c, WRITES), "cublas getriBatched"))
                return false;
            for (int column = 0; column < n; column++)
                std::copy_n(all[i] + (size_t)column * step, n, results[i] + (size_t)column * step_c);
            bool done = with_workspace<T>([&](T* space, Integer* of) {
                return lapack<T>("getri", "getri", &size, results[i], &leading, wide.data(), space, of, &said);
            });
            if (!done) return false;
            info[i] = (int)said;
        }
        return true;
    });
}

extern "C" {

#define OF_TYPE(letter, T)                                                                                             \
    int cublas##letter##getrfBatched(OnStream* handle, int n, T** all, int step, int* pivots, int* info, int count) {  \
        return factor(handle, n, all, step, pivots, info, count);                                                      \
    }                                                                                                                  \
    int cublas##letter##getrsBatched(OnStream* handle, int how, int n, int columns, const T** all, int step,           \
                                     const int* pivots, T** sides, int step_b, int* said, int count) {                 \
        return solve(handle, how, n, columns, all, step, pivots, sides, step_b, said, count);                          \
    }                                                                                                                  \
    int cublas##letter##getriBatched(OnStream* handle, int n, const T** all, int step, const int* pivots, T** results, \
                                     int step_c, int* info, int count) {                                               \
        return invert(handle, n, all, step, pivots, results, step_c, info, count);                                     \
    }
OF_TYPE(S, float)
OF_TYPE(D, double)
OF_TYPE(C, complex64)
OF_TYPE(Z, complex128)
}
