// CUDA C++ for an ordinary C++ compiler: enough of the language and its built-in functions for the sources that CuPy
// hands to NVRTC. The threads of a block are fibers of one thread; what makes them take turns, and what looks at every
// access to memory, is in source/execution.cpp.

#pragma once
// The standard library's Bessel functions and the like would be half of what each kernel is compiled with.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cfloat>
#include <climits>
#include <math.h>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>

#include <crt/host_defines.h>
#include <vector_functions.h>
#include <vector_types.h>

#include "special.h"

#define __global__
#define __constant__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define warpSize 32
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9

#define RUNTIME __attribute__((no_sanitize("thread"), noinline, unused)) static
// What the driver looks up: everything else that nobody calls is left away (-fwhole-program).
#define LOOKED_UP extern "C" __attribute__((externally_visible))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// The block that is running: source/execution.cpp

namespace simulated {

extern int current, thread_count;
extern char dynamic_shared[];
char* shared(const void* key, size_t size);
void fail(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));
int barrier(int line, bool predicate);
// The lanes of `mask` exchange `size` bytes each: `all` (32 times size) has everybody's afterwards.
void gather(unsigned mask, const void* mine, size_t size, void* all, int line);
unsigned active_lanes();
void give_way();
enum Kind { READ, WRITE, ATOMIC };
void access(const void* address, size_t size, Kind kind);
void fence();

template <typename T> struct Identity { typedef T type; };

}  // namespace simulated

#define SHARED_ARRAY(type, name, dimensions)                                                                           \
    static char name##_site;                                                                                           \
    typedef type name##_type dimensions;                                                                               \
    name##_type& name = *(name##_type*)simulated::shared(&name##_site, sizeof(name##_type))

// Barriers, warps, fences

#define __syncthreads() ((void)simulated::barrier(__LINE__, false))
#define __syncthreads_count(predicate) simulated::barrier(__LINE__, (predicate) != 0)
#define __syncthreads_or(predicate) (simulated::barrier(__LINE__, (predicate) != 0) != 0)
#define __syncthreads_and(predicate) (simulated::barrier(__LINE__, (predicate) != 0) == simulated::thread_count)

template <typename T> RUNTIME T simulated_from(unsigned mask, T value, int source, int line) {
    alignas(16) char all[32 * sizeof(T)];
    simulated::gather(mask, &value, sizeof(T), all, line);
    T result;
    if (!(mask >> source & 1)) simulated::fail("line %d: reads lane %d, which is not in %08x", line, source, mask);
    memcpy(&result, all + source * sizeof(T), sizeof(T));
    return result;
}
// Where the source lies outside the lane's group of `width`, the lane's own value.
template <typename T> RUNTIME T simulated_shuffle(unsigned mask, T value, int how, int by, int width, int line) {
    int lane = simulated::current % 32, first = lane / width * width, source = lane;
    if (how == 0) source = first + (by & (width - 1));
    if (how == 1) source = lane - by < first ? lane : lane - by;
    if (how == 2) source = lane + by >= first + width ? lane : lane + by;
    if (how == 3) source = (lane ^ by) >= first + width ? lane : lane ^ by;
    return simulated_from(mask, value, source, line);
}
#define SHUFFLE_WIDTH(width, ...) width
#define __shfl_sync(mask, value, ...) SHUFFLE_(0, mask, value, __VA_ARGS__, 32)
#define __shfl_up_sync(mask, value, ...) SHUFFLE_(1, mask, value, __VA_ARGS__, 32)
#define __shfl_down_sync(mask, value, ...) SHUFFLE_(2, mask, value, __VA_ARGS__, 32)
#define __shfl_xor_sync(mask, value, ...) SHUFFLE_(3, mask, value, __VA_ARGS__, 32)
#define SHUFFLE_(how, mask, value, by, ...)                                                                            \
    simulated_shuffle(mask, value, how, by, SHUFFLE_WIDTH(__VA_ARGS__, 32), __LINE__)

template <typename T, typename Combine>
RUNTIME T simulated_over(unsigned mask, T value, Combine combine, int line) {
    alignas(16) T all[32];
    simulated::gather(mask, &value, sizeof(T), all, line);
    bool first = true;
    T result = value;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) {
            result = first ? all[lane] : combine(result, all[lane]);
            first = false;
        }
    return result;
}
RUNTIME unsigned simulated_ballot(unsigned mask, bool predicate, int line) {
    unsigned own = (unsigned)predicate << simulated::current % 32;
    return simulated_over(mask, own, [](unsigned a, unsigned b) { return a | b; }, line);
}
template <typename T> RUNTIME unsigned simulated_match(unsigned mask, T value, int line) {
    T all[32];
    simulated::gather(mask, &value, sizeof(T), all, line);
    unsigned same = 0;
    for (int lane = 0; lane < 32; lane++) same |= (unsigned)(mask >> lane & 1 && all[lane] == value) << lane;
    return same;
}
#define __ballot_sync(mask, predicate) simulated_ballot(mask, (predicate) != 0, __LINE__)
#define __any_sync(mask, predicate) (simulated_ballot(mask, (predicate) != 0, __LINE__) != 0)
#define __all_sync(mask, predicate) (simulated_ballot(mask, (predicate) == 0, __LINE__) == 0)
#define __match_any_sync(mask, value) simulated_match(mask, value, __LINE__)
#define REDUCE(mask, value, expression) simulated_over(mask, value, [](auto a, auto b) { return expression; }, __LINE__)
#define __reduce_add_sync(mask, value) REDUCE(mask, value, a + b)
#define __reduce_min_sync(mask, value) REDUCE(mask, value, a < b ? a : b)
#define __reduce_max_sync(mask, value) REDUCE(mask, value, a > b ? a : b)
#define __reduce_and_sync(mask, value) REDUCE(mask, value, a & b)
#define __reduce_or_sync(mask, value) REDUCE(mask, value, a | b)
#define __reduce_xor_sync(mask, value) REDUCE(mask, value, a ^ b)
RUNTIME void simulated_sync_warp(int line, unsigned mask = 0xffffffffu) {
    char none = 0, all[32];
    simulated::gather(mask, &none, 1, all, line);
}
#define __syncwarp(...) simulated_sync_warp(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __activemask() simulated::active_lanes()
RUNTIME void __threadfence() { simulated::fence(); }
RUNTIME void __threadfence_block() {}
RUNTIME void __threadfence_system() { simulated::fence(); }
RUNTIME void __nanosleep(unsigned) { simulated::give_way(); }
RUNTIME void __trap() { simulated::fail("__trap()"); }
RUNTIME long long clock64() {
    static long long now;
    return now++;
}

// Atomic operations: a fiber is never interrupted.

#define ATOMIC_OPERATION(name, expression)                                                                             \
    template <typename T> RUNTIME T name(T* address, typename simulated::Identity<T>::type value) {                    \
        simulated::access(address, sizeof(T), simulated::ATOMIC);                                                      \
        T old = *address;                                                                                              \
        *address = expression;                                                                                         \
        return old;                                                                                                    \
    }
ATOMIC_OPERATION(atomicAdd, old + value)
ATOMIC_OPERATION(atomicSub, old - value)
ATOMIC_OPERATION(atomicMax, old > value ? old : value)
ATOMIC_OPERATION(atomicMin, old < value ? old : value)
ATOMIC_OPERATION(atomicExch, value)
ATOMIC_OPERATION(atomicAnd, old & value)
ATOMIC_OPERATION(atomicOr, old | value)
ATOMIC_OPERATION(atomicXor, old ^ value)
ATOMIC_OPERATION(atomicInc, old >= value ? 0 : old + 1)
ATOMIC_OPERATION(atomicDec, old == 0 || old > value ? value : old - 1)
#undef ATOMIC_OPERATION
template <typename T>
RUNTIME T atomicCAS(T* address, typename simulated::Identity<T>::type expected,
                    typename simulated::Identity<T>::type value) {
    simulated::access(address, sizeof(T), simulated::ATOMIC);
    T old = *address;
    if (old == expected) *address = value;
    return old;
}
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicCAS_system atomicCAS
#define atomicExch_system atomicExch

// Loads and stores with cache hints

template <typename T> static inline T __ldg(const T* address) { return *address; }
template <typename T> static inline T __ldcg(const T* address) { return *address; }
template <typename T> static inline T __ldca(const T* address) { return *address; }
template <typename T> static inline T __ldcs(const T* address) { return *address; }
template <typename T> static inline T __ldlu(const T* address) { return *address; }
template <typename T> static inline T __ldcv(const T* address) { return *address; }
#define STORE(name)                                                                                                    \
    template <typename T> static inline void name(T* address, typename simulated::Identity<T>::type value) {           \
        *address = value;                                                                                              \
    }
STORE(__stcg)
STORE(__stcs)
STORE(__stwb)
STORE(__stwt)
#undef STORE

// Mathematics

#define BITS(name, from, to)                                                                                           \
    static inline to name(from value) {                                                                                \
        to result;                                                                                                     \
        static_assert(sizeof(from) == sizeof(to), "");                                                                 \
        __builtin_memcpy(&result, &value, sizeof result);                                                              \
        return result;                                                                                                 \
    }
BITS(__float_as_uint, float, unsigned)
BITS(__float_as_int, float, int)
BITS(__uint_as_float, unsigned, float)
BITS(__int_as_float, int, float)
BITS(__double_as_longlong, double, long long)
BITS(__longlong_as_double, long long, double)
#undef BITS

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return std::fmin((T)a, (T)b);
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b) {
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return std::fmax((T)a, (T)b);
    return (T)b > (T)a ? (T)b : (T)a;
}

static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
// (glibc declares functions of these names)
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dsub_rn(double x, double y) { return x - y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_ru(float x) { return (int)ceilf(x); }
static inline long long __float2ll_rn(float x) { return (long long)rintf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int bit = 0; bit < 32; bit++) result |= (x >> bit & 1u) << (31 - bit);
    return result;
}
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
static inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    by &= 31;
    return by ? high << by | low >> (32 - by) : high;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    by &= 31;
    return by ? low >> by | high << (32 - by) : low;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int byte = 0; byte < 4; byte++) {
        unsigned which = selector >> 4 * byte & 0xf, value = (unsigned)(both >> 8 * (which & 7)) & 0xff;
        if (which & 8) value = value & 0x80 ? 0xff : 0;
        result |= value << 8 * byte;
    }
    return result;
}

// A kernel's parameters: P for a pointer, then kind and size, separated by blanks.

namespace simulated {

template <typename T> RUNTIME void describe(char*& text) {
    if constexpr (std::is_pointer<T>::value) {
        *text++ = 'P';
        typedef typename std::remove_cv<typename std::remove_pointer<T>::type>::type Element;
        if constexpr (std::is_void<Element>::value) {
            text += sprintf(text, "u1 ");
        } else {
            describe<Element>(text);
        }
    } else {
        char kind = std::is_same<T, bool>::value      ? 'b'
                    : std::is_floating_point<T>::value ? 'f'
                    : std::is_unsigned<T>::value       ? 'u'
                    : std::is_integral<T>::value       ? 'i'
                                                       : 'V';
        text += sprintf(text, "%c%zu ", kind, sizeof(T));
    }
}
template <typename F> struct Entry;
template <typename... P> struct Entry<void (*)(P...)> {
    template <size_t... I>
    RUNTIME void call(void (*function)(P...), void** parameters, std::integer_sequence<size_t, I...>) {
        function(*(typename std::remove_cv<P>::type*)parameters[I]...);
    }
    RUNTIME const char* signature() {
        static char text[4096];
        char* at = text;
        *at = 0;
        (describe<typename std::remove_cv<P>::type>(at), ...);
        return text;
    }
    typedef std::make_integer_sequence<size_t, sizeof...(P)> Numbers;
};

}  // namespace simulated

// `name`: of the symbols; the kernel comes last, as templates have commas.
#define ENTRY(name, most, ...)                                                                                         \
    LOOKED_UP __attribute__((no_sanitize("thread"))) void thread_of_##name(void** parameters) {                        \
        typedef simulated::Entry<decltype(&__VA_ARGS__)> Entry;                                                        \
        Entry::call(&__VA_ARGS__, parameters, Entry::Numbers());                                                       \
    }                                                                                                                  \
    LOOKED_UP const char* signature_of_##name() { return simulated::Entry<decltype(&__VA_ARGS__)>::signature(); }      \
    LOOKED_UP const int most_threads_of_##name = most;

#include "ptx.h"
