// softmax and log_softmax of rows, and along an axis that neighbours lie across (`columns` kernels): forward and
// backward.

#define FORWARD_PARAMETERS const element *x, element *out, int64 rows, int64 columns
#define BACKWARD_PARAMETERS const element *g, const element *y, element *of_x, int64 rows, int64 columns

template <bool LOGARITHM> DEVICE void of_rows(FORWARD_PARAMETERS) {
    __shared__ real scratch[32];
    for (int64 row = FIRST_ROW; row < rows; row += ROWS_A_STEP) {
        Row in;
        in.load(x + row * columns, columns);
        Online own = nothing_yet();
        each(in, [&](int, int64, const Elements& elements) {
            real values[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) values[i] = (real)elements.at[i];
            own.add(values, WIDTH);
        });
        Online all = over_row(own, scratch);
        real factor = (real)1 / all.sum, logarithm_of_sum = logarithm(all.sum);
        Elements* target = (Elements*)(out + row * columns);
        each(in, [&](int, int64 pack, const Elements& elements) {
            Elements made;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                real shifted = (real)elements.at[i] - all.greatest;
                made.at[i] = (element)(LOGARITHM ? shifted - logarithm_of_sum : exponential(shifted) * factor);
            }
            target[pack] = made;
        });
    }
}

template <bool LOGARITHM> DEVICE real slope_of(real g, real y, real total) {
    return LOGARITHM ? g - exponential(y) * total : y * (g - total);
}

template <bool LOGARITHM> DEVICE void slopes_of_rows(BACKWARD_PARAMETERS) {
    __shared__ real scratch[32];
    for (int64 row = FIRST_ROW; row < rows; row += ROWS_A_STEP) {
        Row gradient, result;
        gradient.load(g + row * columns, columns);
        result.load(y + row * columns, columns);
        real total = 0;
        each(gradient, result, [&](int, int64, const Elements& slopes, const Elements& values) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                total += LOGARITHM ? (real)slopes.at[i] : (real)slopes.at[i] * (real)values.at[i];
        });
        total = over_row<Sum>(total, scratch);
        Elements* target = (Elements*)(of_x + row * columns);
        each(gradient, result, [&](int, int64 pack, const Elements& slopes, const Elements& values) {
            Elements made;
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                made.at[i] = (element)slope_of<LOGARITHM>((real)slopes.at[i], (real)values.at[i], total);
            target[pack] = made;
        });
    }
}

extern "C" __global__ void __launch_bounds__(512) softmax_forward(FORWARD_PARAMETERS) {
    of_rows<false>(x, out, rows, columns);
}
extern "C" __global__ void __launch_bounds__(512) log_softmax_forward(FORWARD_PARAMETERS) {
    of_rows<true>(x, out, rows, columns);
}
extern "C" __global__ void __launch_bounds__(512) softmax_backward(BACKWARD_PARAMETERS) {
    slopes_of_rows<false>(g, y, of_x, rows, columns);
}
extern "C" __global__ void __launch_bounds__(512) log_softmax_backward(BACKWARD_PARAMETERS) {
    slopes_of_rows<true>(g, y, of_x, rows, columns);
}

// --- along an axis of `size` steps of `inner` elements: a thread an (outer, inner) -----------------------------------

template <bool LOGARITHM> DEVICE void of_columns(const element* x, element* out, int64 outer, int64 size, int64 inner) {
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < outer * inner;
         at += (int64)gridDim.x * blockDim.x) {
        const element* in = x + at / inner * size * inner + at % inner;
        element* target = out + (in - x);
        Online own = nothing_yet();
        for (int64 j = 0; j < size; j++) {
            real value = (real)in[j * inner];
            own.add(&value, 1);
        }
        real factor = (real)1 / own.sum, logarithm_of_sum = logarithm(own.sum);
        for (int64 j = 0; j < size; j++) {
            real shifted = (real)in[j * inner] - own.greatest;
            target[j * inner] = (element)(LOGARITHM ? shifted - logarithm_of_sum : exponential(shifted) * factor);
        }
    }
}

template <bool LOGARITHM>
DEVICE void slopes_of_columns(
    const element* g, const element* y, element* of_x, int64 outer, int64 size, int64 inner) {
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < outer * inner;
         at += (int64)gridDim.x * blockDim.x) {
        int64 first = at / inner * size * inner + at % inner;
        real total = 0;
        for (int64 j = first; j < first + size * inner; j += inner)
            total += LOGARITHM ? (real)g[j] : (real)g[j] * (real)y[j];
        for (int64 j = first; j < first + size * inner; j += inner)
            of_x[j] = (element)slope_of<LOGARITHM>((real)g[j], (real)y[j], total);
    }
}

extern "C" __global__ void softmax_columns_forward(
    const element* x, element* out, int64 outer, int64 size, int64 inner) {
    of_columns<false>(x, out, outer, size, inner);
}
extern "C" __global__ void log_softmax_columns_forward(
    const element* x, element* out, int64 outer, int64 size, int64 inner) {
    of_columns<true>(x, out, outer, size, inner);
}
extern "C" __global__ void softmax_columns_backward(
    const element* g, const element* y, element* of_x, int64 outer, int64 size, int64 inner) {
    slopes_of_columns<false>(g, y, of_x, outer, size, inner);
}
extern "C" __global__ void log_softmax_columns_backward(
    const element* g, const element* y, element* of_x, int64 outer, int64 size, int64 inner) {
    slopes_of_columns<true>(g, y, of_x, outer, size, inner);
}
