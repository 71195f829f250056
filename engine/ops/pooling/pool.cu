// Pooling by windows over three spatial axes (fewer have sizes of 1 in front), forward and backward. Images lie as
// planes (N * C, D, H, W), `inner` 1, or channels-last (N, D, H, W, C), `inner` C. The gradient of an image is
// gathered: each of its elements asks the windows it lies in, in their order, so that no two threads add to one place.

struct Axis {
    int size, out, kernel, stride, padding, dilation;  // kernel 0: `out` adaptive windows that share the axis evenly

    // Adaptive window i is [floor(i size / out), ceil((i + 1) size / out)).
    MEMBER int first(int window) const {
        return kernel ? window * stride - padding : (int)((int64)window * size / out);
    }
    MEMBER int end(int window) const {
        if (!kernel) return (int)(((int64)(window + 1) * size + out - 1) / out);
        int reach = first(window) + (kernel - 1) * dilation + 1;
        return reach < size ? reach : size;
    }
    MEMBER int begin(int window) const {
        int at = first(window);
        return at < 0 ? at + (-at + dilation - 1) / dilation * dilation : at;
    }
    MEMBER int step() const { return kernel ? dilation : 1; }
    // The windows from `from_window` to before `to_window` are all that may hold position `at`.
    MEMBER int from_window(int at) const {
        if (!kernel) return (int)((int64)at * out / size);
        int reach = at + padding - (kernel - 1) * dilation;
        return reach > 0 ? (reach + stride - 1) / stride : 0;
    }
    MEMBER int to_window(int at) const {
        if (!kernel) return (int)(((int64)(at + 1) * out + size - 1) / size);
        int windows = (at + padding) / stride + 1;
        return windows < out ? windows : out;
    }
};

#define AXES_PARAMETERS                                                                                            \
    int size0, int size1, int size2, int out0, int out1, int out2, int kernel0, int kernel1, int kernel2, int stride0, \
        int stride1, int stride2, int padding0, int padding1, int padding2, int dilation0, int dilation1, int dilation2
#define AXES                                                                  \
    Axis d = {size0, out0, kernel0, stride0, padding0, dilation0};            \
    Axis h = {size1, out1, kernel1, stride1, padding1, dilation1};            \
    Axis w = {size2, out2, kernel2, stride2, padding2, dilation2};

// The element `at` of (outer, size0, size1, size2, inner).
struct Element3 {
    int64 outer, inner;
    int z, y, x;
};
template <typename Index> DEVICE Element3 element_of(Index at, Index size0, Index size1, Index size2, Index inner) {
    Element3 found;
    found.inner = at % inner;
    at /= inner;
    found.x = (int)(at % size2);
    at /= size2;
    found.y = (int)(at % size1);
    at /= size1;
    found.z = (int)(at % size0);
    found.outer = at / size0;
    return found;
}
DEVICE Element3 element_in(int64 at, int size0, int size1, int size2, int64 inner) {
    if (at < 0x7fffffff && inner < 0x7fffffff) return element_of<uint32>(at, size0, size1, size2, inner);
    return element_of<int64>(at, size0, size1, size2, inner);
}

#define EVERY(at, count) \
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (int64)gridDim.x * blockDim.x)

// best and place (outer, out..., inner): the first of equal maxima, or the last NaN, and its position in the plane.
extern "C" __global__ void max_pool_forward(
    const element* x, element* best, int* place, int64 count, int64 inner, AXES_PARAMETERS) {
    AXES
    int64 plane = (int64)d.size * h.size * w.size;
    EVERY(at, count) {
        Element3 to = element_in(at, d.out, h.out, w.out, inner);
        const element* from = x + to.outer * plane * inner + to.inner;
        int end_z = d.end(to.z), end_y = h.end(to.y), end_x = w.end(to.x);
        int found = (d.begin(to.z) * h.size + h.begin(to.y)) * w.size + w.begin(to.x);
        real most = (real)-bits_float(0x7f800000u);
        for (int z = d.begin(to.z); z < end_z; z += d.step())
            for (int y = h.begin(to.y); y < end_y; y += h.step())
                for (int i = w.begin(to.x); i < end_x; i += w.step()) {
                    int position = (z * h.size + y) * w.size + i;
                    real value = (real)from[position * inner];
                    if (value > most || value != value) {
                        most = value;
                        found = position;
                    }
                }
        best[at] = from[found * inner];
        place[at] = (int)found;
    }
}

// of_x (outer, size..., inner) from g and place (outer, out..., inner).
extern "C" __global__ void max_pool_backward(
    const element* g, const int* place, element* of_x, int64 count, int64 inner, AXES_PARAMETERS) {
    AXES
    int64 windows = (int64)d.out * h.out * w.out;
    EVERY(at, count) {
        Element3 to = element_in(at, d.size, h.size, w.size, inner);
        int64 base = to.outer * windows * inner + to.inner;
        int own = (int)((to.z * h.size + to.y) * w.size + to.x);
        int end_z = d.to_window(to.z), end_y = h.to_window(to.y), end_x = w.to_window(to.x);
        real total = 0;
        for (int z = d.from_window(to.z); z < end_z; z++)
            for (int y = h.from_window(to.y); y < end_y; y++)
                for (int i = w.from_window(to.x); i < end_x; i++) {
                    int64 window = base + ((z * h.out + y) * w.out + i) * inner;
                    if (place[window] == own) total += (real)g[window];
                }
        of_x[at] = (element)total;
    }
}

// What a window's sum is divided by: `divisor` unless 0, else its elements, those of the padding with `count_padding`.
DEVICE int divisor_of(const Axis& axis, int window, int count_padding) {
    if (!axis.kernel || !count_padding) return axis.end(window) - axis.begin(window);
    int reach = axis.first(window) + axis.kernel, limit = axis.size + axis.padding;
    return (reach < limit ? reach : limit) - axis.first(window);
}

extern "C" __global__ void avg_pool_forward(
    const element* x, element* out, int64 count, int64 inner, int count_padding, int divisor, AXES_PARAMETERS) {
    AXES
    int64 plane = (int64)d.size * h.size * w.size;
    EVERY(at, count) {
        Element3 to = element_in(at, d.out, h.out, w.out, inner);
        const element* from = x + to.outer * plane * inner + to.inner;
        int end_z = d.end(to.z), end_y = h.end(to.y), end_x = w.end(to.x);
        real total = 0;
        for (int z = d.begin(to.z); z < end_z; z++)
            for (int y = h.begin(to.y); y < end_y; y++)
                for (int i = w.begin(to.x); i < end_x; i++)
                    total += (real)from[((z * h.size + y) * w.size + i) * inner];
        int64 by = divisor ? divisor
                           : (int64)divisor_of(d, to.z, count_padding) * divisor_of(h, to.y, count_padding) *
                                 divisor_of(w, to.x, count_padding);
        out[at] = (element)(total / (real)by);
    }
}

extern "C" __global__ void avg_pool_backward(
    const element* g, element* of_x, int64 count, int64 inner, int count_padding, int divisor, AXES_PARAMETERS) {
    AXES
    int64 windows = (int64)d.out * h.out * w.out;
    EVERY(at, count) {
        Element3 to = element_in(at, d.size, h.size, w.size, inner);
        const element* from = g + to.outer * windows * inner + to.inner;
        int end_z = d.to_window(to.z), end_y = h.to_window(to.y), end_x = w.to_window(to.x);
        real total = 0;
        for (int z = d.from_window(to.z); z < end_z; z++)
            for (int y = h.from_window(to.y); y < end_y; y++)
                for (int i = w.from_window(to.x); i < end_x; i++) {
                    int64 by = divisor ? divisor
                                       : (int64)divisor_of(d, z, count_padding) * divisor_of(h, y, count_padding) *
                                             divisor_of(w, i, count_padding);
                    total += (real)from[((z * h.out + y) * w.out + i) * inner] / (real)by;
                }
        of_x[at] = (element)total;
    }
}
