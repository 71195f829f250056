// A grid on the CPU, one block after another, the threads of a block as fibers of one thread. A fiber runs until it must
// wait for others (a barrier or an operation of its warp); the order in which fibers and blocks take turns is a
// permutation chosen by a seed, so that a missing barrier shows in the numbers under some seed. A barrier or a warp
// operation that not all of its threads reach is an error.
//
// The compiler's instrumentation for race detection (-fsanitize=thread, without its library) reports all accesses to the
// functions at the end of this file. An access outside of shared memory and of all allocations is an error, and so is
// one that no event orders with other work's (memory.cpp). While `checks` is on, so are two accesses within the grid to
// one byte, one of them a write, that neither a barrier, nor a warp operation, nor a fence and atomic operations between
// blocks put into an order.

#include "execution.h"
#include "state.h"

#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace simulated {

const int MOST_THREADS = 1024;
const size_t STACK = 256 << 10, STATIC_SHARED = 48 << 10, DYNAMIC_SHARED = 227 << 10;
const int MOST_SITES = 256;

enum Status { FRESH, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    jmp_buf at;
    bool made;
};
// cp.async: what one thread asked for, in the groups that it closed, and since.
struct Copy {
    char* target;
    const char* source;
    size_t size;
};
typedef std::vector<Copy> Copies;
struct Thread {
    Status status;
    Fiber* fiber;
    int line;
    unsigned mask;  // of the warp operation it waits for, and what it exchanges there
    const void* mine;
    void* all;
    size_t size;
    std::vector<Copies> groups;
    Copies open;
};

enum Kind { READ, WRITE, ATOMIC };
void access(const void* address, size_t size, Kind kind);
void fail(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static Thread threads[MOST_THREADS];
int current, thread_count;
static int order[MOST_THREADS], next_fresh;
static Fiber fibers[MOST_THREADS], *idle[MOST_THREADS], *running;
static int idle_count;
static int in_warp[MOST_THREADS / 32];  // lanes that wait for a warp operation
static unsigned warp_clock[MOST_THREADS / 32], barrier_clock;
static bool ended_arrive;
static int arrived, predicates, predicates_of_last;
static char* stacks;
static jmp_buf scheduler;
static char message[512];
static const char* name;
static void (*kernel)(void**);
static void** parameters;
static long long block_number;
static unsigned long long launches;

// Shared memory: the arrays of fixed size, each at its own place with a gap after it, and the dynamic one.
struct Site {
    const void* key;
    size_t offset, size;
};
static Site sites[MOST_SITES];
static int site_count;
static size_t static_used, dynamic_size;
alignas(128) char static_shared[2 * STATIC_SHARED];
alignas(128) char dynamic_shared[DYNAMIC_SHARED];

void fail(const char* format, ...) {
    int length = snprintf(message, sizeof message, "%s: block (%u, %u, %u), thread (%u, %u, %u): ",
                          name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    va_list rest;
    va_start(rest, format);
    vsnprintf(message + length, sizeof message - length, format, rest);
    va_end(rest);
    _longjmp(scheduler, 2);
}

static void finish_copies(Copies& group);
void wait_for_copies(int pending);

static void become(int thread) {
    current = thread;
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
}

static void to_scheduler() {
    if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}

static void yield() {
    threads[current].fiber = running;
    to_scheduler();
}

// A fiber runs threads to their ends, one after another, as long as there are fresh ones.
static void fiber_main() {
    for (;;) {
        while (next_fresh < thread_count) {
            become(order[next_fresh++]);
            kernel(parameters);
            wait_for_copies(0);
            finish_copies(threads[current].open);
            threads[current].status = DONE;
        }
        idle[idle_count++] = running;
        to_scheduler();
    }
}

static void resume(Fiber* fiber) {
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

static const char* name_of(Status status) {
    return status == AT_BARRIER ? "waits at a barrier" : status == AT_WARP ? "waits in a warp operation" : "has ended";
}

// A device counts threads that have ended as arrived, and CuPy's kernels need that; this project's do not. Returns
// whether threads go on.
static bool release_barrier() {
    if (!ended_arrive || !arrived) return false;
    for (int t = 0; t < thread_count; t++)
        if (threads[t].status == AT_WARP) return false;
    for (int t = 0; t < thread_count; t++)
        if (threads[t].status == AT_BARRIER) threads[t].status = READY;
    predicates_of_last = predicates;
    arrived = predicates = 0;
    barrier_clock++;
    return true;
}

// All threads of one block, to the end. Returns whether that was reached.
static bool run_block() {
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
            if (!progress && !release_barrier()) break;
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
                 "%s: block (%u, %u, %u): divergence: thread %d %s (line %d) with lanes %08x, thread %d %s (line %d)",
                 name, blockIdx.x, blockIdx.y, blockIdx.z, t, name_of(threads[t].status), threads[t].line, threads[t].mask,
                 other, name_of(threads[other].status), threads[other].line);
        for (Fiber& fiber : fibers) fiber.made = false;
        return false;
    }
    return true;
}

int barrier(int line, bool predicate) {
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
void gather(unsigned mask, const void* mine, size_t size, void* all, int line) {
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
char* shared(const void* key, size_t size) {
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


unsigned active_lanes() {
    unsigned mask = 0;
    for (int lane = 0, t = current / 32 * 32; lane < 32 && t < thread_count; lane++, t++)
        mask |= (unsigned)(threads[t].status != DONE) << lane;
    return mask;
}

void give_way() {
    threads[current].status = READY;
    yield();
}

// Asynchronous copies: done when their thread waits, not before, so that a missing wait shows.

static void finish_copies(Copies& group) {
    for (const Copy& copy : group) {
        access(copy.target, copy.size, WRITE);
        if (copy.source) {
            access(copy.source, copy.size, READ);
            memcpy(copy.target, copy.source, copy.size);
        } else {
            memset(copy.target, 0, copy.size);
        }
    }
    group.clear();
}
// No source: zeros.
void begin_copy(char* target, const char* source, size_t size) {
    if ((uintptr_t)target % size || (uintptr_t)source % size) fail("cp.async of a misaligned address");
    threads[current].open.push_back(Copy{target, source, size});
}
void close_copies() {
    threads[current].groups.push_back(threads[current].open);
    threads[current].open.clear();
}
void wait_for_copies(int pending) {
    auto& groups = threads[current].groups;
    while ((int)groups.size() > pending) {
        finish_copies(groups.front());
        groups.erase(groups.begin());
    }
}

// Checks of every access

struct Access {
    int thread;  // 1 more than its number; 0: none
    unsigned barriers, warps;
    long long block, time;
    bool atomic;
};
struct Shadow {
    Access write, read;
};
static bool checks;
static unsigned long long seed;
static Shadow *static_shadow, *dynamic_shadow;
static std::map<driver::Allocation*, Shadow*> shadows;
static long long now;
static std::vector<long long> fences, acquisitions;  // of each block, the time of its last fence and atomic operation
static const char *own_start, *own_end;              // the module's constants and variables

static bool ordered(const Access& before, bool atomic) {
    if (!before.thread || (before.atomic && atomic)) return true;
    if (before.block != block_number) {
        long long fence = fences[before.block];
        return fence > before.time && acquisitions[block_number] > fence;
    }
    int other = before.thread - 1;
    if (other == current || before.barriers != barrier_clock) return true;
    return other / 32 == current / 32 && before.warps != warp_clock[current / 32];
}

static void check(Shadow* shadow, size_t size, Kind kind, const char* what, size_t offset) {
    Access own{current + 1, barrier_clock, warp_clock[current / 32], block_number, now, kind == ATOMIC};
    const char* names[] = {"reads", "writes", "atomically writes"};
    for (size_t byte = offset; byte < offset + size; byte++) {
        Shadow& before = shadow[byte];
        if (!ordered(before.write, kind == ATOMIC))
            fail("race: %s byte %zu of %s, which thread %d of block %lld has written", names[kind], byte, what,
                 before.write.thread - 1, before.write.block);
        if (kind != READ && !ordered(before.read, kind == ATOMIC))
            fail("race: %s byte %zu of %s, which thread %d of block %lld has read", names[kind], byte, what,
                 before.read.thread - 1, before.read.block);
        if (kind != READ)
            before.write = own;
        else if (!before.read.thread || ordered(before.read, false))
            before.read = own;  // the reader that a later writer is least likely to be ordered with stays
    }
}

static Shadow* new_shadow(size_t size) {
    return (Shadow*)mmap(nullptr, size * sizeof(Shadow), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void access(const void* address, size_t size, Kind kind) {
    char* at = (char*)address;
    if (at >= stacks && at < stacks + MOST_THREADS * STACK) return;
    now++;
    if (kind == ATOMIC && checks) acquisitions[block_number] = now;
    if (at >= static_shared && at < static_shared + sizeof static_shared) {
        for (int s = 0; s < site_count; s++) {
            size_t offset = at - static_shared - sites[s].offset;
            if (offset >= sites[s].size || offset + size > sites[s].size) continue;
            if (checks) check(static_shadow + sites[s].offset, size, kind, "shared memory", offset);
            return;
        }
        fail("%zu bytes between the shared arrays", size);
    }
    if (at >= dynamic_shared && at < dynamic_shared + sizeof dynamic_shared) {
        size_t offset = at - dynamic_shared;
        if (offset + size > dynamic_size)
            fail("bytes %zu to %zu of %zu of dynamic shared memory", offset, offset + size, dynamic_size);
        if (checks) check(dynamic_shadow, size, kind, "dynamic shared memory", offset);
        return;
    }
    if ((at >= own_start && at < own_end) || (at >= __ehdr_start && at < _end)) return;  // threadIdx and the like
    static driver::Allocation* last[2];
    static unsigned long long last_of;
    if (last_of != launches) last[0] = last[1] = nullptr, last_of = launches;
    driver::Allocation* found = last[0];
    if (!found || at < found->start || at >= found->start + found->size) {
        std::swap(last[0], last[1]);
        found = last[0];
        if (!found || at < found->start || at >= found->start + found->size) found = last[0] = driver::find(at);
    }
    const char* did = kind == READ ? "reads" : "writes";
    if (!found) fail("%s %zu bytes outside all allocations, at %p", did, size, address);
    size_t offset = at - found->start;
    if (offset + size > found->size) fail("%s bytes %zu to %zu of an allocation of %zu", did, offset, offset + size, found->size);
    if (!driver::touch(*found, offset, size, kind != READ)) fail("%s", driver::last_problem.c_str());
    if (checks) {
        Shadow*& shadow = shadows[found];
        if (!shadow) shadow = new_shadow(found->size);
        check(shadow, size, kind, "an allocation", offset);
    }
}

// One that the compiler takes to be a multiple of its size.
static void aligned(const void* address, size_t size, Kind kind) {
    if ((uintptr_t)address % size) fail("misaligned address %p", address);
    access(address, size, kind);
}

void fence() {
    if (checks) fences[block_number] = ++now;
}

static unsigned random(unsigned long long& state) {  // splitmix64
    state += 0x9e3779b97f4a7c15ull;
    unsigned long long z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (unsigned)(z >> 32);
}
static void permute(int count, int* to) {
    unsigned long long state = seed;
    for (int i = 0; i < count; i++) to[i] = i;
    for (int i = count - 1; i > 0 && seed; i--) std::swap(to[i], to[random(state) % (i + 1)]);
}

static int own_module(dl_phdr_info* module, size_t, void* inside) {
    for (int i = 0; i < module->dlpi_phnum; i++) {
        auto& part = module->dlpi_phdr[i];
        const char* start = (const char*)module->dlpi_addr + part.p_vaddr;
        if (part.p_type != PT_LOAD || inside < start || inside >= start + part.p_memsz) continue;
        for (int j = 0; j < module->dlpi_phnum; j++)
            if (module->dlpi_phdr[j].p_type == PT_LOAD)
                own_end = (const char*)module->dlpi_addr + module->dlpi_phdr[j].p_vaddr + module->dlpi_phdr[j].p_memsz;
        own_start = (const char*)module->dlpi_addr;
        return 1;
    }
    return 0;
}

static const char* run(const driver::Kernel& which, void** arguments, const driver::Shape& shape) {
    launches++;
    name = which.name.c_str();
    kernel = which.thread;
    parameters = arguments;
    ended_arrive = which.ended_arrive;
    gridDim.x = shape.grid[0], gridDim.y = shape.grid[1], gridDim.z = shape.grid[2];
    blockDim.x = shape.block[0], blockDim.y = shape.block[1], blockDim.z = shape.block[2];
    thread_count = (int)(blockDim.x * blockDim.y * blockDim.z);
    dynamic_size = shape.shared;
    site_count = 0;
    static_used = 0;
    static const void* module_of;
    if (module_of != (void*)kernel) {
        module_of = (void*)kernel;
        dl_iterate_phdr(own_module, (void*)kernel);
    }
    if (!stacks)
        stacks = (char*)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    std::vector<int> blocks((size_t)gridDim.x * gridDim.y * gridDim.z);
    permute(thread_count, order);
    permute((int)blocks.size(), blocks.data());
    if (checks) {
        fences.assign(blocks.size(), 0);
        acquisitions.assign(blocks.size(), 0);
        if (!static_shadow) static_shadow = new_shadow(sizeof static_shared), dynamic_shadow = new_shadow(DYNAMIC_SHARED);
    }
    static size_t seen_static, seen_dynamic;  // what shadows hold: of the block before, maybe another kernel's
    bool ended = true;
    for (size_t b = 0; b < blocks.size() && ended; b++) {
        block_number = blocks[b];
        blockIdx.x = (unsigned)(block_number % gridDim.x);
        blockIdx.y = (unsigned)(block_number / gridDim.x % gridDim.y);
        blockIdx.z = (unsigned)(block_number / ((long long)gridDim.x * gridDim.y));
        if (checks) {
            memset((void*)static_shadow, 0, seen_static * sizeof(Shadow));
            memset((void*)dynamic_shadow, 0, seen_dynamic * sizeof(Shadow));
            seen_dynamic = dynamic_size;
        }
        ended = run_block();
        if (checks) seen_static = static_used;
    }
    for (auto& each : shadows) munmap(each.second, each.first->size * sizeof(Shadow));
    shadows.clear();
    return ended ? nullptr : message;
}

}  // namespace simulated

const char* driver::run_grid(const Kernel& kernel, void** parameters, const Shape& shape) {
    const char* wrong = simulated::run(kernel, parameters, shape);
    if (wrong && (last_problem.empty() || !strstr(wrong, last_problem.c_str()))) problem("%s", wrong);
    return wrong;
}

extern "C" {
void driver_order(unsigned long long seed) { simulated::seed = seed; }
void driver_check(int on) { simulated::checks = on; }
double driver_bessel_i(double order, double x) { return std::cyl_bessel_i(order, x); }

#define OF_SIZE(size)                                                                          \
    void __tsan_read##size(void* at) { simulated::aligned(at, size, simulated::READ); }        \
    void __tsan_write##size(void* at) { simulated::aligned(at, size, simulated::WRITE); }      \
    void __tsan_unaligned_read##size(void* at) { simulated::access(at, size, simulated::READ); } \
    void __tsan_unaligned_write##size(void* at) { simulated::access(at, size, simulated::WRITE); } \
    void __tsan_volatile_read##size(void* at) { simulated::aligned(at, size, simulated::READ); } \
    void __tsan_volatile_write##size(void* at) { simulated::aligned(at, size, simulated::WRITE); }
OF_SIZE(1)
OF_SIZE(2)
OF_SIZE(4)
OF_SIZE(8)
OF_SIZE(16)
#undef OF_SIZE
void __tsan_read_range(void* at, unsigned long size) { simulated::access(at, size, simulated::READ); }
void __tsan_write_range(void* at, unsigned long size) { simulated::access(at, size, simulated::WRITE); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// -fsanitize=alignment,bounds: both are told the place in the source first
struct Line {
    const char* file;
    unsigned line, column;
};
void __ubsan_handle_type_mismatch_v1(Line* place, void* at) {
    simulated::fail("line %u: misaligned address %p", place->line, at);
}
void __ubsan_handle_out_of_bounds(Line* place, void*) {
    simulated::fail("line %u: index outside an array", place->line);
}
}
