// Layer norm and RMS norm of rows, forward and backward. A row is read once where its elements fit the registers of the
// threads that work on it. Weight and bias gradients: each group of threads adds up its own rows, then columns of these
// sums are added up in a fixed order.

typedef Pack<WEIGHT, WIDTH> Weights;
typedef Pack<real, WIDTH> Sums;

template <bool CENTRED>
DEVICE void normalise(
    const element* x, const WEIGHT* weight, const WEIGHT* bias, element* out, real* means, real* rstds, int64 rows,
    int64 columns, real eps) {
    __shared__ real scratch[32];
    for (int64 row = FIRST_ROW; row < rows; row += ROWS_A_STEP) {
        Row in;
        in.load(x + row * columns, columns);
        real mean = 0;
        if (CENTRED) {
            real total = 0;
            each(in, [&](int, int64, const Elements& values) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) total += (real)values.at[i];
            });
            mean = over_row<Sum>(total, scratch) / (real)columns;
        }
        real squares = 0;
        each(in, [&](int, int64, const Elements& values) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                real centred = (real)values.at[i] - mean;
                squares += centred * centred;
            }
        });
        real rstd = (real)1 / square_root(over_row<Sum>(squares, scratch) / (real)columns + eps);
        Elements* target = (Elements*)(out + row * columns);
        each(in, [&](int, int64 pack, const Elements& values) {
            Elements made;
            Weights factors, shifts;
            if (weight) factors = ((const Weights*)weight)[pack];
            if (bias) shifts = ((const Weights*)bias)[pack];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                real value = ((real)values.at[i] - mean) * rstd;
                if (weight) value *= (real)factors.at[i];
                if (bias) value += (real)shifts.at[i];
                made.at[i] = (element)value;
            }
            target[pack] = made;
        });
        if (threadIdx.x == 0) {
            if (CENTRED) means[row] = mean;
            rstds[row] = rstd;
        }
    }
}

extern "C" __global__ void __launch_bounds__(512) layer_norm_forward(
    const element* x, const WEIGHT* weight, const WEIGHT* bias, element* out, real* means, real* rstds, int64 rows,
    int64 columns, double eps) {
    normalise<true>(x, weight, bias, out, means, rstds, rows, columns, (real)eps);
}

extern "C" __global__ void __launch_bounds__(512) rms_norm_forward(
    const element* x, const WEIGHT* weight, element* out, real* rstds, int64 rows, int64 columns, double eps) {
    normalise<false>(x, weight, 0, out, 0, rstds, rows, columns, (real)eps);
}

// of_weights, of_biases: (groups of threads, columns), or null where nobody needs them.
template <bool CENTRED>
DEVICE void differentiate(
    const element* g, const element* x, const WEIGHT* weight, const real* means, const real* rstds, element* of_x,
    real* of_weights, real* of_biases, int64 rows, int64 columns) {
    __shared__ real scratch[32];
    Sums for_weight[CACHED], for_bias[CACHED];
#pragma unroll
    for (int k = 0; k < CACHED; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) for_weight[k].at[i] = for_bias[k].at[i] = 0;
    int64 first = FIRST_ROW;
    real* weight_sums = of_weights ? of_weights + first * columns : 0;
    real* bias_sums = of_biases ? of_biases + first * columns : 0;
    for (int64 row = first; row < rows; row += ROWS_A_STEP) {
        Row gradient, in;
        gradient.load(g + row * columns, columns);
        in.load(x + row * columns, columns);
        real mean = CENTRED ? means[row] : (real)0, rstd = rstds[row];
        real total = 0, projected = 0;
        each(gradient, in, [&](int k, int64 pack, const Elements& slopes, const Elements& values) {
            Weights factors;
            if (weight) factors = ((const Weights*)weight)[pack];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                int64 column = pack * WIDTH + i;
                real slope = (real)slopes.at[i], normalised = ((real)values.at[i] - mean) * rstd;
                real scaled = weight ? slope * (real)factors.at[i] : slope;
                total += scaled;
                projected += scaled * normalised;
                if (k < CACHED) {
                    for_weight[k].at[i] += slope * normalised;
                    for_bias[k].at[i] += slope;
                } else {  // beyond the registers sums lie in memory, which this thread alone touches
                    bool begins = row == first;
                    if (weight_sums) weight_sums[column] = (begins ? 0 : weight_sums[column]) + slope * normalised;
                    if (bias_sums) bias_sums[column] = (begins ? 0 : bias_sums[column]) + slope;
                }
            }
        });
        if (!of_x) continue;
        if (CENTRED) total = over_row<Sum>(total, scratch) / (real)columns;
        projected = over_row<Sum>(projected, scratch) / (real)columns;
        Elements* target = (Elements*)(of_x + row * columns);
        each(gradient, in, [&](int, int64 pack, const Elements& slopes, const Elements& values) {
            Elements made;
            Weights factors;
            if (weight) factors = ((const Weights*)weight)[pack];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                real normalised = ((real)values.at[i] - mean) * rstd;
                real scaled = (real)slopes.at[i];
                if (weight) scaled *= (real)factors.at[i];
                if (CENTRED) scaled -= total;
                made.at[i] = (element)((scaled - normalised * projected) * rstd);
            }
            target[pack] = made;
        });
    }
#pragma unroll
    for (int k = 0; k < CACHED; k++) {
        int64 pack = threadIdx.x + (int64)k * blockDim.x;
        if (pack >= columns / WIDTH) continue;
        if (weight_sums) ((Sums*)weight_sums)[pack] = for_weight[k];
        if (bias_sums) ((Sums*)bias_sums)[pack] = for_bias[k];
    }
}

extern "C" __global__ void __launch_bounds__(256) layer_norm_backward(
    const element* g, const element* x, const WEIGHT* weight, const real* means, const real* rstds, element* of_x,
    real* of_weights, real* of_biases, int64 rows, int64 columns) {
    differentiate<true>(g, x, weight, means, rstds, of_x, of_weights, of_biases, rows, columns);
}

extern "C" __global__ void __launch_bounds__(256) rms_norm_backward(
    const element* g, const element* x, const WEIGHT* weight, const real* rstds, element* of_x, real* of_weights,
    int64 rows, int64 columns) {
    differentiate<false>(g, x, weight, 0, rstds, of_x, of_weights, 0, rows, columns);
}

// Sums of the columns of (parts, columns), of two matrices at once: blockIdx.y says which. Blocks of 32 columns by 32.
extern "C" __global__ void __launch_bounds__(1024) add_parts(
    const real* first, const real* second, WEIGHT* of_first, WEIGHT* of_second, int64 parts, int64 columns) {
    __shared__ real sums[32][33];
    const real* matrix = blockIdx.y ? second : first;
    WEIGHT* target = blockIdx.y ? of_second : of_first;
    int64 column = (int64)blockIdx.x * 32 + threadIdx.x;
    real total = 0;
    if (column < columns)
        for (int64 part = threadIdx.y; part < parts; part += 32) total += matrix[part * columns + column];
    sums[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    total = over_warp<Sum>(sums[threadIdx.x][threadIdx.y]);  // a warp a column
    column = (int64)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < columns) target[column] = (WEIGHT)total;
}
