// One axis of an array replaced by weighted sums of its elements, which tables name: interpolation, padding by
// reflection and the like, pooling by windows of any size. One thread a new element.

typedef ELEMENT element;
typedef accumulator<ELEMENT>::type real;  // what is computed in

// values: (outer, size, inner); out: (outer, count, inner); indices, weights: (terms, count), an index of -1: no term.
extern "C" __global__ void weighted_sums(
    const element* values, const int64* indices, const real* weights, element* out, int64 outer, int64 size,
    int64 inner, int64 count, int terms) {
    int64 step = (int64)gridDim.x * blockDim.x;
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < outer * count * inner; at += step) {
        int64 inside = at % inner, place = at / inner % count;
        const element* line = values + at / (inner * count) * size * inner + inside;
        real total = 0;
        for (int term = 0; term < terms; term++) {
            int64 index = indices[term * count + place];
            if (index >= 0) total += weights[term * count + place] * (real)line[index * inner];
        }
        out[at] = (element)total;
    }
}
