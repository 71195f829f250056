// CUDA C++ for an ordinary C++ compiler: enough of the language and its built-in functions to run the kernels of
// engine/kernels/cuda on a CPU, one block after another, the threads of a block as fibers of one thread. A fiber runs
// until it must wait for others (a barrier or an operation of its warp); the order in which fibers take turns is a
// permutation chosen by a seed, so that a missing barrier shows in the numbers under some seed. A barrier or a warp
// operation that not all of its threads reach is an error.
//
// With CHECKED, the compiler's instrumentation for race detection (-fsanitize=thread, without its library) reports all
// accesses to the functions at the end of this file. They know the device's allocations and the block's shared
// memory: an access outside is an error, and so are two accesses to one byte, one of them a write, that neither a
// barrier, nor a warp operation, nor a fence and atomic operations between blocks put into an order.

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csetjmp>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define warpSize 32

#ifdef CHECKED
#define RUNTIME __attribute__((no_sanitize("thread"), noinline, unused)) static
#else
#define RUNTIME __attribute__((noinline, unused)) static
#endif

// Vector types

#define VECTOR(type, element, alignment)                                                                               \
    struct __align__(alignment) type##2 { element x, y; };                                                             \
    struct type##3 { element x, y, z; };                                                                               \
    struct __align__(2 * alignment) type##4 { element x, y, z, w; };                                                   \
    static inline type##2 make_##type##2(element x, element y) { return {x, y}; }                                      \
    static inline type##3 make_##type##3(element x, element y, element z) { return {x, y, z}; }                        \
    static inline type##4 make_##type##4(element x, element y, element z, element w) { return {x, y, z, w}; }
VECTOR(char, signed char, 2)
VECTOR(uchar, unsigned char, 2)
VECTOR(short, short, 4)
VECTOR(ushort, unsigned short, 4)
VECTOR(int, int, 8)
VECTOR(uint, unsigned, 8)
VECTOR(float, float, 8)
#undef VECTOR
struct __align__(16) double2 { double x, y; };
struct __align__(16) longlong2 { long long x, y; };
struct __align__(16) ulonglong2 { unsigned long long x, y; };
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

// The block that is running

namespace simulated {

const int MOST_THREADS = 1024;
const size_t STACK = 256 << 10, STATIC_SHARED = 48 << 10, DYNAMIC_SHARED = 227 << 10;
const int MOST_SITES = 256;

enum Status { FRESH, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    jmp_buf at;
    bool made;
};
struct Thread {
    Status status;
    Fiber* fiber;
    int line;
    unsigned mask;  // of the warp operation it waits for, and what it exchanges there
    const void* mine;
    void* all;
    size_t size;
};

static Thread threads[MOST_THREADS];
static int order[MOST_THREADS], thread_count, current, next_fresh;
static Fiber fibers[MOST_THREADS], *idle[MOST_THREADS], *running;
static int idle_count;
static int in_warp[MOST_THREADS / 32];  // lanes that wait for a warp operation
static unsigned warp_clock[MOST_THREADS / 32], barrier_clock;
static int arrived, predicates, predicates_of_last;
static char* stacks;
static jmp_buf scheduler;
static char message[512];
static void (*kernel)();
static long long block_number;

// Shared memory: the arrays of fixed size, each at its own place with a gap after it, and the dynamic one.
struct Site {
    const void* key;
    size_t offset, size;
};
static Site sites[MOST_SITES];
static int site_count;
static size_t static_used, dynamic_size;
alignas(128) static char static_shared[2 * STATIC_SHARED];
alignas(128) static char dynamic_shared[DYNAMIC_SHARED];

RUNTIME __attribute__((noreturn, format(printf, 1, 2))) void fail(const char* format, ...) {
    int length = snprintf(message, sizeof message, "block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x, blockIdx.y,
                          blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    va_list rest;
    va_start(rest, format);
    vsnprintf(message + length, sizeof message - length, format, rest);
    va_end(rest);
    _longjmp(scheduler, 2);
}

RUNTIME void become(int thread) {
    current = thread;
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
}

RUNTIME void to_scheduler() {
    if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}

RUNTIME void yield() {
    threads[current].fiber = running;
    to_scheduler();
}

// A fiber runs threads to their ends, one after another, as long as there are fresh ones.
RUNTIME void fiber_main() {
    for (;;) {
        while (next_fresh < thread_count) {
            become(order[next_fresh++]);
            kernel();
            threads[current].status = DONE;
        }
        idle[idle_count++] = running;
        to_scheduler();
    }
}

RUNTIME void resume(Fiber* fiber) {
    running = fiber;
    if (fiber->made) _longjmp(fiber->at, 1);
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (fiber - fibers) * STACK;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, fiber_main, 0);
    fiber->made = true;
    setcontext(&context);
}

RUNTIME const char* name_of(Status status) {
    return status == AT_BARRIER ? "waits at a barrier" : status == AT_WARP ? "waits in a warp operation" : "has ended";
}

// All threads of one block, to the end. Returns whether that was reached.
RUNTIME bool run_block() {
    for (int t = 0; t < thread_count; t++) threads[t] = Thread{};
    idle_count = 0;
    for (int f = thread_count - 1; f >= 0; f--) idle[idle_count++] = &fibers[f];
    memset(in_warp, 0, sizeof in_warp);
    arrived = predicates = next_fresh = 0;
    memset(static_shared, 0xff, static_used);
    memset(dynamic_shared, 0xff, dynamic_size);
    static volatile int turn;
    static volatile bool progress;
    turn = 0;
    progress = false;
    int how = _setjmp(scheduler);
    if (how == 2) {
        for (Fiber& fiber : fibers) fiber.made = false;
        return false;
    }
    for (;;) {
        if (turn == thread_count) {
            if (!progress) break;
            turn = 0;
            progress = false;
        }
        int t = order[turn];
        turn = turn + 1;
        if (threads[t].status == FRESH && next_fresh < thread_count) {
            progress = true;
            resume(idle[--idle_count]);
        } else if (threads[t].status == READY) {
            progress = true;
            become(t);
            resume(threads[t].fiber);
        }
    }
    for (int t = 0; t < thread_count; t++) {
        if (threads[t].status == DONE) continue;
        int other = 0;
        while (other < thread_count && threads[other].status == threads[t].status &&
               threads[other].line == threads[t].line)
            other++;
        become(t);
        if (other == thread_count) other = t;
        snprintf(message, sizeof message,
                 "block (%u, %u, %u): divergence: thread %d %s (line %d) with lanes %08x, thread %d %s (line %d)",
                 blockIdx.x, blockIdx.y, blockIdx.z, t, name_of(threads[t].status), threads[t].line, threads[t].mask,
                 other, name_of(threads[other].status), threads[other].line);
        for (Fiber& fiber : fibers) fiber.made = false;
        return false;
    }
    return true;
}

RUNTIME int barrier(int line, bool predicate) {
    Thread& own = threads[current];
    own.status = AT_BARRIER;
    own.line = line;
    predicates += predicate;
    if (++arrived == thread_count) {
        for (int t = 0; t < thread_count; t++)
            if (threads[t].line != line)
                fail("divergence: barrier in line %d, thread %d at that in line %d", line, t, threads[t].line);
        for (int t = 0; t < thread_count; t++) threads[t].status = READY;
        predicates_of_last = predicates;
        arrived = predicates = 0;
        barrier_clock++;
    }
    yield();
    return predicates_of_last;
}

// The lanes of `mask` exchange `size` bytes each: `all` (32 times size) has everybody's afterwards.
RUNTIME void gather(unsigned mask, const void* mine, size_t size, void* all, int line) {
    int lane = current % 32, warp = current / 32;
    Thread& own = threads[current];
    if (!(mask >> lane & 1)) fail("line %d: lane %d is not in its own mask %08x", line, lane, mask);
    own.status = AT_WARP;
    own.line = line;
    own.mask = mask;
    own.mine = mine;
    own.all = all;
    own.size = size;
    bool complete = ++in_warp[warp] >= __builtin_popcount(mask);
    for (int other = 0; other < 32 && complete; other++) {
        if (!(mask >> other & 1)) continue;
        int t = warp * 32 + other;
        if (t >= thread_count) fail("line %d: mask %08x names lanes that the block does not have", line, mask);
        complete = threads[t].status == AT_WARP && threads[t].mask == mask;
        if (complete && threads[t].size != size) fail("line %d: lanes exchange values of different sizes", line);
    }
    if (complete) {
        static char together[32 * 256];
        if (size > 256) fail("line %d: more than 256 bytes a lane", line);
        for (int other = 0; other < 32; other++)
            if (mask >> other & 1) memcpy(together + other * size, threads[warp * 32 + other].mine, size);
        for (int other = 0; other < 32; other++)
            if (mask >> other & 1) {
                Thread& thread = threads[warp * 32 + other];
                memcpy(thread.all, together, 32 * size);
                thread.status = READY;
                in_warp[warp]--;
            }
        warp_clock[warp]++;
    }
    yield();
}

// The place of a shared array: the same for all threads of a block.
RUNTIME char* shared(const void* key, size_t size) {
    for (int s = 0; s < site_count; s++)
        if (sites[s].key == key) return static_shared + sites[s].offset;
    size_t total = 0;
    for (int s = 0; s < site_count; s++) total += sites[s].size;
    if (total + size > STATIC_SHARED) fail("more than 48 KiB of shared arrays of fixed size");
    if (site_count == MOST_SITES) fail("more than %d shared arrays", MOST_SITES);
    sites[site_count++] = Site{key, static_used, size};
    char* place = static_shared + static_used;
    static_used = (static_used + size + 64 + 127) / 128 * 128;
    if (static_used > sizeof static_shared) fail("shared arrays with the gaps between them do not fit");
    memset(place, 0xff, size);
    return place;
}

enum Kind { READ, WRITE, ATOMIC };
#ifdef CHECKED
RUNTIME void access(const void* address, size_t size, Kind kind);
RUNTIME void fence();
#else
static inline void access(const void*, size_t, Kind) {}
static inline void fence() {}
#endif

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
RUNTIME unsigned __activemask() {
    unsigned mask = 0;
    for (int lane = 0, t = simulated::current / 32 * 32; lane < 32 && t < simulated::thread_count; lane++, t++)
        mask |= (unsigned)(simulated::threads[t].status != simulated::DONE) << lane;
    return mask;
}
RUNTIME void __threadfence() { simulated::fence(); }
RUNTIME void __threadfence_block() {}
RUNTIME void __threadfence_system() { simulated::fence(); }
RUNTIME void __nanosleep(unsigned) {
    simulated::threads[simulated::current].status = simulated::READY;
    simulated::yield();
}
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

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
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

// Checks of every access

namespace simulated {

struct Region {
    char* start;
    long long size;
};
static Region* regions;
static int region_count;

#ifdef CHECKED

struct Access {
    int thread;  // 1 more than its number; 0: none
    unsigned barriers, warps;
    long long block, time;
    bool atomic;
};
struct Shadow {
    Access write, read;
};
static Shadow *static_shadow, *dynamic_shadow, **region_shadows;
static long long now, *fences, *acquisitions;  // of each block, the time of its last fence and atomic operation

extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

RUNTIME bool ordered(const Access& before, bool atomic) {
    if (!before.thread || (before.atomic && atomic)) return true;
    if (before.block != block_number) {
        long long fence = fences[before.block];
        return fence > before.time && acquisitions[block_number] > fence;
    }
    int other = before.thread - 1;
    if (other == current || before.barriers != barrier_clock) return true;
    return other / 32 == current / 32 && before.warps != warp_clock[current / 32];
}

RUNTIME void check(Shadow& shadow, Kind kind, const char* what, long long offset) {
    Access own{current + 1, barrier_clock, warp_clock[current / 32], block_number, now, kind == ATOMIC};
    const char* names[] = {"reads", "writes", "atomically writes"};
    if (!ordered(shadow.write, kind == ATOMIC))
        fail("race: %s byte %lld of %s, which thread %d of block %lld has written", names[kind], offset, what,
             shadow.write.thread - 1, shadow.write.block);
    if (kind != READ && !ordered(shadow.read, kind == ATOMIC))
        fail("race: %s byte %lld of %s, which thread %d of block %lld has read", names[kind], offset, what,
             shadow.read.thread - 1, shadow.read.block);
    if (kind == READ) {
        // keep the reader that a later writer is least likely to be ordered with: another thread than this one
        if (!shadow.read.thread || ordered(shadow.read, false)) shadow.read = own;
    } else {
        shadow.write = own;
    }
}

RUNTIME void access(const void* address, size_t size, Kind kind) {
    char* at = (char*)address;
    if (at >= stacks && at < stacks + MOST_THREADS * STACK) return;
    now++;
    if (kind == ATOMIC) acquisitions[block_number] = now;
    if (at >= static_shared && at < static_shared + sizeof static_shared) {
        for (int s = 0; s < site_count; s++) {
            long long offset = at - static_shared - sites[s].offset;
            if (offset < 0 || offset + (long long)size > (long long)sites[s].size) continue;
            for (size_t i = 0; i < size; i++)
                check(static_shadow[at - static_shared + i], kind, "shared memory", offset + i);
            return;
        }
        fail("%zu bytes between the shared arrays", size);
    }
    if (at >= dynamic_shared && at < dynamic_shared + sizeof dynamic_shared) {
        long long offset = at - dynamic_shared;
        if (offset + size > dynamic_size)
            fail("bytes %lld to %lld of %zu of dynamic shared memory", offset, offset + (long long)size, dynamic_size);
        for (size_t i = 0; i < size; i++) check(dynamic_shadow[offset + i], kind, "dynamic shared memory", offset + i);
        return;
    }
    if (at >= __ehdr_start && at < _end) return;
    for (int r = 0; r < region_count; r++) {
        long long offset = at - regions[r].start;
        if (offset < 0 || offset + (long long)size > regions[r].size) continue;
        for (size_t i = 0; i < size; i++) check(region_shadows[r][offset + i], kind, "an allocation", offset + i);
        return;
    }
    char nearest[96] = "";
    for (int r = 0; r < region_count; r++) {
        long long offset = at - regions[r].start;
        if (offset > -4096 && offset < regions[r].size + 4096)
            snprintf(nearest, sizeof nearest, ": byte %lld of %lld", offset, regions[r].size);
    }
    fail("%s %zu bytes outside all allocations%s", kind == READ ? "reads" : "writes", size, nearest);
}

RUNTIME void fence() { fences[block_number] = ++now; }

#endif

// A kernel's parameters: P for a pointer, then kind and size, separated by blanks.
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
static void** parameters;
template <typename F> struct Entry;
template <typename... P> struct Entry<void (*)(P...)> {
    template <size_t... I> RUNTIME void call(void (*function)(P...), std::integer_sequence<size_t, I...>) {
        function(*(typename std::remove_cv<P>::type*)parameters[I]...);
    }
    RUNTIME const char* signature() {
        static char text[1024];
        char* at = text;
        *at = 0;
        (describe<typename std::remove_cv<P>::type>(at), ...);
        return text;
    }
    typedef std::make_integer_sequence<size_t, sizeof...(P)> Numbers;
};

RUNTIME unsigned random(unsigned long long& state) {  // splitmix64
    state += 0x9e3779b97f4a7c15ull;
    unsigned long long z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (unsigned)(z >> 32);
}
RUNTIME void permute(long long count, unsigned long long seed, int* to) {
    for (long long i = 0; i < count; i++) to[i] = (int)i;
    if (!seed) return;
    for (long long i = count - 1; i > 0; i--) {
        long long other = random(seed) % (i + 1);
        int value = to[i];
        to[i] = to[other];
        to[other] = value;
    }
}

// Runs a grid. seed: 0 for threads and blocks in their order, else a permutation. Returns what went wrong, or NULL.
RUNTIME const char* launch(void (*function)(), void** arguments, const unsigned* size, size_t shared_size,
                           unsigned long long seed, Region* allocations, int allocation_count) {
    kernel = function;
    parameters = arguments;
    gridDim.x = size[0], gridDim.y = size[1], gridDim.z = size[2];
    blockDim.x = size[3], blockDim.y = size[4], blockDim.z = size[5];
    thread_count = (int)(blockDim.x * blockDim.y * blockDim.z);
    dynamic_size = shared_size;
    regions = allocations;
    region_count = allocation_count;
    site_count = 0;
    static_used = 0;
    if (!stacks)
        stacks = (char*)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    long long blocks = (long long)gridDim.x * gridDim.y * gridDim.z;
    int* block_order = (int*)malloc(blocks * sizeof(int));
    permute(thread_count, seed, order);
    permute(blocks, seed, block_order);
#ifdef CHECKED
    fences = (long long*)calloc(blocks, sizeof(long long));
    acquisitions = (long long*)calloc(blocks, sizeof(long long));
    region_shadows = (Shadow**)calloc(region_count + 1, sizeof(Shadow*));
    for (int r = 0; r < region_count; r++) region_shadows[r] = (Shadow*)calloc(regions[r].size, sizeof(Shadow));
    static_shadow = (Shadow*)malloc(sizeof static_shared * sizeof(Shadow));
    dynamic_shadow = (Shadow*)malloc(sizeof dynamic_shared * sizeof(Shadow));
#endif
    bool ended = true;
    for (long long b = 0; b < blocks && ended; b++) {
        block_number = block_order[b];
        blockIdx.x = (unsigned)(block_number % gridDim.x);
        blockIdx.y = (unsigned)(block_number / gridDim.x % gridDim.y);
        blockIdx.z = (unsigned)(block_number / ((long long)gridDim.x * gridDim.y));
#ifdef CHECKED
        memset(static_shadow, 0, sizeof static_shared * sizeof(Shadow));
        memset(dynamic_shadow, 0, dynamic_size * sizeof(Shadow));
#endif
        ended = run_block();
    }
    free(block_order);
#ifdef CHECKED
    for (int r = 0; r < region_count; r++) free(region_shadows[r]);
    free(region_shadows);
    free(static_shadow);
    free(dynamic_shadow);
    free(fences);
    free(acquisitions);
#endif
    return ended ? nullptr : message;
}

}  // namespace simulated

#ifdef CHECKED
#define HOOK extern "C" __attribute__((no_sanitize("thread"), visibility("hidden"))) void
#define OF_SIZE(size)                                                                                                  \
    HOOK __tsan_read##size(void* at) { simulated::access(at, size, simulated::READ); }                                 \
    HOOK __tsan_write##size(void* at) { simulated::access(at, size, simulated::WRITE); }                               \
    HOOK __tsan_unaligned_read##size(void* at) { simulated::access(at, size, simulated::READ); }                       \
    HOOK __tsan_unaligned_write##size(void* at) { simulated::access(at, size, simulated::WRITE); }                     \
    HOOK __tsan_volatile_read##size(void* at) { simulated::access(at, size, simulated::READ); }                        \
    HOOK __tsan_volatile_write##size(void* at) { simulated::access(at, size, simulated::WRITE); }
OF_SIZE(1)
OF_SIZE(2)
OF_SIZE(4)
OF_SIZE(8)
OF_SIZE(16)
#undef OF_SIZE
HOOK __tsan_read_range(void* at, unsigned long size) { simulated::access(at, size, simulated::READ); }
HOOK __tsan_write_range(void* at, unsigned long size) { simulated::access(at, size, simulated::WRITE); }
HOOK __tsan_vptr_update(void**, void*) {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}
HOOK __tsan_init() {}
// -fsanitize=alignment,bounds: both are told the place in the source first
struct Place {
    const char* file;
    unsigned line, column;
};
HOOK __ubsan_handle_type_mismatch_v1(Place* place, void* at) {
    simulated::fail("line %u: misaligned address %p", place->line, at);
}
HOOK __ubsan_handle_out_of_bounds(Place* place, void*) {
    simulated::fail("line %u: index outside an array", place->line);
}
#undef HOOK
#endif

#define ENTRY(name)                                                                                                    \
    RUNTIME void name##_of_thread() {                                                                                  \
        typedef simulated::Entry<decltype(&name)> Entry;                                                               \
        Entry::call(&name, Entry::Numbers());                                                                          \
    }                                                                                                                  \
    extern "C" const char* signature_of_##name() { return simulated::Entry<decltype(&name)>::signature(); }            \
    extern "C" const char* launch_##name(void** arguments, const unsigned* size, size_t shared,                        \
                                         unsigned long long seed, simulated::Region* regions, int count) {             \
        return simulated::launch(name##_of_thread, arguments, size, shared, seed, regions, count);                     \
    }
