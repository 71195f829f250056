// What every file with CUDA's functions starts from.

#pragma once
#include "state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace driver {

struct Locked {
    std::lock_guard<std::recursive_mutex> guard{lock};
};

// What work returned, as CUDA's errors.
inline cudaError_t as_error(const char* wrong) { return wrong ? cudaErrorIllegalAddress : cudaSuccess; }

}  // namespace driver

// Takes the lock and looks `handle` up as `stream`, or returns from the function.
#define ON_STREAM(handle)                                      \
    driver::Locked locked;                                     \
    driver::Stream* found_stream = driver::stream_of(handle);  \
    if (!found_stream) return cudaErrorInvalidResourceHandle; \
    driver::Stream& stream = *found_stream
