// The part of CUDA's header that CuPy's module over the runtime uses.

#pragma once
#include <cuda_runtime_api.h>
#include <driver_functions.h>
