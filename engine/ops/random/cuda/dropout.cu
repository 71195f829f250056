// The pass of dropout over flat memory, forward and backward: elements kept and scaled by a mask, or 0.

typedef Pack<bool, WIDTH> Masks;

// Elements of the first `packs` accesses are done WIDTH at a time, the rest one by one.
extern "C" __global__ void masked_scale(
    const element* x, const bool* mask, element* out, int64 count, int64 packs, double scale) {
    int64 step = (int64)gridDim.x * blockDim.x, first = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    real factor = (real)scale;
    for (int64 pack = first; pack < packs; pack += step) {
        Elements values = ((const Elements*)x)[pack];
        Masks kept = ((const Masks*)mask)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            values.at[i] = (element)((real)values.at[i] * (kept.at[i] ? factor : (real)0));
        ((Elements*)out)[pack] = values;
    }
    for (int64 i = packs * WIDTH + first; i < count; i += step)
        out[i] = (element)((real)x[i] * (mask[i] ? factor : (real)0));
}
