// What the parts of the driver share: clocks, allocations, streams, captured work, problems found.
//
// Work runs at once, in the thread that queues it, in the order of the calls; that order is one of those a device may
// choose. What another order would break is found by clocks: every stream has a timeline, on which its work ticks; an
// event is a copy of a clock; who waits for it takes the later of both in every entry. An access to memory that work of
// another timeline wrote (or read, for a write) has to come after it by its clock, else it is a race.

#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace driver {

typedef std::vector<uint64_t> Clock;  // of each timeline, the tick that is known to lie before

void join(Clock& clock, const Clock& other);
inline uint64_t at(const Clock& clock, uint32_t timeline) { return timeline < clock.size() ? clock[timeline] : 0; }

// One tick of one timeline of one process; 0: none. Processes have 22 bits, what Linux gives them.
typedef uint64_t Epoch;
const int TICKS = 25, TIMELINES = 17;
extern const uint32_t process;
inline Epoch epoch(uint32_t timeline, uint64_t tick) {
    return (Epoch)process << (TICKS + TIMELINES) | (Epoch)timeline << TICKS | tick;
}
inline uint32_t process_of(Epoch epoch) { return (uint32_t)(epoch >> (TICKS + TIMELINES)); }
inline uint64_t tick_of(Epoch epoch) { return epoch & (((Epoch)1 << TICKS) - 1); }
uint32_t timeline_of(Epoch epoch);  // its number in this process
bool after(const Clock& clock, const Clock& other);  // all of `other` lies before
bool reached_elsewhere(const Clock& clock, Epoch epoch);
inline bool reached(const Clock& clock, Epoch epoch) {
    if (process_of(epoch) != process) return reached_elsewhere(clock, epoch);
    return at(clock, timeline_of(epoch)) >= tick_of(epoch);
}

// Who last wrote and read four bytes. Of the readers since the last write two are kept, the last of two timelines.
struct Accesses {
    Epoch write, read, other_read;
};
const size_t GRAIN = 4;

enum Place { DEVICE, PINNED, FOREIGN };  // FOREIGN: another process's, opened

struct Allocation {
    char* start;
    size_t size, mapped;
    Place place;
    int device;
    int file;            // of device memory, and its accesses after it, for other processes; -1: none
    bool registered;     // PINNED: the user's own pages
    Accesses* accesses;  // one each GRAIN bytes
    int opened;          // FOREIGN: how often
};

struct Capture;
struct Stream {
    uint32_t number;
    int device;
    unsigned flags;
    int priority;
    uint32_t timeline;
    Clock clock;
    Capture* capture;
    std::vector<int> last;  // while captured: the nodes that the next one comes after
    uint64_t asked;         // the tick up to which one has asked whether it is done
};

// Work under way: its clock, and what it is called where it appears in a race.
struct Work {
    Clock* clock;
    Epoch epoch;
};

struct Node {
    std::string what;
    std::function<const char*()> run;
    std::vector<int> after;
    int lane;  // nodes of one stream share a timeline
};
struct Capture {
    Stream* origin;
    std::vector<Node> nodes;
    std::vector<Stream*> streams;
    int mode;  // cudaStreamCaptureMode
    std::thread::id thread;
    bool invalid, ended;  // kept after its end, as events point to it
};

extern std::recursive_mutex lock;
extern thread_local int device;
extern int device_count;
extern size_t memory_size;
extern Clock host;   // what the host has waited for
extern Work* under_way;
extern bool kernels_run;  // false: launches do nothing, for measuring the host's time

// Problems: texts for the test that runs. The last one is also the text of the error that a call returns.
void problem(const char* format, ...) __attribute__((format(printf, 1, 2)));
extern std::string last_problem;

// The journal: what tests count.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

// memory.cpp
Allocation* find(const void* address);
Allocation* allocate(size_t size, Place place, int device);
Allocation* adopt(char* start, size_t size);                     // the user's own pages
Allocation* open_memory(int file, size_t size, int device);  // another process's
void release(Allocation* allocation);
size_t used(int device);
// An access by the work under way. False: a race, and problem() has it.
bool touch(Allocation& allocation, size_t offset, size_t size, bool write);
// The same for an address that is no kernel's: memory of the host is not followed. False: outside, or a race.
bool touch(const void* address, size_t size, bool write, const char* what);

// streams.cpp
uint32_t new_timeline();
std::string describe(Epoch epoch);
Stream* stream_of(const void* handle);  // NULL: no such stream, and problem() has it
void wait_for(Clock& clock);            // the host does
// Queues work: recorded in a capture, else run. `run` returns NULL or what went wrong.
const char* submit(Stream& stream, std::string what, std::function<const char*()> run);
// Whether no capture under way forbids a call; else problem() has it. A relaxed one forbids only what waits.
bool allowed_in_capture(const char* call, bool waits);
void finish_device();  // the host waits for all that the current device has queued

// processes.cpp
struct SharedFile {  // of another process, in a handle
    uint32_t process;
    int file;
    uint64_t number;  // of what the file was when the handle was made
};
SharedFile shared_file(int file);
int open_shared(const SharedFile& theirs);  // -1: it is no more
void share_clocks();                        // from now on other processes see what this one's host has waited for
void publish();                             // it has waited
struct Record {  // of an event that several processes know
    Record();
    explicit Record(int file);
    ~Record();
    Record(const Record&) = delete;
    void write(const Clock& clock);
    bool read(Clock& clock) const;  // joined to `clock`; returns whether it was recorded
    const int file;
    uint64_t* const words;
};

// pinned.cpp: copies to and from page-locked memory, which the host sees late
void deliver_late(void* target, const void* source, size_t size);
void watch(const void* source, size_t size);
void overwrite(const char* target, size_t size);  // a copy to page-locked memory is about to
void settle(const Clock& clock);

}  // namespace driver
