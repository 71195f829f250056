// The CUDA runtime on memory of the host: devices, allocations, copies, page-locked memory, other processes' memory.

#include "calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace driver {
const size_t SHARED_AT_MOST = 227 << 10;
}
using namespace driver;

static thread_local cudaError_t last_error = cudaSuccess;
static cudaError_t failed(cudaError_t error) { return last_error = error; }

extern "C" {

#define ERRORS(name)                                                                                              \
    name(Success) name(ErrorInvalidValue) name(ErrorMemoryAllocation) name(ErrorInvalidDevice) name(ErrorNoDevice) \
    name(ErrorInvalidResourceHandle) name(ErrorIllegalState) name(ErrorIllegalAddress) name(ErrorNotSupported)     \
    name(ErrorNotReady) name(ErrorPeerAccessAlreadyEnabled) name(ErrorHostMemoryAlreadyRegistered)                \
    name(ErrorHostMemoryNotRegistered) name(ErrorStreamCaptureUnsupported) name(ErrorStreamCaptureInvalidated)    \
    name(ErrorStreamCaptureMerge) name(ErrorStreamCaptureUnjoined) name(ErrorStreamCaptureIsolation)              \
    name(ErrorStreamCaptureImplicit) name(ErrorCapturedEvent) name(ErrorDeviceUninitialized)                      \
    name(ErrorPeerAccessNotEnabled) name(ErrorOperatingSystem) name(ErrorMapBufferObjectFailed)
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define CASE(name) case cuda##name: return "cuda" #name;
        ERRORS(CASE)
#undef CASE
        default: return "cudaErrorUnknown";
    }
}
const char* cudaGetErrorString(cudaError_t error) {
    static thread_local std::string text;
    Locked locked;
    text = error == cudaErrorIllegalAddress          ? "an illegal memory access was encountered"
           : error == cudaErrorInvalidResourceHandle ? "invalid resource handle"
           : error == cudaErrorMemoryAllocation      ? "out of memory"
           : error == cudaErrorDeviceUninitialized   ? "invalid device context"
           : error == cudaErrorMapBufferObjectFailed ? "mapping of buffer object failed"
                                                     : cudaGetErrorName(error);
    if (error != cudaErrorMemoryAllocation && !last_problem.empty()) text += ": " + last_problem;
    return text.c_str();
}
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

// Devices, alike: an H100's limits.

cudaError_t cudaGetDevice(int* found) { return *found = device, cudaSuccess; }
cudaError_t cudaSetDevice(int number) {
    if (number < 0 || number >= device_count) return failed(cudaErrorInvalidDevice);
    return device = number, cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count;
    return device_count ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int number) {
    if (number < 0 || number >= device_count) return failed(cudaErrorInvalidDevice);
    memset(all, 0, sizeof *all);
    snprintf(all->name, sizeof all->name, "CPU driver for CUDA sources");
    for (int i = 0; i < 16; i++) all->uuid.bytes[i] = (char)(number + 1);
    all->totalGlobalMem = memory_size;
    all->sharedMemPerBlock = 48 << 10;
    all->sharedMemPerBlockOptin = SHARED_AT_MOST;
    all->sharedMemPerMultiprocessor = 228 << 10;
    all->regsPerBlock = all->regsPerMultiprocessor = 65536;
    all->warpSize = 32;
    all->maxThreadsPerBlock = all->maxThreadsDim[0] = all->maxThreadsDim[1] = 1024;
    all->maxThreadsDim[2] = 64;
    all->maxGridSize[0] = 2147483647;
    all->maxGridSize[1] = all->maxGridSize[2] = 65535;
    all->major = 9;
    all->multiProcessorCount = 132;
    all->maxThreadsPerMultiProcessor = 2048;
    all->l2CacheSize = 50 << 20;
    all->pciBusID = number + 1;
    all->unifiedAddressing = all->canMapHostMemory = all->concurrentKernels = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
    cudaDeviceProp all;
    if (cudaError_t error = cudaGetDeviceProperties(&all, number)) return error;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = all.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = all.minor; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = all.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = all.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = all.maxGridSize[1]; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)all.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)all.sharedMemPerBlockOptin; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)all.sharedMemPerMultiprocessor; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMultiProcessorCount: *value = all.multiProcessorCount; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = all.regsPerBlock; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = all.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrL2CacheSize: *value = all.l2CacheSize; break;
        case cudaDevAttrUnifiedAddressing: case cudaDevAttrCanMapHostMemory: *value = 1; break;
        case cudaDevAttrMemoryPoolsSupported: *value = 0; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int number) {
    snprintf(text, (size_t)size, "0000:%02X:00.0", number + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* number, const char* text) {
    unsigned found = 0;
    if (sscanf(text, "%*x:%x:", &found) != 1 || found < 1 || (int)found > device_count)
        return failed(cudaErrorInvalidDevice);
    return *number = (int)found - 1, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int one, int other) { return *can = one != other, cudaSuccess; }
static std::set<std::pair<int, int>> peers;
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
    Locked locked;
    return peers.insert({device, other}).second ? cudaSuccess : failed(cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaDeviceDisablePeerAccess(int other) {
    Locked locked;
    return peers.erase({device, other}) ? cudaSuccess : failed(cudaErrorPeerAccessNotEnabled);
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) { return *value = 1024, cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Memory

cudaError_t cudaMalloc(void** address, size_t size) {
    Locked locked;
    if (!allowed_in_capture("cudaMalloc", false)) return failed(cudaErrorStreamCaptureUnsupported);
    note("malloc %zu", size);
    Allocation* made = allocate(size, DEVICE, device);
    if (!made) return failed(cudaErrorMemoryAllocation);
    memset(made->start, 0xff, size);  // NaN, and no zeros that a real device would not have
    *address = made->start;
    return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** address, size_t size, unsigned) { return cudaMalloc(address, size); }
cudaError_t cudaFree(void* address) {
    if (!address) return cudaSuccess;
    Locked locked;
    Allocation* found = find(address);
    if (!found || found->start != address || found->place != DEVICE) return failed(cudaErrorInvalidValue);
    if (!allowed_in_capture("cudaFree", false)) return failed(cudaErrorStreamCaptureUnsupported);
    finish_device();  // as the real one
    release(found);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    Locked locked;
    *free = memory_size - used(device);
    *total = memory_size;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
    Locked locked;
    Allocation* made = allocate(size, PINNED, -1);
    if (!made) return failed(cudaErrorMemoryAllocation);
    *address = made->start;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
    if (!address) return cudaSuccess;
    Locked locked;
    Allocation* found = find(address);
    if (!found || found->start != address || found->place != PINNED) return failed(cudaErrorInvalidValue);
    release(found);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
    Locked locked;
    if (find(address)) return failed(cudaErrorHostMemoryAlreadyRegistered);
    adopt((char*)address, size);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
    Locked locked;
    Allocation* found = find(address);
    if (!found || found->start != address || !found->registered) return failed(cudaErrorHostMemoryNotRegistered);
    release(found);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    Locked locked;
    memset(attributes, 0, sizeof *attributes);
    Allocation* found = find(address);
    attributes->type = !found                   ? cudaMemoryTypeUnregistered
                       : found->place == PINNED ? cudaMemoryTypeHost
                                                : cudaMemoryTypeDevice;
    attributes->device = found && found->place != PINNED ? found->device : found ? 0 : -2;
    if (found) attributes->devicePointer = (void*)address;
    if (!found || found->place == PINNED) attributes->hostPointer = (void*)address;
    return cudaSuccess;
}

// Copies. `waits`: the host does, for the whole stream.

static cudaError_t copy(void* to, const void* from, size_t size, Stream& stream, bool waits, const char* call) {
    if (!size) return cudaSuccess;
    Allocation *target = find(to), *source = find(from);
    bool pageable = !target || !source;
    const char* kind = pageable                                                      ? "pageable"
                       : target->place == PINNED || source->place == PINNED          ? "pinned"
                       : target->device == source->device                            ? "device_copies"
                                                                                     : "peer";
    if (stream.capture && pageable) {
        problem("%s of pageable memory while the stream is captured", call);
        stream.capture->invalid = true;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    if (!stream.capture) note("copy %s %zu", kind, size);
    bool late = target && target->place == PINNED && !waits, watched = source && source->place == PINNED;
    const char* wrong = submit(stream, call, [=]() -> const char* {
        if (!touch(from, size, false, call) || !touch(to, size, true, call)) return last_problem.c_str();
        if (late) {
            deliver_late(to, from, size);
        } else {
            overwrite((const char*)to, size);
            memmove(to, from, size);
            if (watched) watch(from, size);
        }
        return nullptr;
    });
    if (wrong) return failed(cudaErrorIllegalAddress);
    if (waits || (!target && !stream.capture)) {  // to pageable memory the host waits in any case
        wait_for(stream.clock);
        note("wait %s", call);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t handle) {
    ON_STREAM(handle);
    return copy(to, from, size, stream, false, "cudaMemcpyAsync");
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
    ON_STREAM(nullptr);
    if (!allowed_in_capture("cudaMemcpy", true)) return failed(cudaErrorStreamCaptureUnsupported);
    return copy(to, from, size, stream, true, "cudaMemcpy");
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t handle) {
    ON_STREAM(handle);
    return copy(to, from, size, stream, false, "cudaMemcpyPeerAsync");
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t size) {
    ON_STREAM(nullptr);
    return copy(to, from, size, stream, true, "cudaMemcpyPeer");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_step, const void* from, size_t from_step, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t handle) {
    ON_STREAM(handle);
    for (size_t row = 0; row < height; row++)
        if (cudaError_t error = copy((char*)to + row * to_step, (const char*)from + row * from_step, width, stream,
                                     false, "cudaMemcpy2DAsync"))
            return error;
    return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, size_t to_step, const void* from, size_t from_step, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpy2DAsync(to, to_step, from, from_step, width, height, kind, nullptr);
    return error ? error : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t handle) {
    ON_STREAM(handle);
    if (!size) return cudaSuccess;
    return as_error(submit(stream, "cudaMemsetAsync", [=]() -> const char* {
        if (!find(address)) problem("cudaMemsetAsync of memory that is not the device's");
        if (!find(address) || !touch(address, size, true, "cudaMemsetAsync")) return last_problem.c_str();
        memset(address, value, size);
        return nullptr;
    }));
}
cudaError_t cudaMemset(void* address, int value, size_t size) { return cudaMemsetAsync(address, value, size, nullptr); }

// Memory of other processes, by the file that holds it.

struct IpcMemory {
    SharedFile file;
    int device;
    size_t size;
};
static_assert(sizeof(IpcMemory) <= sizeof(cudaIpcMemHandle_t), "");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
    Locked locked;
    Allocation* found = find(address);
    if (!found || found->place != DEVICE) return failed(cudaErrorInvalidValue);
    share_clocks();
    memset(handle, 0, sizeof *handle);
    *(IpcMemory*)handle = IpcMemory{shared_file(found->file), found->device, found->size};
    return cudaSuccess;
}
static std::map<uint64_t, Allocation*> opened;  // by the number of the file: its memory is at one place
static bool maps = true;
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
    Locked locked;
    auto& theirs = *(IpcMemory*)&handle;
    if (theirs.file.process == process) return failed(cudaErrorDeviceUninitialized);
    int file = maps ? open_shared(theirs.file) : -1;
    if (file < 0) return failed(cudaErrorMapBufferObjectFailed);
    share_clocks();
    Allocation*& found = opened[theirs.file.number];
    if (found) {
        found->opened++;
        close(file);
    } else {
        found = open_memory(file, theirs.size, theirs.device);
    }
    *address = found->start;
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
    Locked locked;
    for (auto& each : opened) {
        if (each.second->start != address) continue;
        if (--each.second->opened) return cudaSuccess;
        release(each.second);
        opened.erase(each.first);
        return cudaSuccess;
    }
    return failed(cudaErrorInvalidValue);
}

void driver_configure(int devices, size_t memory) {
    device_count = devices;
    memory_size = memory;
}
// Until `full` is 0 again the devices have no more memory than is in use.
void driver_fill(int full) {
    Locked locked;
    static size_t before = memory_size;
    memory_size = full ? used(device) : before;
}
void driver_map(int on) { maps = on; }  // whether other processes' memory can be opened
}
