// Rows of values combined into rows of a target, in the order they come. The rows are sorted by where they go: one
// thread an element of the first row of each run walks to the end of the run, so that no two threads write to one place
// and sums do not depend on who arrives first.

typedef ELEMENT element;
typedef accumulator<ELEMENT>::type real;  // what is computed in

struct Product {
    template <typename A> static MEMBER A of(A a, A b) { return a * b; }
};
struct Minimum {
    template <typename A> static MEMBER A of(A a, A b) { return a < b || a != a ? a : b; }  // NaN wins
};

// keys: (count), ascending, each the row of the target that one row of values goes to. order: which row of values.
// values: (rows, width); target: (rows, width).
template <typename Combine>
DEVICE void combine(
    const int64* keys, const int64* order, const element* values, element* target, int64 count, int64 width) {
    int64 step = (int64)gridDim.x * blockDim.x;
    for (int64 index = (int64)blockIdx.x * blockDim.x + threadIdx.x; index < count * width; index += step) {
        int64 first = index / width, column = index - first * width, key = keys[first];
        if (first > 0 && keys[first - 1] == key) continue;
        real value = (real)target[key * width + column];
        for (int64 at = first; at < count && keys[at] == key; at++)
            value = Combine::of(value, (real)values[order[at] * width + column]);
        target[key * width + column] = (element)value;
    }
}

extern "C" __global__ void add_at(
    const int64* keys, const int64* order, const element* values, element* target, int64 count, int64 width) {
    combine<Sum>(keys, order, values, target, count, width);
}

extern "C" __global__ void multiply_at(
    const int64* keys, const int64* order, const element* values, element* target, int64 count, int64 width) {
    combine<Product>(keys, order, values, target, count, width);
}

extern "C" __global__ void maximum_at(
    const int64* keys, const int64* order, const element* values, element* target, int64 count, int64 width) {
    combine<Maximum>(keys, order, values, target, count, width);
}

extern "C" __global__ void minimum_at(
    const int64* keys, const int64* order, const element* values, element* target, int64 count, int64 width) {
    combine<Minimum>(keys, order, values, target, count, width);
}
