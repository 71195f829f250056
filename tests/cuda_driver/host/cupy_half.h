// The same with the types of two bytes, which are as much again.

#include "cupy.h"
#include <cupy/float16.cuh>
#include <cupy/bfloat16.cuh>
