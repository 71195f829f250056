// Device memory and page-locked memory, and who accessed it: see state.h.

#include "state.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace driver {

std::recursive_mutex lock;
thread_local int device = 0;
int device_count = 2;
size_t memory_size = (size_t)16 << 30;

static std::map<const char*, Allocation*> allocations;  // by their end
static std::map<int, size_t> in_use;

Allocation* find(const void* address) {
    auto found = allocations.upper_bound((const char*)address);
    if (found == allocations.end() || found->second->start > (const char*)address) return nullptr;
    return found->second;
}

size_t used(int device) { return in_use[device]; }

static Allocation* keep(char* start, size_t size, size_t mapped, Place place, int device, int file, bool registered) {
    auto* accesses = (Accesses*)mmap(nullptr, mapped / GRAIN * sizeof(Accesses), PROT_READ | PROT_WRITE,
                                     file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, file,
                                     file < 0 ? 0 : (off_t)mapped);
    auto* made = new Allocation{start, size, mapped, place, device, file, registered, accesses, 1};
    return allocations[start + (size ? size : 1)] = made;
}

Allocation* allocate(size_t size, Place place, int device) {
    if (place == DEVICE && in_use[device] + size > memory_size) return nullptr;
    const size_t PAGE = 4096;
    // A page that nobody may touch after it: memory of the host that runs over is found, too.
    size_t mapped = (size + PAGE - 1) / PAGE * PAGE;
    char* start = (char*)mmap(nullptr, mapped + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    int file = -1;
    if (place == DEVICE) {
        file = memfd_create("cuda-memory", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)(mapped + mapped / GRAIN * sizeof(Accesses)))) return nullptr;
        mmap(start, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
        in_use[device] += size;
    } else {
        mprotect(start, mapped, PROT_READ | PROT_WRITE);
    }
    return keep(start, size, mapped, place, device, file, false);
}

void release(Allocation* gone) {
    allocations.erase(gone->start + (gone->size ? gone->size : 1));
    if (gone->place == DEVICE) in_use[gone->device] -= gone->size;
    munmap(gone->accesses, gone->mapped / GRAIN * sizeof(Accesses));
    if (!gone->registered) munmap(gone->start, gone->mapped + 4096);
    if (gone->file >= 0) close(gone->file);
    delete gone;
}

Allocation* adopt(char* start, size_t size) {
    return keep(start, size, (size + 4095) / 4096 * 4096, PINNED, -1, -1, true);
}

Allocation* open_memory(int file, size_t size, int device) {
    size_t mapped = (size + 4095) / 4096 * 4096;
    void* start = mmap(nullptr, mapped + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mmap(start, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return keep((char*)start, size, mapped, FOREIGN, device, file, false);
}

static bool race(const Allocation& allocation, size_t offset, bool write, Epoch before, const char* did) {
    problem("race: %s %s byte %zu of %zu bytes of memory that %s %s, and no event orders them",
            describe(under_way->epoch).c_str(), write ? "writes" : "reads", offset, allocation.size,
            describe(before).c_str(), did);
    return false;
}

bool touch(Allocation& allocation, size_t offset, size_t size, bool write) {
    const Clock& clock = *under_way->clock;
    Epoch own = under_way->epoch;
    for (size_t cell = offset / GRAIN; cell <= (offset + size - 1) / GRAIN; cell++) {
        Accesses& before = allocation.accesses[cell];
        if (before.write != own && before.write && !reached(clock, before.write))
            return race(allocation, cell * GRAIN, write, before.write, "wrote");
        if (write) {
            if (before.read && before.read != own && !reached(clock, before.read))
                return race(allocation, cell * GRAIN, write, before.read, "read");
            if (before.other_read && before.other_read != own && !reached(clock, before.other_read))
                return race(allocation, cell * GRAIN, write, before.other_read, "read");
            before = Accesses{own, 0, 0};
        } else if (before.read != own) {
            if (before.read && before.read >> TICKS != own >> TICKS) before.other_read = before.read;
            before.read = own;
        }
    }
    return true;
}

bool touch(const void* address, size_t size, bool write, const char* what) {
    if (!size) return true;
    Allocation* found = find(address);
    if (!found) return true;
    size_t offset = (size_t)((const char*)address - found->start);
    if (offset + size > found->size) {
        problem("%s: bytes %zu to %zu of an allocation of %zu", what, offset, offset + size, found->size);
        return false;
    }
    return touch(*found, offset, size, write);
}

}  // namespace driver
