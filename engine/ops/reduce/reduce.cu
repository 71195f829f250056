// Sums of the columns of a matrix: parts of its rows are added up on their own, then the parts in their order, so that
// equal calls give equal bits.

// parts (gridDim.y, columns). Blocks of blockDim.x accesses of neighbouring columns by blockDim.y rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) add_rows(
    const element* x, real* parts, int64 rows, int64 columns, int64 a_part) {
    __shared__ real sums[256][WIDTH];
    int64 packs = columns / WIDTH, pack = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    int64 begin = (int64)blockIdx.y * a_part, end = begin + a_part < rows ? begin + a_part : rows;
    real total[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) total[i] = 0;
    if (pack < packs)
        for (int64 row = begin + threadIdx.y; row < end; row += blockDim.y) {
            Elements values = ((const Elements*)x)[row * packs + pack];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) total[i] += (real)values.at[i];
        }
    int place = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sums[place][i] = total[i];
    __syncthreads();
    if (threadIdx.y || pack >= packs) return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        for (int other = 1; other < blockDim.y; other++) total[i] += sums[place + other * blockDim.x][i];
        parts[(int64)blockIdx.y * columns + pack * WIDTH + i] = total[i];
    }
}

// Blocks of 32 columns by 32.
extern "C" __global__ void __launch_bounds__(1024) add_parts(
    const real* parts, element* out, int64 count, int64 columns) {
    __shared__ real sums[32][33];
    int64 column = (int64)blockIdx.x * 32 + threadIdx.x;
    real total = 0;
    if (column < columns)
        for (int64 part = threadIdx.y; part < count; part += 32) total += parts[part * columns + column];
    sums[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    total = over_warp<Sum>(sums[threadIdx.x][threadIdx.y]);  // a warp a column
    column = (int64)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < columns) out[column] = (element)total;
}
