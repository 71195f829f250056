// What processes that share device memory know of one another, so that races between them are found, too.
//
// Who accessed memory is kept in the memory's own file. A process tells how far its host has waited, for what is done
// comes before all that anybody starts later, in a file that others find among its open ones; and an event that others
// have opened has its clock in a file.

#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace driver {

const uint32_t process = (uint32_t)getpid();

static const char* const CLOCKS = "cuda-clocks";
static const size_t WAITED = sizeof(uint64_t) << TIMELINES;  // bytes: a tick for each timeline
static const size_t RECORD = 1 << 20;

static std::map<uint64_t, uint32_t> own_numbers;  // this process's number for a timeline of another, and the reverse
static std::map<uint32_t, uint64_t> others;
static uint64_t* waited;  // this process's file; NULL: it shares nothing
static std::map<uint32_t, const uint64_t*> waited_elsewhere;

static void* mapped(int file, size_t size, int access) {
    void* start = mmap(nullptr, size, access, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) perror("the CPU driver's shared clocks"), abort();
    return start;
}

static int new_file(const char* name, size_t size) {
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size)) perror("the CPU driver's shared clocks"), abort();
    return file;
}

SharedFile shared_file(int file) {
    struct stat found;
    fstat(file, &found);
    return SharedFile{process, file, (uint64_t)found.st_ino};
}

int open_shared(const SharedFile& theirs) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%d", theirs.process, theirs.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat found;
    if (file >= 0 && (fstat(file, &found) || found.st_ino != theirs.number)) close(file), file = -1;
    return file;
}

void share_clocks() {
    if (waited) return;
    waited = (uint64_t*)mapped(new_file(CLOCKS, WAITED), WAITED, PROT_READ | PROT_WRITE);
    publish();
}

void publish() {
    if (waited) memcpy(waited, host.data(), host.size() * sizeof(uint64_t));
}

// NULL: that process has ended.
static const uint64_t* waited_in(uint32_t which) {
    auto known = waited_elsewhere.find(which);
    if (known != waited_elsewhere.end()) return known->second;
    const uint64_t* found = nullptr;
    std::string place = "/proc/" + std::to_string(which) + "/fd";
    DIR* folder = opendir(place.c_str());
    while (dirent* each = folder && !found ? readdir(folder) : nullptr) {
        std::string path = place + "/" + each->d_name;
        char target[64] = "";
        if (readlink(path.c_str(), target, sizeof target - 1) < 0 || !strstr(target, CLOCKS)) continue;
        int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        found = (const uint64_t*)mapped(file, WAITED, PROT_READ);
        close(file);
    }
    if (folder) closedir(folder);
    return waited_elsewhere[which] = found;
}

uint32_t timeline_of(Epoch epoch) {
    if (process_of(epoch) == process) return (uint32_t)(epoch >> TICKS) & ((1 << TIMELINES) - 1);
    uint64_t global = epoch >> TICKS;
    auto found = own_numbers.find(global);
    if (found != own_numbers.end()) return found->second;
    uint32_t number = new_timeline();
    others[number] = global;
    return own_numbers[global] = number;
}

bool reached_elsewhere(const Clock& clock, Epoch epoch) {
    if (at(clock, timeline_of(epoch)) >= tick_of(epoch)) return true;
    const uint64_t* known = waited_in(process_of(epoch));
    return !known || known[epoch >> TICKS & ((1 << TIMELINES) - 1)] >= tick_of(epoch);
}

// The clock of an event: how many entries and 1 more, or 0 before it is recorded; then the entries, as epochs.

Record::Record(int file) : file(file), words((uint64_t*)mapped(file, RECORD, PROT_READ | PROT_WRITE)) {}
Record::Record() : Record(new_file("cuda-event", RECORD)) {}
Record::~Record() {
    munmap(words, RECORD);
    close(file);
}

void Record::write(const Clock& clock) {
    flock(file, LOCK_EX);
    uint64_t count = 0;
    for (uint32_t timeline = 0; timeline < clock.size(); timeline++) {
        auto other = others.find(timeline);
        // What this process's host has waited for it tells otherwise.
        if (!clock[timeline] || (other == others.end() && at(host, timeline) >= clock[timeline])) continue;
        if ((count + 2) * sizeof(uint64_t) > RECORD) fprintf(stderr, "an event's record is full\n"), abort();
        Epoch own = epoch(timeline, clock[timeline]);
        words[++count] = other == others.end() ? own : other->second << TICKS | clock[timeline];
    }
    words[0] = count + 1;
    flock(file, LOCK_UN);
}

bool Record::read(Clock& clock) const {
    flock(file, LOCK_SH);
    std::vector<Epoch> found(words + 1, words + (words[0] ? words[0] : 1));
    bool recorded = words[0];
    flock(file, LOCK_UN);
    for (Epoch each : found) {
        uint32_t timeline = timeline_of(each);
        if (clock.size() <= timeline) clock.resize(timeline + 1);
        if (clock[timeline] < tick_of(each)) clock[timeline] = tick_of(each);
    }
    return recorded;
}

}  // namespace driver
