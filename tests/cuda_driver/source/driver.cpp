// The CUDA driver: contexts, modules and launches. A module is a shared object that tests/cuda_driver/nvrtc.py made.

#include "calls.h"
#include "execution.h"

#include <cstring>
#include <dlfcn.h>
#include <iterator>
#include <sstream>
#include <unistd.h>

using namespace driver;

namespace driver {
bool kernels_run = true;
}

struct Module {
    void* library;
    std::vector<int> dimensions;  // of a kernel's parameters, -1 for what has none; empty where it takes them as they are
    std::map<std::string, Kernel> kernels;
};

// What one parameter is, and a whole one for a kernel that takes arrays of more dimensions, as large as `size` says: CuPy's
// arrays are an address, a size, a shape and strides, its indexers a size, a shape and an index, which makes their words
// an odd number. Dimensions of one element come after the others.
static std::vector<char> value(const void* parameter, size_t size, int dimensions) {
    if (dimensions < 0) return {(const char*)parameter, (const char*)parameter + size};
    const size_t words = size / sizeof(ptrdiff_t), before = words % 2 ? 1 : 2, most = (words - before) / 2;
    const size_t known = (size_t)dimensions;
    auto* from = (const ptrdiff_t*)parameter;
    std::vector<ptrdiff_t> wide(from, from + before + known);
    wide.resize(before + most, 1);
    wide.insert(wide.end(), from + before + known, from + before + 2 * known);
    wide.resize(before + 2 * most, 0);
    return {(const char*)wide.data(), (const char*)(wide.data() + wide.size())};
}

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** text) {
    switch (error) {
        case CUDA_ERROR_INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
        case CUDA_ERROR_NOT_FOUND: *text = "CUDA_ERROR_NOT_FOUND"; break;
        case CUDA_ERROR_INVALID_HANDLE: *text = "CUDA_ERROR_INVALID_HANDLE"; break;
        case CUDA_ERROR_LAUNCH_FAILED: *text = "CUDA_ERROR_LAUNCH_FAILED"; break;
        case CUDA_ERROR_NOT_SUPPORTED: *text = "CUDA_ERROR_NOT_SUPPORTED"; break;
        case CUDA_ERROR_INVALID_IMAGE: *text = "CUDA_ERROR_INVALID_IMAGE"; break;
        default: *text = "CUDA_ERROR_UNKNOWN";
    }
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    static thread_local std::string kept;
    Locked locked;
    kept = last_problem;
    *text = kept.c_str();
    return CUDA_SUCCESS;
}

// A device has one context, whose handle is its number and 16.
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)(intptr_t)(device + 16), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return device = (int)(intptr_t)context - 16, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* found) { return *found = device, CUDA_SUCCESS; }
CUresult cuCtxCreate(CUcontext* context, unsigned, CUdevice number) {
    return *context = (CUcontext)(intptr_t)(number + 16), CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    Locked locked;
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return *context = (CUcontext)(intptr_t)(stream->device + 16), CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    std::istringstream text((const char*)image);
    std::string path;
    std::getline(text, path);
    if (path.empty() || path[0] != '/') return CUDA_ERROR_INVALID_IMAGE;
    Locked locked;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        problem("%s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    std::vector<int> dimensions{std::istream_iterator<int>(text), {}};
    *module = (CUmodule) new Module{library, dimensions, {}};
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // kept: graphs may have its kernels
CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
    Locked locked;
    auto& module = *(Module*)handle;
    auto found = module.kernels.find(name);
    if (found == module.kernels.end()) {
        std::string symbol = name;
        auto* thread = (void (*)(void**))dlsym(module.library, ("thread_of_" + symbol).c_str());
        auto* signature = (const char* (*)())dlsym(module.library, ("signature_of_" + symbol).c_str());
        auto* most = (const int*)dlsym(module.library, ("most_threads_of_" + symbol).c_str());
        if (!thread) {
            problem("the module has no kernel %s", name);
            return CUDA_ERROR_NOT_FOUND;
        }
        Kernel made{symbol, thread, {}, {}, *most, 48 << 10, dlsym(module.library, "ended_threads_arrive") != nullptr};
        for (const char* at = signature(); *at; at = strchr(at, ' ') + 1)
            made.sizes.push_back((size_t)(*at == 'P' ? sizeof(void*) : strtoul(at + 1, nullptr, 10)));
        made.dimensions = module.dimensions;
        made.dimensions.resize(made.sizes.size(), -1);
        found = module.kernels.emplace(name, made).first;
    }
    *function = (CUfunction)&found->second;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* size, CUmodule handle, const char* name) {
    Locked locked;
    void* found = dlsym(((Module*)handle)->library, name);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    *address = (CUdeviceptr)found;
    if (size) *size = 0;
    return CUDA_SUCCESS;
}

static CUresult refused(const Kernel& kernel, const char* why) {
    problem("%s: the launch is invalid: %s", kernel.name.c_str(), why);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void** parameters,
                        void**) {
    auto& kernel = *(Kernel*)function;
    Locked locked;
    size_t threads = (size_t)block_x * block_y * block_z;
    if (!threads || !grid_x || !grid_y || !grid_z) return refused(kernel, "a grid or block of no size");
    if (grid_x > 2147483647u || grid_y > 65535 || grid_z > 65535) return refused(kernel, "too large a grid");
    if (block_x > 1024 || block_y > 1024 || block_z > 64 || threads > 1024) return refused(kernel, "too large a block");
    if (threads > (size_t)kernel.most_threads)
        return refused(kernel, "a block of more threads than __launch_bounds__, or their absence, allow");
    if (shared > (unsigned)kernel.most_shared)
        return refused(kernel, "more dynamic shared memory than the kernel was permitted");
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->device != device) {
        problem("%s: device %d is current, the stream is of device %d", kernel.name.c_str(), device, stream->device);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!stream->capture) note("launch %s", kernel.name.c_str());
    if (!kernels_run) return CUDA_SUCCESS;
    // The parameters are what they are now: a captured launch runs later.
    std::vector<std::vector<char>> values;
    for (size_t i = 0; i < kernel.sizes.size(); i++)
        values.push_back(value(parameters[i], kernel.sizes[i], kernel.dimensions[i]));
    Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
    const char* wrong = submit(*stream, kernel.name, [&kernel, values = std::move(values), shape]() mutable {
        std::vector<void*> pointers;
        for (auto& value : values) pointers.push_back(value.data());
        return run_grid(kernel, pointers.data(), shape);
    });
    return wrong ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   CUstream, void**) {
    problem("cooperative launches: blocks run one after another here");
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    auto& kernel = *(Kernel*)function;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kernel.most_threads; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel.most_shared; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    auto& kernel = *(Kernel*)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || value > 227 << 10) return refused(kernel, "more shared memory than a block may have");
    kernel.most_shared = value;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    return *blocks = 2, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize, size_t, int) {
    *grid = 132;
    *block = ((Kernel*)function)->most_threads < 256 ? ((Kernel*)function)->most_threads : 256;
    return CUDA_SUCCESS;
}
void driver_run_kernels(int on) { kernels_run = on; }
}
