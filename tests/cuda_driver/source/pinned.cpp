// Page-locked memory: a copy to it is there only after the host, or later work of the device, has waited for it; what a
// copy to the device reads must stay as it is until then.

#include "state.h"

#include <cstring>

namespace driver {

struct Late {
    Epoch epoch;
    char* target;
    std::vector<char> bytes;
};
struct Watched {
    Epoch epoch;
    const char* source;
    std::vector<char> bytes;
};
static std::vector<Late> late;
static std::vector<Watched> watched;

void deliver_late(void* target, const void* source, size_t size) {
    late.push_back(Late{under_way->epoch, (char*)target, {(const char*)source, (const char*)source + size}});
}

void watch(const void* source, size_t size) {
    watched.push_back(Watched{under_way->epoch, (const char*)source, {(const char*)source, (const char*)source + size}});
}

static void check(const Watched& each) {
    if (find(each.source) && memcmp(each.source, each.bytes.data(), each.bytes.size()))
        problem("race: the host wrote page-locked memory before the copy to the device was done: %s",
                describe(each.epoch).c_str());
}

// What a copy overwrites was read before it: by the order of the accesses, which is looked at where it is queued.
void overwrite(const char* target, size_t size) {
    std::vector<Watched> others;
    for (Watched& each : watched) {
        if (each.source < target + size && target < each.source + each.bytes.size())
            check(each);
        else
            others.push_back(std::move(each));
    }
    watched.swap(others);
}

// All that lies before `clock` is done.
void settle(const Clock& clock) {
    std::vector<Late> waiting;
    for (Late& each : late) {
        if (!reached(clock, each.epoch)) {
            waiting.push_back(std::move(each));
            continue;
        }
        if (Allocation* found = find(each.target))
            if (each.target + each.bytes.size() <= found->start + found->size) {
                overwrite(each.target, each.bytes.size());
                memcpy(each.target, each.bytes.data(), each.bytes.size());
            }
    }
    late.swap(waiting);
    if (&clock != &host) return;
    std::vector<Watched> still;
    for (Watched& each : watched) {
        if (reached(clock, each.epoch))
            check(each);
        else
            still.push_back(std::move(each));
    }
    watched.swap(still);
}

}  // namespace driver
