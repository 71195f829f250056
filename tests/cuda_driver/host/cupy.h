// What CuPy puts before its own kernels, to be compiled once.

#include "cuda.h"
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>

LOOKED_UP const int ended_threads_arrive = 1;  // at barriers: kernels of CuPy's need that
