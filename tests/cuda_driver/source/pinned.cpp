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

// All that lies before `clock` is done.
void settle(const Clock& clock) {
    std::vector<Late> waiting;
    for (Late& each : late) {
        if (!reached(clock, each.epoch)) {
            waiting.push_back(std::move(each));
            continue;
        }
        if (Allocation* found = find(each.target))
            if (each.target + each.bytes.size() <= found->start + found->size)
                memcpy(each.target, each.bytes.data(), each.bytes.size());
    }
    late.swap(waiting);
    if (&clock != &host) return;
    std::vector<Watched> still;
    for (Watched& each : watched) {
        if (!reached(clock, each.epoch)) {
            still.push_back(std::move(each));
        } else if (find(each.source) && memcmp(each.source, each.bytes.data(), each.bytes.size())) {
            problem("race: the host wrote page-locked memory before the copy to the device was done: %s",
                    describe(each.epoch).c_str());
        }
    }
    watched.swap(still);
}

}  // namespace driver
