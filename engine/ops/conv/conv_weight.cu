// The gradient of a convolution's weight. Rows of the product are channels of the result's gradient, columns are taps
// of the window and channels of the input, terms are pixels of the gradient. Blocks along z sum parts of the pixels,
// which `add_parts` of conv_parts.cu adds in their order: equal calls give equal bits.

const bool BOTH_TURNED = ACCESS > 1;
const int LEADING_A = BOTH_TURNED ? ROWS + 8 : DEPTH + 16 / (int)sizeof(element);
const int LEADING_B = BOTH_TURNED ? COLUMNS + 8 : DEPTH + 16 / (int)sizeof(element);
const int SIZE_A = BOTH_TURNED ? DEPTH * LEADING_A : ROWS * LEADING_A;
const int SIZE_B = BOTH_TURNED ? DEPTH * LEADING_B : COLUMNS * LEADING_B;
const int FETCHED_A = ACCESS == 1 ? ROWS * DEPTH / THREADS : 1, FETCHED_B = ACCESS == 1 ? COLUMNS * DEPTH / THREADS : 1;

struct Pixel {
    int64 slope, input;
    Point place;
};

// `parts`: float32 (gridDim.z, groups, outputs, taps * channels).
extern "C" __global__ void __launch_bounds__(THREADS)
conv_weight(const element* slope, const element* input, float* parts, int64 pixels, int64 slabs_a_part, int channels,
            int outputs, POINT(input_size), POINT(size), POINT(kernel), POINT(stride), POINT(padding), POINT(dilation),
            IMAGE(slope_step), IMAGE(input_step)) {
    Point sizes = POINT_OF(size), input_sizes = POINT_OF(input_size), kernels = POINT_OF(kernel);
    Point strides = POINT_OF(stride), paddings = POINT_OF(padding), dilations = POINT_OF(dilation);
    Image slopes = IMAGE_OF(slope_step), inputs = IMAGE_OF(input_step);
    int width = kernels.at[0] * kernels.at[1] * kernels.at[2] * channels;
    int column_tiles = (width + COLUMNS - 1) / COLUMNS;
    int first_row = blockIdx.x / column_tiles * ROWS, first_column = blockIdx.x % column_tiles * COLUMNS;
    int group = blockIdx.y;
    slope += (int64)group * outputs * slopes.channel;
    input += (int64)group * channels * inputs.channel;
    int64 first_slab = blockIdx.z * slabs_a_part, last = (pixels + DEPTH - 1) / DEPTH;
    int slabs = (int)(last - first_slab < slabs_a_part ? last - first_slab : slabs_a_part);

    element* slabs_a = (element*)memory;
    element* slabs_b = slabs_a + STAGES * SIZE_A;
    Pixel* tables = (Pixel*)(slabs_b + STAGES * SIZE_B);
    Tap* taps = (Tap*)(tables + 2 * DEPTH);

    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        int column = first_column + i;
        Tap tap = {0, {{NOWHERE, NOWHERE, NOWHERE}}};
        if (column < width) {
            decode<uint32>(column / channels, kernels, tap.move);
            UNROLL for (int axis = 0; axis < 3; axis++) tap.move.at[axis] *= dilations.at[axis];
            tap.offset = column % channels * inputs.channel + offset_of(tap.move, inputs);
        }
        taps[i] = tap;
    }
    auto describe = [&](int slab) {  // the pixels of a slab
        if (threadIdx.x >= DEPTH) return;
        int64 number = (first_slab + slab) * DEPTH + threadIdx.x;
        Pixel pixel = {-1, 0, {{NOWHERE, NOWHERE, NOWHERE}}};
        if (number < pixels) {
            Point place;
            int64 sample = decode(number, sizes, place);
            pixel.slope = sample * slopes.sample + offset_of(place, slopes);
            UNROLL for (int axis = 0; axis < 3; axis++)
                pixel.place.at[axis] = place.at[axis] * strides.at[axis] - paddings.at[axis];
            pixel.input = sample * inputs.sample + offset_of(pixel.place, inputs);
        }
        tables[slab % 2 * DEPTH + threadIdx.x] = pixel;
    };

    element fetched_a[FETCHED_A], fetched_b[FETCHED_B];
    auto fetch = [&](int slab) {  // to shared memory, or to registers
        const Pixel* table = tables + slab % 2 * DEPTH;
        if (ACCESS > 1) {
            element* a = slabs_a + slab % STAGES * SIZE_A;
            element* b = slabs_b + slab % STAGES * SIZE_B;
            for (int at = threadIdx.x; at < DEPTH * (ROWS / ACCESS); at += THREADS) {
                int term = at / (ROWS / ACCESS), row = at % (ROWS / ACCESS) * ACCESS;
                bool inside = table[term].slope >= 0 && first_row + row < outputs;
                copy_16_bytes(a + term * LEADING_A + row, slope + (inside ? table[term].slope + first_row + row : 0),
                              inside);
            }
            for (int at = threadIdx.x; at < DEPTH * (COLUMNS / ACCESS); at += THREADS) {
                int term = at / (COLUMNS / ACCESS), column = at % (COLUMNS / ACCESS) * ACCESS;
                Tap tap = taps[column];
                bool inside = is_inside(table[term].place, tap.move, input_sizes);
                copy_16_bytes(b + term * LEADING_B + column, input + (inside ? table[term].input + tap.offset : 0),
                              inside);
            }
        } else {
            Pixel pixel = table[threadIdx.x % DEPTH];
            UNROLL for (int i = 0; i < FETCHED_A; i++) {
                int row = first_row + threadIdx.x / DEPTH + i * (THREADS / DEPTH);
                bool inside = row < outputs && pixel.slope >= 0;
                fetched_a[i] = inside ? slope[pixel.slope + row * slopes.channel] : (element)0.0f;
            }
            UNROLL for (int i = 0; i < FETCHED_B; i++) {
                Tap tap = taps[threadIdx.x / DEPTH + i * (THREADS / DEPTH)];
                bool inside = is_inside(pixel.place, tap.move, input_sizes);
                fetched_b[i] = inside ? input[pixel.input + tap.offset] : (element)0.0f;
            }
        }
    };
    auto put = [&](int slab) {  // from registers to shared memory
        if (ACCESS > 1) return;
        element* a = slabs_a + slab % STAGES * SIZE_A + threadIdx.x / DEPTH * LEADING_A + threadIdx.x % DEPTH;
        element* b = slabs_b + slab % STAGES * SIZE_B + threadIdx.x / DEPTH * LEADING_B + threadIdx.x % DEPTH;
        UNROLL for (int i = 0; i < FETCHED_A; i++) a[i * (THREADS / DEPTH) * LEADING_A] = fetched_a[i];
        UNROLL for (int i = 0; i < FETCHED_B; i++) b[i * (THREADS / DEPTH) * LEADING_B] = fetched_b[i];
    };

    float sums[MT][NT][4];
    clear(sums);
    describe(0);
    for (int slab = 0; slab < STAGES - 1; slab++) {
        __syncthreads();  // the slab's table is there
        if (slab < slabs) {
            fetch(slab);
            put(slab);
        }
        end_of_copies();
        if (slab + 1 < slabs) describe(slab + 1);
    }
    for (int slab = 0; slab < slabs; slab++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // this slab and the next table are there, the last slab is done with
        int next = slab + STAGES - 1;
        if (next < slabs) fetch(next);
        end_of_copies();
        if (next + 1 < slabs) describe(next + 1);
        product::multiply<DEPTH, BOTH_TURNED, BOTH_TURNED>(
            sums, slabs_a + slab % STAGES * SIZE_A + first_row_of_warp() * (BOTH_TURNED ? 1 : LEADING_A), LEADING_A,
            slabs_b + slab % STAGES * SIZE_B + first_column_of_warp() * (BOTH_TURNED ? 1 : LEADING_B), LEADING_B);
        if (next < slabs) put(next);
    }

    parts += ((int64)blockIdx.z * gridDim.y + group) * outputs * width;
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
        int row = first_row + first_row_of_warp() + 16 * m + row_of(2 * r);
        if (row >= outputs) continue;
        UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++) {
            int column = first_column + first_column_of_warp() + product::column_of(n, i);
            if (column < width) parts[(int64)row * width + column] = sums[m][n][2 * r + i];
        }
    }
}
