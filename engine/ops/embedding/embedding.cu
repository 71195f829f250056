// Rows of a table by index, and its adjoint: rows added up at their indices. For the adjoint the indices are sorted,
// stably, by a radix sort that is kernels like all others, so that CUDA graphs can hold it; runs of equal ones are
// summed up in their order, so that equal calls give equal bits however often an index occurs.

#define DIGITS 256           // values of a digit of the sort, and threads of its blocks
#define SORTED_A_BLOCK 2048  // indices
#define ROWS_A_CHUNK 32      // sorted rows that one block adds up

// out (count, columns); a row whose index is outside the table is NaN. packs: accesses a row.
extern "C" __global__ void look_up(
    const element* table, const int64* index, element* out, int64 count, int64 rows, int64 packs) {
    Elements nothing;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) nothing.at[i] = (element)(real)bits_float(0x7fc00000u);
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < count * packs;
         at += (int64)gridDim.x * blockDim.x) {
        int64 place = at < 0x7fffffff ? (uint32)at / (uint32)packs : at / packs, row = index[place];
        bool inside = row >= 0 && row < rows;
        ((Elements*)out)[at] = inside ? ((const Elements*)table)[row * packs + (at - place * packs)] : nothing;
    }
}

// --- sort ------------------------------------------------------------------------------------------------------------

// The keys to sort: indices, and `rows` for those that are outside the table or `padding`.
extern "C" __global__ void keys_of(const int64* index, uint32* keys, int64 count, int64 rows, int64 padding) {
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64)gridDim.x * blockDim.x)
        keys[i] = index[i] >= 0 && index[i] < rows && index[i] != padding ? (uint32)index[i] : (uint32)rows;
}

// How often each digit occurs in each block's part: counts (DIGITS, blocks).
extern "C" __global__ void __launch_bounds__(DIGITS) count_digits(
    const uint32* keys, int* counts, int64 count, int shift) {
    __shared__ int found[DIGITS];
    found[threadIdx.x] = 0;
    __syncthreads();
    int64 begin = (int64)blockIdx.x * SORTED_A_BLOCK;
    for (int64 i = begin + threadIdx.x; i < begin + SORTED_A_BLOCK && i < count; i += DIGITS)
        atomicAdd(&found[keys[i] >> shift & (DIGITS - 1)], 1);
    __syncthreads();
    counts[(int64)threadIdx.x * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Each number becomes the sum of those before it. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) sums_before(int* numbers, int64 count) {
    __shared__ int sums[1024];
    int64 share = (count + 1023) / 1024, begin = threadIdx.x * share;
    int64 end = begin + share < count ? begin + share : count;
    int total = 0;
    for (int64 i = begin; i < end; i++) total += numbers[i];
    sums[threadIdx.x] = total;
    __syncthreads();
    for (int distance = 1; distance < 1024; distance *= 2) {
        int before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    int sum = sums[threadIdx.x] - total;
    for (int64 i = begin; i < end; i++) {
        int number = numbers[i];
        numbers[i] = sum;
        sum += number;
    }
}

// Puts each key, and its position (its own where `positions` is null), behind those of smaller digits and the earlier
// ones of its digit.
extern "C" __global__ void __launch_bounds__(DIGITS) sort_by_digit(
    const uint32* keys, const int* positions, const int* places, uint32* sorted_keys, int* sorted_positions,
    int64 count, int shift) {
    __shared__ int next[DIGITS];
    __shared__ int digits[DIGITS];
    next[threadIdx.x] = places[(int64)threadIdx.x * gridDim.x + blockIdx.x];
    int64 begin = (int64)blockIdx.x * SORTED_A_BLOCK;
    for (int64 first = begin; first < begin + SORTED_A_BLOCK && first < count; first += DIGITS) {
        int64 i = first + threadIdx.x;
        int digit = i < count ? (int)(keys[i] >> shift & (DIGITS - 1)) : DIGITS;
        digits[threadIdx.x] = digit;
        __syncthreads();
        int before = 0, mine = 0;  // of my digit before me; of the digit that this thread counts
        for (int other = 0; other < DIGITS; other++) {
            before += other < threadIdx.x && digits[other] == digit;
            mine += digits[other] == threadIdx.x;
        }
        if (i < count) {
            int place = next[digit] + before;
            sorted_keys[place] = keys[i];
            sorted_positions[place] = positions ? positions[i] : (int)i;
        }
        __syncthreads();
        next[threadIdx.x] += mine;
        __syncthreads();
    }
}

// --- sums of runs ----------------------------------------------------------------------------------------------------

struct Sums {
    real at[WIDTH];
};

DEVICE void put(element* table, uint32 key, int64 packs, int64 pack, const Sums& sums, real factor) {
    Elements made;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) made.at[i] = (element)(sums.at[i] * factor);
    ((Elements*)table)[key * packs + pack] = made;
}

// A block a chunk of the sorted rows. Runs inside a chunk go to the table; of one that began in an earlier chunk, or
// goes on in the next, this chunk's sum goes to `heads` or `tails` (chunks, columns).
extern "C" __global__ void __launch_bounds__(256) add_rows(
    const element* values, const uint32* keys, const int* positions, element* table, real* heads, real* tails,
    int64 count, int64 rows, int64 packs, int by_frequency) {
    __shared__ uint32 own_keys[ROWS_A_CHUNK];
    __shared__ int own_positions[ROWS_A_CHUNK];
    int64 begin = (int64)blockIdx.x * ROWS_A_CHUNK;
    int size = count - begin < ROWS_A_CHUNK ? (int)(count - begin) : ROWS_A_CHUNK;
    if (threadIdx.x < size) {
        own_keys[threadIdx.x] = keys[begin + threadIdx.x];
        own_positions[threadIdx.x] = positions[begin + threadIdx.x];
    }
    __syncthreads();
    bool from_before = begin > 0 && keys[begin - 1] == own_keys[0];
    bool goes_on = begin + size < count && keys[begin + size] == own_keys[size - 1];
    for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        for (int first = 0; first < size;) {
            uint32 key = own_keys[first];
            if (key >= rows) break;  // those that go nowhere are the last
            Sums sums;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sums.at[i] = 0;
            int end = first;
            for (; end < size && own_keys[end] == key; end++) {
                Elements value = ((const Elements*)values)[own_positions[end] * packs + pack];
#pragma unroll
                for (int i = 0; i < WIDTH; i++) sums.at[i] += (real)value.at[i];
            }
            if (first == 0 && from_before)
                ((Sums*)heads)[blockIdx.x * packs + pack] = sums;
            else if (end == size && goes_on)
                ((Sums*)tails)[blockIdx.x * packs + pack] = sums;
            else
                put(table, key, packs, pack, sums, by_frequency ? (real)1 / (real)(end - first) : (real)1);
            first = end;
        }
    }
}

// The runs that lie in several chunks: a block each chunk, which ends at once unless such a run begins there.
extern "C" __global__ void __launch_bounds__(256) join_runs(
    const uint32* keys, element* table, const real* heads, const real* tails, int64 count, int64 rows, int64 packs,
    int by_frequency) {
    int64 begin = (int64)blockIdx.x * ROWS_A_CHUNK, end = begin + ROWS_A_CHUNK;
    if (end >= count || keys[end - 1] != keys[end] || keys[end] >= rows) return;
    uint32 key = keys[end];
    if (begin > 0 && keys[begin - 1] == key) return;  // it began before
    int64 first = end - 1, last = end;  // of the run: its first row, and one behind its last
    while (first > begin && keys[first - 1] == key) first--;
    int64 chunks = 0;  // after this one
    for (;; chunks++) {
        int64 stop = last + ROWS_A_CHUNK < count ? last + ROWS_A_CHUNK : count;
        if (keys[stop - 1] != key) {
            while (keys[last] == key) last++;
            chunks++;
            break;
        }
        last = stop;
        if (last == count || keys[last] != key) {
            chunks++;
            break;
        }
    }
    real factor = by_frequency ? (real)1 / (real)(last - first) : (real)1;
    for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Sums sums = ((const Sums*)tails)[blockIdx.x * packs + pack];
        for (int64 chunk = 1; chunk <= chunks; chunk++) {
            Sums more = ((const Sums*)heads)[(blockIdx.x + chunk) * packs + pack];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sums.at[i] += more.at[i];
        }
        put(table, key, packs, pack, sums, factor);
    }
}
