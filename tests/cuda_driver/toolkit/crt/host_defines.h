// What CUDA's headers take from its compiler's, for a host.

#pragma once
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __builtin_align__(n) __align__(n)
