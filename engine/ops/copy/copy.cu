// Copies between any two layouts of one shape, with conversion. `SOURCE` and `ELEMENT` (of the target) are macros:
// words of 1 to 16 bytes where nothing is converted, floating point types where something is.

struct alignas(16) word16 {
    uint64 low, high;
};

typedef SOURCE source_type;
typedef ELEMENT element;

#define MOST_AXES 8
#define TILE 32

// Axes from the slowest to the fastest of the target; strides in elements. Of `tiles`, the last two are the fastest of
// the source and that of the target.
struct Layout {
    int64 sizes[MOST_AXES], from[MOST_AXES], to[MOST_AXES];
    int axes;
};

// Offsets of element `index`, counted over the first `axes` axes.
template <typename Index>
DEVICE void locate(const Layout& layout, int axes, Index index, int64& from, int64& to) {
    for (int axis = axes - 1; axis >= 0; axis--) {
        Index size = (Index)layout.sizes[axis], rest = index / size;
        int64 at = (int64)(index - rest * size);
        from += at * layout.from[axis];
        to += at * layout.to[axis];
        index = rest;
    }
}

template <int N, typename Index>
DEVICE void copy_packs(const source_type* source, element* target, const Layout& layout, int64 packs) {
    for (int64 pack = FIRST_THREAD; pack < packs; pack += ALL_THREADS) {
        int64 from = 0, to = 0;
        locate<Index>(layout, layout.axes, (Index)pack, from, to);
        Pack<source_type, N> values = *(const Pack<source_type, N>*)(source + from);
        Pack<element, N> converted;
#pragma unroll
        for (int i = 0; i < N; i++) converted.at[i] = (element)values.at[i];
        *(Pack<element, N>*)(target + to) = converted;
    }
}

// In the order of the target. wide: the layout is one of packs (the last axis is contiguous in both, aligned, and its
// size and strides are counted in packs of as many elements as the larger type has in 16 bytes).
extern "C" __global__ void strided(const void* from, void* to, Layout layout, int64 count, bool wide) {
    const source_type* source = (const source_type*)from;
    element* target = (element*)to;
    const int N = Sixteen<source_type>::elements < Sixteen<element>::elements ? Sixteen<source_type>::elements
                                                                             : Sixteen<element>::elements;
    bool small = count < (1ll << 31);
    if (wide && small) copy_packs<N, uint32>(source, target, layout, count);
    if (wide && !small) copy_packs<N, int64>(source, target, layout, count);
    if (!wide && small) copy_packs<1, uint32>(source, target, layout, count);
    if (!wide && !small) copy_packs<1, int64>(source, target, layout, count);
}

// Where another axis is the fastest in the source than in the target: squares, read along the one and written along the
// other. Blocks of TILE x 8 threads.
extern "C" __global__ void tiles(const void* memory, void* result, Layout layout, int64 count) {
    const source_type* source = (const source_type*)memory;
    element* target = (element*)result;
    __shared__ source_type square[TILE][TILE + 1];
    int across = layout.axes - 2, along = layout.axes - 1;  // fastest of the source, of the target
    int64 width = layout.sizes[across], height = layout.sizes[along];
    int64 columns = (width + TILE - 1) / TILE, rows = (height + TILE - 1) / TILE;
    for (int64 tile = blockIdx.x; tile < count; tile += gridDim.x) {
        int64 from = 0, to = 0, left = tile % columns * TILE, top = tile / columns % rows * TILE;
        locate<int64>(layout, across, tile / columns / rows, from, to);
        for (int row = threadIdx.y; row < TILE; row += blockDim.y)
            if (top + row < height && left + threadIdx.x < width)
                square[row][threadIdx.x] =
                    source[from + (top + row) * layout.from[along] + (left + threadIdx.x) * layout.from[across]];
        __syncthreads();
        for (int column = threadIdx.y; column < TILE; column += blockDim.y)
            if (left + column < width && top + threadIdx.x < height)
                target[to + (left + column) * layout.to[across] + (top + threadIdx.x) * layout.to[along]] =
                    (element)square[threadIdx.x][column];
        __syncthreads();
    }
}
