// The four operations on arrays that lie alike, over flat memory; half precision is computed in float and rounded once.

// Elements of the first `packs` accesses are done WIDTH at a time, the rest one by one. `out` may be an operand.
template <typename Function>
DEVICE void each(const element* a, const element* b, element* out, int64 count, int64 packs, Function function) {
    int64 step = (int64)gridDim.x * blockDim.x, first = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64 pack = first; pack < packs; pack += step) {
        Elements values = ((const Elements*)a)[pack], others = ((const Elements*)b)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values.at[i] = (element)function((real)values.at[i], (real)others.at[i]);
        ((Elements*)out)[pack] = values;
    }
    for (int64 i = packs * WIDTH + first; i < count; i += step) out[i] = (element)function((real)a[i], (real)b[i]);
}

#define PARAMETERS const element *a, const element *b, element *out, int64 count, int64 packs
#define EACH(result) { each(a, b, out, count, packs, [](real x, real y) { return result; }); }

extern "C" __global__ void add(PARAMETERS) EACH(x + y)
extern "C" __global__ void subtract(PARAMETERS) EACH(x - y)
extern "C" __global__ void multiply(PARAMETERS) EACH(x * y)
extern "C" __global__ void true_divide(PARAMETERS) EACH(x / y)
