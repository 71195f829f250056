// Streams, events, captures and graphs: what is ordered with what. See state.h.

#include "calls.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <unistd.h>
#include <unordered_map>

namespace driver {

Clock host;
Work* under_way = nullptr;
std::string last_problem;
static std::vector<std::string> problems;
static std::vector<std::string> journal;
static bool keeps_journal = false;

// What each tick did, by timeline: for messages.
static std::vector<std::vector<uint32_t>> ticks;
static std::vector<std::string> names{"?"};
static std::unordered_map<std::string, uint32_t> numbers;

static std::string formatted(const char* format, va_list rest) {
    char text[1024];
    vsnprintf(text, sizeof text, format, rest);
    return text;
}

void problem(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    last_problem = formatted(format, rest);
    va_end(rest);
    if (problems.size() < 100) problems.push_back(last_problem);
}

void note(const char* format, ...) {
    if (!keeps_journal) return;
    va_list rest;
    va_start(rest, format);
    journal.push_back(formatted(format, rest));
    va_end(rest);
}

void join(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (size_t i = 0; i < other.size(); i++)
        if (clock[i] < other[i]) clock[i] = other[i];
}

bool after(const Clock& clock, const Clock& other) {
    for (size_t i = 0; i < other.size(); i++)
        if (at(clock, (uint32_t)i) < other[i]) return false;
    return true;
}

uint32_t new_timeline() {
    ticks.emplace_back();
    ticks.back().push_back(0);
    return (uint32_t)ticks.size() - 1;
}

static Epoch tick(Clock& clock, uint32_t timeline, const std::string& what) {
    auto found = numbers.emplace(what, (uint32_t)names.size());
    if (found.second) names.push_back(what);
    ticks[timeline].push_back(found.first->second);
    if (clock.size() <= timeline) clock.resize(timeline + 1);
    clock[timeline] = ticks[timeline].size() - 1;
    if (clock[timeline] >> TICKS || timeline >> TIMELINES) fprintf(stderr, "the driver's clocks are full\n"), abort();
    return epoch(timeline, clock[timeline]);
}

std::string describe(Epoch epoch) {
    if (process_of(epoch) != process) return "work of process " + std::to_string(process_of(epoch));
    return names[ticks[timeline_of(epoch)][tick_of(epoch)]]; }

static std::map<const void*, Stream*> streams;
static std::map<int, Stream*> null_streams;
static std::map<int, Clock> destroyed;  // what streams that are gone have queued, by device
static uint32_t stream_count = 0;

static Stream* new_stream(int device, unsigned flags, int priority) {
    return new Stream{stream_count++, device, flags, priority, new_timeline(), Clock(), nullptr, {}, 0};
}

Stream* stream_of(const void* handle) {
    if ((uintptr_t)handle <= 2) {  // the null stream, by its names
        Stream*& found = null_streams[device];
        if (!found) found = new_stream(device, 0, 0);
        return found;
    }
    auto found = streams.find(handle);
    if (found != streams.end()) return found->second;
    problem("a stream that does not exist, or does not any more");
    return nullptr;
}

// The null stream and streams that were made to block wait for each other.
static void order_with_null(Stream& stream) {
    auto found = null_streams.find(stream.device);
    Stream* null = found == null_streams.end() ? nullptr : found->second;
    if (&stream == null) {
        for (auto& each : streams)
            if (each.second->device == stream.device && !(each.second->flags & 1)) join(stream.clock, each.second->clock);
    } else if (null && !(stream.flags & 1)) {
        join(stream.clock, null->clock);
    }
}

static const char* perform(Clock& clock, uint32_t timeline, const std::string& what,
                           const std::function<const char*()>& run) {
    Work work{&clock, tick(clock, timeline, what)};
    settle(clock);
    Work* before = under_way;
    under_way = &work;
    const char* wrong = run();
    under_way = before;
    return wrong;
}

const char* submit(Stream& stream, std::string what, std::function<const char*()> run) {
    what += " on stream " + std::to_string(stream.number);
    if (stream.capture) {
        Capture& capture = *stream.capture;
        int lane = 0;
        while (capture.streams[lane] != &stream) lane++;
        capture.nodes.push_back(Node{what, std::move(run), stream.last, lane});
        stream.last = {(int)capture.nodes.size() - 1};
        return nullptr;
    }
    join(stream.clock, host);
    order_with_null(stream);
    return perform(stream.clock, stream.timeline, what, run);
}

void wait_for(Clock& clock) {
    join(host, clock);
    settle(host);
    publish();
}

bool allowed_in_capture(const char* call, bool waits) {
    bool allowed = true;
    for (auto& each : streams) {
        Capture* capture = each.second->capture;
        if (!capture || (!waits && capture->mode == cudaStreamCaptureModeRelaxed)) continue;
        if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread != std::this_thread::get_id()) continue;
        if (allowed) problem("%s while stream %u is captured", call, each.second->number);
        capture->invalid = true;
        allowed = false;
    }
    return allowed;
}

void finish_device() {
    Clock all = stream_of(nullptr)->clock;
    for (auto& each : streams)
        if (each.second->device == device) join(all, each.second->clock);
    join(all, destroyed[device]);
    wait_for(all);
}

// Events

struct Event {
    unsigned flags;
    int device;
    bool recorded;
    Clock clock;
    Capture* capture;
    std::vector<int> nodes;
    bool asked;  // whether it is done, since it was recorded
    std::shared_ptr<Record> shared;  // with other processes

    void look() {  // they may have recorded it
        Clock now;
        if (shared && shared->read(now)) recorded = true, clock = now;
    }
};

struct Graph {
    std::vector<Node> nodes;
    int lanes;
};
struct Executable {
    Graph graph;
    std::vector<uint32_t> timelines;
};

static void leave(Capture* capture) {
    for (Stream* each : capture->streams) {
        each->capture = nullptr;
        each->last.clear();
    }
    capture->ended = true;
}

static const char* launch(Executable& executable, Stream& stream) {
    // Each node's clock is its own: those of the nodes it comes after, and the stream's before the launch.
    std::vector<Clock> clocks;
    Clock after = stream.clock;
    const char* wrong = nullptr;
    for (const Node& node : executable.graph.nodes) {
        Clock clock = stream.clock;
        for (int before : node.after) join(clock, clocks[before]);
        const char* here = perform(clock, executable.timelines[node.lane], node.what, node.run);
        if (here && !wrong) wrong = here;
        join(after, clock);
        clocks.push_back(std::move(clock));
    }
    stream.clock = after;
    return wrong;
}

}  // namespace driver

using namespace driver;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    Locked locked;
    Stream* made = new_stream(device, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    streams[made] = made;
    *stream = (cudaStream_t)made;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    ON_STREAM(handle);
    Stream* gone = &stream;
    if (gone->capture) gone->capture->invalid = true;
    streams.erase(gone);
    join(destroyed[gone->device], gone->clock);
    if (!gone->capture) delete gone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    ON_STREAM(handle);
    *flags = stream.flags;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    ON_STREAM(handle);
    *priority = stream.priority;
    return cudaSuccess;
}

static cudaError_t captured(Stream& stream, const char* call) {
    problem("%s of stream %u while it is captured", call, stream.number);
    stream.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ON_STREAM(handle);
    if (stream.capture) return captured(stream, "cudaStreamSynchronize");
    order_with_null(stream);
    if (!after(host, stream.clock)) note("wait cudaStreamSynchronize");
    wait_for(stream.clock);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ON_STREAM(handle);
    if (stream.capture) return captured(stream, "cudaStreamQuery");
    order_with_null(stream);
    uint64_t now = at(stream.clock, stream.timeline);
    if (!after(host, stream.clock) && stream.asked != now) {
        stream.asked = now;  // the first answer: not yet, so that both are met
        return cudaErrorNotReady;
    }
    wait_for(stream.clock);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    Locked locked;
    if (!allowed_in_capture("cudaDeviceSynchronize", true)) return cudaErrorStreamCaptureUnsupported;
    finish_device();
    note("wait cudaDeviceSynchronize");
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
    ON_STREAM(handle);
    return as_error(submit(stream, "host function", [=]() -> const char* {
        function(argument);
        return nullptr;
    }));
}
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* argument, unsigned) {
    ON_STREAM(handle);
    if (stream.capture) return captured(stream, "cudaStreamAddCallback");
    return as_error(submit(stream, "callback", [=]() -> const char* {
        function(handle, cudaSuccess, argument);
        return nullptr;
    }));
}

static std::map<cudaEvent_t, Event> events;

// Looks `handle` up as `event`, or returns from the function.
#define OF_EVENT(event, handle)                                                 \
    auto found_##event = events.find(handle);                                   \
    if (found_##event == events.end()) return cudaErrorInvalidResourceHandle; \
    Event& event = found_##event->second

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    Locked locked;
    static uintptr_t count = 0;
    *event = (cudaEvent_t)(++count * 16);  // no number a second time: what is destroyed is known for ever
    events[*event] = Event{flags, device, false, Clock(), nullptr, {}, false, nullptr};
    return cudaSuccess;
}
struct IpcEvent {
    SharedFile record;
    unsigned flags;
};
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t what) {
    Locked locked;
    OF_EVENT(event, what);
    if (!(event.flags & cudaEventInterprocess)) {
        problem("a handle of an event that was not made for other processes");
        return cudaErrorInvalidResourceHandle;
    }
    if (!event.shared) {
        share_clocks();
        event.shared = std::make_shared<Record>();
        if (event.recorded) event.shared->write(event.clock);
    }
    memset(handle, 0, sizeof *handle);
    *(IpcEvent*)handle = IpcEvent{shared_file(event.shared->file), event.flags};
    return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    Locked locked;
    auto& theirs = *(IpcEvent*)&handle;
    if (theirs.record.process == process) return cudaErrorDeviceUninitialized;
    int file = open_shared(theirs.record);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    share_clocks();
    cudaEventCreateWithFlags(event, theirs.flags);
    events[*event].shared = std::make_shared<Record>(file);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Locked locked;
    return events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
    ON_STREAM(on);
    OF_EVENT(event, handle);
    if (event.device != stream.device) {
        problem("an event of device %d is recorded on a stream of device %d", event.device, stream.device);
        return cudaErrorInvalidResourceHandle;
    }
    event.recorded = true;
    event.asked = false;
    event.capture = stream.capture;
    event.nodes = stream.last;
    if (!stream.capture) {
        join(stream.clock, host);
        order_with_null(stream);
        event.clock = stream.clock;
        if (event.shared) event.shared->write(event.clock);
    }
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t what, unsigned) {
    ON_STREAM(handle);
    OF_EVENT(event, what);
    if (event.capture && !event.capture->ended) {
        if (!stream.capture) {
            stream.capture = event.capture;
            event.capture->streams.push_back(&stream);
        } else if (stream.capture != event.capture) {
            problem("a wait for an event of another capture");
            return cudaErrorStreamCaptureMerge;
        }
        stream.last.insert(stream.last.end(), event.nodes.begin(), event.nodes.end());
    } else if (stream.capture) {
        if (!event.recorded) return cudaSuccess;
        problem("a captured stream waits for an event that was recorded outside of the capture");
        stream.capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    } else {
        event.look();
        join(stream.clock, event.clock);
    }
    return cudaSuccess;
}
static cudaError_t ask(cudaEvent_t handle, const char* call, bool waits) {
    Locked locked;
    OF_EVENT(event, handle);
    if (event.capture && !event.capture->ended) {
        problem("%s of an event that was recorded in a capture", call);
        event.capture->invalid = true;
        return cudaErrorCapturedEvent;
    }
    event.look();
    if (!waits && !event.asked && !after(host, event.clock)) {
        event.asked = true;  // the first answer: not yet, so that both are met
        return cudaErrorNotReady;
    }
    if (waits && !after(host, event.clock)) note("wait %s", call);
    wait_for(event.clock);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return ask(event, "cudaEventQuery", false); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return ask(event, "cudaEventSynchronize", true);
}
cudaError_t cudaEventElapsedTime_v2(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
    Locked locked;
    OF_EVENT(from, first);
    OF_EVENT(to, last);
    if (!from.recorded || !to.recorded) return cudaErrorInvalidResourceHandle;
    if ((from.flags | to.flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    *milliseconds = 1;  // no time here says anything about a GPU
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return cudaEventElapsedTime_v2(milliseconds, from, to);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    ON_STREAM(handle);
    if ((uintptr_t)handle <= 2) return cudaErrorStreamCaptureUnsupported;
    if (stream.capture) return cudaErrorIllegalState;
    stream.capture = new Capture{&stream, {}, {&stream}, mode, std::this_thread::get_id(), false, false};
    stream.last.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    ON_STREAM(handle);
    *status = !stream.capture           ? cudaStreamCaptureStatusNone
              : stream.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    ON_STREAM(handle);
    *graph = nullptr;
    Capture* capture = stream.capture;
    if (!capture || capture->origin != &stream) return cudaErrorIllegalState;
    // What the origin's last node comes after; all that other streams queued has to be among it.
    std::set<int> seen(stream.last.begin(), stream.last.end());
    for (int i = (int)capture->nodes.size() - 1; i >= 0; i--)
        if (seen.count(i)) seen.insert(capture->nodes[i].after.begin(), capture->nodes[i].after.end());
    const Stream* unjoined = nullptr;
    for (Stream* each : capture->streams)
        for (int node : each->last)
            if (!seen.count(node)) unjoined = each;
    cudaError_t result = cudaSuccess;
    if (capture->invalid) {
        result = cudaErrorStreamCaptureInvalidated;
    } else if (unjoined) {
        problem("a capture ends while its stream %u has not waited for stream %u", stream.number, unjoined->number);
        result = cudaErrorStreamCaptureUnjoined;
    } else {
        *graph = (cudaGraph_t) new Graph{capture->nodes, (int)capture->streams.size()};
    }
    leave(capture);
    return result;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    Locked locked;
    auto* made = new Executable{*(Graph*)graph, {}};
    for (int lane = 0; lane < made->graph.lanes; lane++) made->timelines.push_back(new_timeline());
    *executable = (cudaGraphExec_t)made;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
    ON_STREAM(handle);
    if (stream.capture) return captured(stream, "cudaGraphLaunch");
    note("graph");
    join(stream.clock, host);
    order_with_null(stream);
    return as_error(launch(*(Executable*)executable, stream));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Locked locked;
    delete (Graph*)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    Locked locked;
    delete (Executable*)executable;
    return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
    Locked locked;
    FILE* file = fopen(path, "w");
    if (!file) return cudaErrorOperatingSystem;
    fputs("digraph {\n", file);
    auto& nodes = ((Graph*)graph)->nodes;
    for (size_t i = 0; i < nodes.size(); i++) {
        fprintf(file, "n%zu [label=\"%s\"];\n", i, nodes[i].what.c_str());
        for (int before : nodes[i].after) fprintf(file, "n%d -> n%zu;\n", before, i);
    }
    fputs("}\n", file);
    fclose(file);
    return cudaSuccess;
}

// For tests: see tests/cuda_driver/control.py.

void driver_finish() {  // all devices, captures given up
    Locked locked;
    for (auto& each : streams) {
        if (each.second->capture) leave(each.second->capture);
        join(host, each.second->clock);
    }
    for (auto& each : null_streams) join(host, each.second->clock);
    for (auto& each : destroyed) join(host, each.second);
    wait_for(host);
}
void driver_keep_journal(int on) {
    Locked locked;
    keeps_journal = on;
    journal.clear();
}
// For work that Python does, in a host function: reads or writes device memory. Returns whether it may.
int driver_touch(const void* address, size_t size, int write) { return touch(address, size, write, "host function"); }
// The host, or a library that knows no streams, is about to look at device memory, or to write there. Returns whether
// it may.
int driver_host_access(const void* address, size_t size) {
    Locked locked;
    Allocation* found = size ? find(address) : nullptr;
    if (!found || found->place == PINNED) return 1;
    size_t offset = (size_t)((const char*)address - found->start);
    for (size_t cell = offset / GRAIN; cell <= (offset + size - 1) / GRAIN && cell < found->mapped / GRAIN; cell++) {
        Epoch written = found->accesses[cell].write;
        if (!written || reached(host, written)) continue;
        problem("race: device memory is handed to the host that %s may still be writing", describe(written).c_str());
        return 0;
    }
    return 1;
}
static int take(std::vector<std::string>& lines, char* text, size_t size) {
    Locked locked;
    std::string all;
    for (auto& line : lines) all += line + "\n";
    if (all.size() + 1 > size) return (int)all.size() + 1;
    memcpy(text, all.c_str(), all.size() + 1);
    lines.clear();
    return 0;
}
// Moves lines into `text`; returns the bytes it needs where it is too small, else 0.
int driver_take_problems(char* text, size_t size) {
    Locked locked;
    int needed = take(problems, text, size);
    if (!needed) last_problem.clear();
    return needed;
}
int driver_take_journal(char* text, size_t size) { return take(journal, text, size); }
}
