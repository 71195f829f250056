// The random numbers of attention's dropout: where a call draws from, and its mask in whole.

// {seed, offset} of one call, kept for its backward and for second derivatives.
extern "C" __global__ void draw(uint64* draws, uint64 captured, uint64 seed, uint64 offset) {
    Draws from = draws_from(captured, seed, offset);
    draws[0] = from.seed;
    draws[1] = from.offset;
}

// The mask that dropout applies, for formulas that want it whole: (heads, queries, keys), row-major.
extern "C" __global__ void keep_mask(
    const uint64* draws, unsigned char* kept, int64 rows, int64 keys, float kept_scale) {
    Dropout dropout = dropout_of(draws, kept_scale);
    int64 groups = (keys + 3) / 4;
    for (int64 place = (int64)blockIdx.x * blockDim.x + threadIdx.x; place < rows * keys;
         place += (int64)gridDim.x * blockDim.x)
        kept[place] = factor_of(dropout, place / keys, groups, place % keys) > 0;
}
