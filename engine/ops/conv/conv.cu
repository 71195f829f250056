// Convolution (ADJOINT 0) and its adjoint in the input (1). Rows of the product are pixels of the result, columns its
// channels; terms are the taps of the window and the channels of the source.
//
// The adjoint reads, for a pixel y of the result and a tap k, the source's pixel (y + padding - k * dilation) / stride
// where that is whole. Pixels with equal remainders modulo the stride (a phase) use the same taps, so that every phase
// is a convolution of stride 1 with some of the taps.

// Along each axis: which pixels of the result (from `first`, `by` apart, `count`), where the window of the first begins
// in the source and how far the next one's does, which taps (from `tap`, `tap_by` apart, `taps`) and how far they
// reach.
struct Window {
    Point first, by, count, origin, move, tap, tap_by, taps, reach;
};

DEVICE int common_divisor(int a, int b) {
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

DEVICE Window window_of(int phase, const Point& size, const Point& kernel, const Point& stride, const Point& padding,
                        const Point& dilation) {
    Window window;
    UNROLL for (int axis = 2; axis >= 0; axis--) {
        int by = stride.at[axis], pad = padding.at[axis], spread = dilation.at[axis];
        if (!ADJOINT) {
            window.first.at[axis] = 0;
            window.by.at[axis] = 1;
            window.count.at[axis] = size.at[axis];
            window.origin.at[axis] = -pad;
            window.move.at[axis] = by;
            window.tap.at[axis] = 0;
            window.tap_by.at[axis] = 1;
            window.taps.at[axis] = kernel.at[axis];
            window.reach.at[axis] = spread;
            continue;
        }
        int rest = phase % by, every = by / common_divisor(by, spread), tap = 0;
        phase /= by;
        while (tap < every && (rest + pad - tap * spread) % by) tap++;
        bool some = tap < every && tap < kernel.at[axis];
        window.first.at[axis] = rest;
        window.by.at[axis] = by;
        window.count.at[axis] = size.at[axis] > rest ? (size.at[axis] - rest + by - 1) / by : 0;
        window.origin.at[axis] = some ? (rest + pad - tap * spread) / by : 0;
        window.move.at[axis] = 1;
        window.tap.at[axis] = tap;
        window.tap_by.at[axis] = every;
        window.taps.at[axis] = some ? (kernel.at[axis] - tap + every - 1) / every : 0;
        window.reach.at[axis] = -(every * spread / by);
    }
    return window;
}

struct Term {
    Tap source;
    int64 weight;
};

struct alignas(2 * sizeof(element)) Two {
    element of[2];
};

const bool ROWS_TURNED = ACCESS == 1;
const int ENTRIES = DEPTH / ACCESS;
const int LEADING_A = ROWS_TURNED ? ROWS + 8 : DEPTH + 16 / (int)sizeof(element);
const int LEADING_B = DEPTH + 16 / (int)sizeof(element);
const int SIZE_A = (ROWS_TURNED ? DEPTH : ROWS) * LEADING_A, SIZE_B = COLUMNS * LEADING_B;
const int PIXELS = ROWS_TURNED ? 1 : ROWS * ENTRIES / THREADS;  // of a thread
const int FETCHED_A = ACCESS == 1 ? ROWS * DEPTH / THREADS : 1, FETCHED_B = ACCESS == 1 ? COLUMNS * DEPTH / THREADS : 1;

extern "C" __global__ void __launch_bounds__(THREADS)
conv(const element* source, const element* weight, const element* bias, element* out, int batch, int channels,
     int outputs, POINT(source_size), POINT(size), POINT(kernel), POINT(stride), POINT(padding), POINT(dilation),
     IMAGE(source_step), IMAGE(out_step), IMAGE(weight_step), int64 weight_group, int pairs) {
    Point sizes = POINT_OF(size), source_sizes = POINT_OF(source_size), kernels = POINT_OF(kernel);
    Point strides = POINT_OF(stride), paddings = POINT_OF(padding), dilations = POINT_OF(dilation);
    Image source_image = IMAGE_OF(source_step), out_image = IMAGE_OF(out_step), weights = IMAGE_OF(weight_step);
    Window window = window_of(blockIdx.z, sizes, kernels, strides, paddings, dilations);
    int64 pixels = (int64)batch * window.count.at[0] * window.count.at[1] * window.count.at[2];
    int column_tiles = (outputs + COLUMNS - 1) / COLUMNS;
    int64 first_pixel = (int64)(blockIdx.x / column_tiles) * ROWS;
    int first_column = blockIdx.x % column_tiles * COLUMNS;
    if (first_pixel >= pixels) return;
    int group = blockIdx.y;
    source += (int64)group * channels * source_image.channel;
    weight += group * weight_group;
    int terms = window.taps.at[0] * window.taps.at[1] * window.taps.at[2] * channels;
    int slabs = (terms + DEPTH - 1) / DEPTH;

    element* slabs_a = (element*)memory;
    element* slabs_b = slabs_a + STAGES * SIZE_A;
    Term* tables = (Term*)(slabs_b + STAGES * SIZE_B);

    // What this thread reads: rows of slabs by place, entries of terms by table.
    int64 base[PIXELS];
    Point place[PIXELS];
    UNROLL for (int i = 0; i < PIXELS; i++) {
        int64 pixel = first_pixel + (ROWS_TURNED ? threadIdx.x % ROWS : (threadIdx.x + i * THREADS) / ENTRIES);
        int64 sample = decode(pixel, window.count, place[i]);
        UNROLL for (int axis = 0; axis < 3; axis++)
            place[i].at[axis] =
                pixel < pixels ? window.origin.at[axis] + place[i].at[axis] * window.move.at[axis] : NOWHERE;
        base[i] = pixel < pixels ? sample * source_image.sample + offset_of(place[i], source_image) : 0;
    }

    auto describe = [&](int slab) {  // the terms of a slab
        if (threadIdx.x >= ENTRIES) return;
        uint32 number = slab * DEPTH + threadIdx.x * ACCESS;
        Term term = {{0, {{NOWHERE, NOWHERE, NOWHERE}}}, -1};
        if (number < terms) {
            Point tap;
            int64 channel = number % (uint32)channels;
            decode<uint32>(number / (uint32)channels, window.taps, tap);
            term.weight = channel * weights.channel;
            UNROLL for (int axis = 0; axis < 3; axis++) {
                term.source.move.at[axis] = tap.at[axis] * window.reach.at[axis];
                term.weight +=
                    (window.tap.at[axis] + (int64)tap.at[axis] * window.tap_by.at[axis]) * weights.step[axis];
            }
            term.source.offset = channel * source_image.channel + offset_of(term.source.move, source_image);
        }
        tables[slab % 2 * ENTRIES + threadIdx.x] = term;
    };

    element fetched_a[FETCHED_A], fetched_b[FETCHED_B];
    auto fetch = [&](int slab) {  // to shared memory, or to registers
        const Term* table = tables + slab % 2 * ENTRIES;
        if (ACCESS > 1) {
            element* a = slabs_a + slab % STAGES * SIZE_A;
            element* b = slabs_b + slab % STAGES * SIZE_B;
            int entry = threadIdx.x % ENTRIES;
            Term term = table[entry];
            UNROLL for (int i = 0; i < PIXELS; i++) {
                bool inside = is_inside(place[i], term.source.move, source_sizes);
                copy_16_bytes(a + (threadIdx.x + i * THREADS) / ENTRIES * LEADING_A + entry * ACCESS,
                              source + (inside ? base[i] + term.source.offset : 0), inside);
            }
            for (int at = threadIdx.x; at < COLUMNS * ENTRIES; at += THREADS) {
                int column = at / ENTRIES;
                bool inside = first_column + column < outputs && term.weight >= 0;
                copy_16_bytes(b + column * LEADING_B + entry * ACCESS,
                              weight + (inside ? (first_column + column) * weights.sample + term.weight : 0), inside);
            }
        } else {
            UNROLL for (int i = 0; i < FETCHED_A; i++) {
                Tap tap = table[threadIdx.x / ROWS + i * (THREADS / ROWS)].source;
                bool inside = is_inside(place[0], tap.move, source_sizes);
                fetched_a[i] = inside ? source[base[0] + tap.offset] : (element)0.0f;
            }
            UNROLL for (int i = 0; i < FETCHED_B; i++) {
                int at = threadIdx.x + i * THREADS, column = first_column + at / DEPTH;
                int64 term = table[at % DEPTH].weight;
                fetched_b[i] = column < outputs && term >= 0 ? weight[column * weights.sample + term] : (element)0.0f;
            }
        }
    };
    auto put = [&](int slab) {  // from registers to shared memory
        if (ACCESS > 1) return;
        element* a = slabs_a + slab % STAGES * SIZE_A;
        element* b = slabs_b + slab % STAGES * SIZE_B;
        UNROLL for (int i = 0; i < FETCHED_A; i++)
            a[(threadIdx.x / ROWS + i * (THREADS / ROWS)) * LEADING_A + threadIdx.x % ROWS] = fetched_a[i];
        UNROLL for (int i = 0; i < FETCHED_B; i++) {
            int at = threadIdx.x + i * THREADS;
            b[at / DEPTH * LEADING_B + at % DEPTH] = fetched_b[i];
        }
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
        const element* a = slabs_a + slab % STAGES * SIZE_A;
        product::multiply<DEPTH, ROWS_TURNED, false>(
            sums, a + first_row_of_warp() * (ROWS_TURNED ? 1 : LEADING_A), LEADING_A,
            slabs_b + slab % STAGES * SIZE_B + first_column_of_warp() * LEADING_B, LEADING_B);
        if (next < slabs) put(next);
    }

    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
        int64 pixel = first_pixel + first_row_of_warp() + 16 * m + row_of(2 * r);
        if (pixel >= pixels) continue;
        Point at;
        int64 sample = decode(pixel, window.count, at);
        UNROLL for (int axis = 0; axis < 3; axis++)
            at.at[axis] = window.first.at[axis] + at.at[axis] * window.by.at[axis];
        element* row = out + sample * out_image.sample + offset_of(at, out_image);
        UNROLL for (int n = 0; n < NT; n++) {
            int column = first_column + first_column_of_warp() + product::column_of(n, 0);
            int channel = group * outputs + column;
            Two two;
            UNROLL for (int i = 0; i < 2; i++)
                if (column + i < outputs)
                    two.of[i] = (element)(sums[m][n][2 * r + i] + (bias ? (float)bias[channel + i] : 0.0f));
            element* target = row + channel * out_image.channel;
            if (pairs && column + 1 < outputs) *(Two*)target = two;
            else UNROLL for (int i = 0; i < 2; i++)
                if (column + i < outputs) target[i * out_image.channel] = two.of[i];
        }
    }
}
