// The change of layout before convolutions that read channels as neighbours: matrices (rows, columns) one after another,
// each turned through a tile in shared memory, so that reads and writes both touch neighbours.

typedef ELEMENT element;

const int SIDE = 32, LINES = 8;

extern "C" __global__ void __launch_bounds__(SIDE * LINES)
turn(const element* source, element* target, int64 rows, int64 columns) {
    __shared__ element tile[SIDE][SIDE + 1];
    int lane = threadIdx.x % SIDE, line = threadIdx.x / SIDE;
    int64 across = (columns + SIDE - 1) / SIDE;
    int64 first_row = blockIdx.x / across * SIDE, first_column = blockIdx.x % across * SIDE;
    int64 matrix = (int64)blockIdx.y * rows * columns;
    for (int i = line; i < SIDE; i += LINES) {
        int64 row = first_row + i, column = first_column + lane;
        if (row < rows && column < columns) tile[i][lane] = source[matrix + row * columns + column];
    }
    __syncthreads();
    for (int i = line; i < SIDE; i += LINES) {
        int64 row = first_row + lane, column = first_column + i;
        if (row < rows && column < columns) target[matrix + column * rows + row] = tile[lane][i];
    }
}
