// Tiles of the convolution kernels. Convolution is a product of matrices whose operands are gathered from images while
// they are multiplied: slab by slab of DEPTH terms, the next ones on their way to shared memory while the warps
// multiply one. ACCESS elements are read at once where that many channels are neighbours in memory and divide their
// number; then slabs are copied asynchronously, STAGES of them, else through registers. Macros: see conv.py.

typedef ELEMENT element;
typedef PRODUCT<element> product;  // mma.cuh

const int THREADS = 32 * ROW_WARPS * COLUMN_WARPS;
const int MT = 2, NT = COLUMN_TILES;  // a warp's tile: 32 rows, 8 * NT columns
const int ROWS = 32 * ROW_WARPS, COLUMNS = 8 * NT * COLUMN_WARPS;

extern __shared__ __align__(16) unsigned char memory[];

DEVICE int first_row_of_warp() { return threadIdx.x / 32 % ROW_WARPS * 32; }
DEVICE int first_column_of_warp() { return threadIdx.x / 32 / ROW_WARPS * 8 * NT; }
