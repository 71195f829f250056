// Statistics of channels, or of groups of them, and what follows from them: batch norm and group norm, forward and
// backward. An image lies as planes (samples, channels, pixels) or, channels-last, as rows (samples * pixels,
// channels). Each part of an image has moments of its own; parts are merged in their order, so that equal calls give
// equal bits.

struct Moments {
    real count, mean, squares;  // squares: sum of squared distances from the mean

    // T. Chan, G. Golub and R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    // (1979)
    MEMBER void merge(real its_count, real its_mean, real its_squares) {
        if (its_count == 0) return;
        real all = count + its_count, distance = its_mean - mean, share = its_count / all;
        mean += distance * share;
        squares += its_squares + distance * distance * count * share;
        count = all;
    }
};

DEVICE Moments no_moments() {
    Moments none = {0, 0, 0};
    return none;
}

// In lane 0 the moments of all lanes of a warp, merged in a fixed order.
DEVICE Moments of_first_lane(Moments own) {
    for (int distance = 16; distance > 0; distance /= 2) {
        real count = __shfl_down_sync(0xffffffffu, own.count, distance);
        real mean = __shfl_down_sync(0xffffffffu, own.mean, distance);
        real squares = __shfl_down_sync(0xffffffffu, own.squares, distance);
        own.merge(count, mean, squares);
    }
    return own;
}

// Elements [begin, end) of one channel in planes: those of the samples begin ... end - 1. Calls visit(offset of a
// pack).
template <typename Visit>
DEVICE void each_of_planes(int64 begin, int64 end, int64 channel, int64 channels, int64 pixels, Visit visit) {
    int64 packs = pixels / WIDTH, sample = begin + threadIdx.x / packs, pack = threadIdx.x % packs;
    int64 more_samples = blockDim.x / packs, more_packs = blockDim.x % packs;
    while (sample < end) {
        visit((sample * channels + channel) * packs + pack);
        sample += more_samples;
        pack += more_packs;
        if (pack >= packs) {
            pack -= packs;
            sample++;
        }
    }
}

// What part of the image a block of threads looks at, the part `number` of all. Planes: samples [begin, end) of one
// channel. Rows: the rows [begin, end), which belong to one sample of `a_sample` rows, split in `parts` parts of
// `a_part` rows, and the channels of `blockDim.x` accesses from access `first`.
struct Part {
    int64 number, begin, end, first;
};
DEVICE Part part_of_planes(int64 samples, int64 channels, int64 a_part) {
    int64 number = blockIdx.x / channels, begin = number * a_part;
    Part part = {number, begin, begin + a_part < samples ? begin + a_part : samples, blockIdx.x % channels};
    return part;
}
DEVICE Part part_of_rows(int64 packs, int64 a_sample, int64 a_part, int64 parts) {
    int64 blocks = (packs + blockDim.x - 1) / blockDim.x, number = blockIdx.x / blocks;
    int64 first = number / parts * a_sample, begin = first + number % parts * a_part;
    int64 end = begin + a_part < first + a_sample ? begin + a_part : first + a_sample;
    Part part = {number, begin, end, blockIdx.x % blocks * blockDim.x};
    return part;
}

extern "C" __global__ void __launch_bounds__(256) moments_of_planes(
    const element* x, real* means, real* squares, int64 samples, int64 channels, int64 pixels, int64 a_part) {
    __shared__ real of_warps[3][32];
    Part part = part_of_planes(samples, channels, a_part);
    int64 channel = part.first;
    Moments own = no_moments();
    each_of_planes(part.begin, part.end, channel, channels, pixels, [&](int64 at) {
        Elements pack = ((const Elements*)x)[at];
        real total = 0, distances = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) total += (real)pack.at[i];
        real mean = total / (real)WIDTH;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) distances += ((real)pack.at[i] - mean) * ((real)pack.at[i] - mean);
        own.merge((real)WIDTH, mean, distances);
    });
    own = of_first_lane(own);
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        of_warps[0][warp] = own.count;
        of_warps[1][warp] = own.mean;
        of_warps[2][warp] = own.squares;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int other = 1; other < blockDim.x / 32; other++)
        own.merge(of_warps[0][other], of_warps[1][other], of_warps[2][other]);
    means[part.number * channels + channel] = own.mean;
    squares[part.number * channels + channel] = own.squares;
}

// Blocks of blockDim.x accesses of neighbouring channels by blockDim.y rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) moments_of_rows(
    const element* x, real* means, real* squares, int64 channels, int64 a_sample, int64 a_part, int64 parts) {
    __shared__ real mean_of[256][WIDTH];
    __shared__ real squares_of[256][WIDTH];
    int64 packs = channels / WIDTH;
    Part part = part_of_rows(packs, a_sample, a_part, parts);
    int64 pack = part.first + threadIdx.x;
    Moments own[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) own[i] = no_moments();
    real seen = 0;
    if (pack < packs)
        for (int64 row = part.begin + threadIdx.y; row < part.end; row += blockDim.y) {
            Elements values = ((const Elements*)x)[row * packs + pack];
            seen += (real)1;
            real share = (real)1 / seen;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                real value = (real)values.at[i], distance = value - own[i].mean;
                own[i].mean += distance * share;
                own[i].squares += distance * (value - own[i].mean);
            }
        }
    int place = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        mean_of[place][i] = own[i].mean;
        squares_of[place][i] = own[i].squares;
        own[i].count = seen;
    }
    __syncthreads();
    if (threadIdx.y || pack >= packs) return;
    for (int other = 1; other < blockDim.y; other++) {
        int64 rows = part.end - part.begin - other;
        real count = rows > 0 ? (real)((rows + blockDim.y - 1) / blockDim.y) : (real)0;
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            own[i].merge(count, mean_of[place + other * blockDim.x][i], squares_of[place + other * blockDim.x][i]);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        means[part.number * channels + pack * WIDTH + i] = own[i].mean;
        squares[part.number * channels + pack * WIDTH + i] = own[i].squares;
    }
}

// Merges (parts, channels) to mean and 1 / sqrt(variance + eps) of each channel, which has `count` elements, `a_part`
// in all parts but the last; and moves running statistics, unless null. Blocks of 32 channels by 32.
extern "C" __global__ void __launch_bounds__(1024) channel_statistics(
    const real* means, const real* squares, int64 parts, int64 channels, int64 count, int64 a_part, double eps,
    real* mean, real* rstd, real* running_mean, real* running_variance, double momentum) {
    __shared__ real of_lanes[3][32][33];
    int64 channel = (int64)blockIdx.x * 32 + threadIdx.x;
    Moments own = no_moments();
    if (channel < channels)
        for (int64 part = threadIdx.y; part < parts; part += 32) {
            int64 rest = count - part * a_part;
            own.merge((real)(rest < a_part ? rest : a_part), means[part * channels + channel],
                      squares[part * channels + channel]);
        }
    of_lanes[0][threadIdx.y][threadIdx.x] = own.count;
    of_lanes[1][threadIdx.y][threadIdx.x] = own.mean;
    of_lanes[2][threadIdx.y][threadIdx.x] = own.squares;
    __syncthreads();
    if (threadIdx.y || channel >= channels) return;
    for (int other = 1; other < 32; other++)
        own.merge(of_lanes[0][other][threadIdx.x], of_lanes[1][other][threadIdx.x], of_lanes[2][other][threadIdx.x]);
    real variance = own.squares / (real)count;
    mean[channel] = own.mean;
    rstd[channel] = (real)1 / square_root(variance + (real)eps);
    real moved = (real)momentum, kept = (real)(1 - momentum);
    if (running_mean) running_mean[channel] = kept * running_mean[channel] + moved * own.mean;
    if (running_variance) {
        real unbiased = own.squares / (real)(count > 1 ? count - 1 : 1);
        running_variance[channel] = kept * running_variance[channel] + moved * unbiased;
    }
}

// Merges (samples, parts, channels) to statistics of (samples, groups): a warp a group.
extern "C" __global__ void group_statistics(
    const real* means, const real* squares, int64 samples, int64 parts, int64 channels, int64 groups, int64 a_sample,
    int64 a_part, double eps, real* mean, real* rstd) {
    int64 width = channels / groups, step = (int64)gridDim.x * blockDim.x / 32;
    for (int64 at = ((int64)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < samples * groups; at += step) {
        int64 sample = at / groups, first = at % groups * width;
        Moments own = no_moments();
        for (int64 item = threadIdx.x % 32; item < parts * width; item += 32) {
            int64 part = item / width, place = (sample * parts + part) * channels + first + item % width;
            int64 rest = a_sample - part * a_part;
            own.merge((real)(rest < a_part ? rest : a_part), means[place], squares[place]);
        }
        own = of_first_lane(own);
        if (threadIdx.x % 32) continue;
        mean[at] = own.mean;
        rstd[at] = (real)1 / square_root(own.squares / own.count + (real)eps);
    }
}

// 1 / sqrt(variance + eps) of `count` running variances.
extern "C" __global__ void rstd_of(const real* variance, real* rstd, int64 count, double eps) {
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64)gridDim.x * blockDim.x)
        rstd[i] = (real)1 / square_root(variance[i] + (real)eps);
}

// --- the image by its statistics -------------------------------------------------------------------------------------
// Where statistics are: at the channel, or with `group` (channels a group) at (sample, group of the channel).

DEVICE int64 statistic_of(int64 sample, int64 channel, int64 channels, int64 group) {
    return group ? sample * (channels / group) + channel / group : channel;
}

// Calls make(pack, channel, statistic) for each access of an image of planes, `packs` of them a plane.
template <typename Index, typename Make>
DEVICE void over_planes(Index count, Index channels, Index packs, Index group, Make make) {
    for (Index pack = blockIdx.x * blockDim.x + threadIdx.x; pack < count; pack += gridDim.x * blockDim.x) {
        Index plane = pack / packs, channel = plane % channels;
        make(pack, channel, group ? plane / group : channel);
    }
}

// Calls make(pack, first channel, first statistic of the sample) for each access of an image of rows.
template <typename Index, typename Make>
DEVICE void over_rows(Index count, Index channels, Index packs, Index group, Index a_sample, Make make) {
    for (Index pack = blockIdx.x * blockDim.x + threadIdx.x; pack < count; pack += gridDim.x * blockDim.x) {
        Index row = pack / packs;
        make(pack, (pack - row * packs) * WIDTH, group ? row / a_sample * (channels / group) : 0);
    }
}

// Indices of 32 bits, whose divisions are cheap, where they suffice.
#define IN_PLANES(make)                                                                                           \
    if (count < 0x7fffffff)                                                                                       \
        over_planes<uint32>(count, channels, packs, group, make);                                                 \
    else                                                                                                          \
        over_planes<uint64>(count, channels, packs, group, make);
#define IN_ROWS(make)                                                                                             \
    if (count < 0x7fffffff)                                                                                       \
        over_rows<uint32>(count, channels, packs, group, a_sample, make);                                         \
    else                                                                                                          \
        over_rows<uint64>(count, channels, packs, group, a_sample, make);
#define STATISTIC(channel) (group ? base + (uint32)(channel) / (uint32)group : (channel))

struct Normalising {
    const real *mean, *rstd, *weight, *bias;

    MEMBER element of(element x, int64 channel, int64 statistic) const {
        real value = ((real)x - mean[statistic]) * rstd[statistic];
        if (weight) value *= weight[channel];
        if (bias) value += bias[channel];
        return (element)value;
    }
};

// count: accesses of the whole image.
extern "C" __global__ void __launch_bounds__(256) normalise_planes(
    const element* x, element* out, const real* mean, const real* rstd, const real* weight, const real* bias,
    int64 count, int64 channels, int64 packs, int64 group) {
    Normalising normalising = {mean, rstd, weight, bias};
    auto make = [&](int64 pack, int64 channel, int64 statistic) {
        Elements values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values.at[i] = normalising.of(values.at[i], channel, statistic);
        ((Elements*)out)[pack] = values;
    };
    IN_PLANES(make)
}

extern "C" __global__ void __launch_bounds__(256) normalise_rows(
    const element* x, element* out, const real* mean, const real* rstd, const real* weight, const real* bias,
    int64 count, int64 channels, int64 packs, int64 group, int64 a_sample) {
    Normalising normalising = {mean, rstd, weight, bias};
    auto make = [&](int64 pack, int64 first, int64 base) {
        Elements values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            values.at[i] = normalising.of(values.at[i], first + i, STATISTIC(first + i));
        ((Elements*)out)[pack] = values;
    };
    IN_ROWS(make)
}

// --- backward --------------------------------------------------------------------------------------------------------

// Sums of g and of g * (x - mean) over each part, (parts, channels). With `group`, parts are samples (planes) or parts
// of samples (rows), which have statistics of their own.
extern "C" __global__ void __launch_bounds__(256) slope_sums_of_planes(
    const element* g, const element* x, const real* mean, real* totals, real* projections, int64 samples,
    int64 channels, int64 pixels, int64 a_part, int64 group) {
    __shared__ real scratch[32];
    Part part = part_of_planes(samples, channels, a_part);
    int64 channel = part.first;
    real centre = mean[statistic_of(part.begin, channel, channels, group)], total = 0, projection = 0;
    each_of_planes(part.begin, part.end, channel, channels, pixels, [&](int64 at) {
        Elements slopes = ((const Elements*)g)[at], values = ((const Elements*)x)[at];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            total += (real)slopes.at[i];
            projection += (real)slopes.at[i] * ((real)values.at[i] - centre);
        }
    });
    total = over_block<Sum>(total, scratch);
    projection = over_block<Sum>(projection, scratch);
    if (threadIdx.x) return;
    totals[part.number * channels + channel] = total;
    projections[part.number * channels + channel] = projection;
}

extern "C" __global__ void __launch_bounds__(256) slope_sums_of_rows(
    const element* g, const element* x, const real* mean, real* totals, real* projections, int64 channels,
    int64 a_sample, int64 a_part, int64 parts, int64 group) {
    __shared__ real total_of[256][WIDTH];
    __shared__ real projection_of[256][WIDTH];
    int64 packs = channels / WIDTH;
    Part part = part_of_rows(packs, a_sample, a_part, parts);
    int64 pack = part.first + threadIdx.x;
    real total[WIDTH], projection[WIDTH], centre[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        total[i] = projection[i] = 0;
        if (pack < packs) centre[i] = mean[statistic_of(part.number / parts, pack * WIDTH + i, channels, group)];
    }
    if (pack < packs)
        for (int64 row = part.begin + threadIdx.y; row < part.end; row += blockDim.y) {
            int64 at = row * packs + pack;
            Elements slopes = ((const Elements*)g)[at], values = ((const Elements*)x)[at];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                total[i] += (real)slopes.at[i];
                projection[i] += (real)slopes.at[i] * ((real)values.at[i] - centre[i]);
            }
        }
    int place = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        total_of[place][i] = total[i];
        projection_of[place][i] = projection[i];
    }
    __syncthreads();
    if (threadIdx.y || pack >= packs) return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        for (int other = 1; other < blockDim.y; other++) {
            total[i] += total_of[place + other * blockDim.x][i];
            projection[i] += projection_of[place + other * blockDim.x][i];
        }
        totals[part.number * channels + pack * WIDTH + i] = total[i];
        projections[part.number * channels + pack * WIDTH + i] = projection[i];
    }
}

// From sums (parts, channels): gradients of weight and bias, and what `input_slopes` subtracts from weight * g, divided
// by `count`, the elements of a channel: a constant, and a multiple of x - mean. Blocks of 32 channels by 32.
extern "C" __global__ void __launch_bounds__(1024) channel_slopes(
    const real* totals, const real* projections, const real* rstd, const real* weight, int64 parts, int64 channels,
    int64 count, real* of_weight, real* of_bias, real* constant, real* multiple) {
    __shared__ real of_lanes[2][32][33];
    int64 channel = (int64)blockIdx.x * 32 + threadIdx.x;
    real total = 0, projection = 0;
    if (channel < channels)
        for (int64 part = threadIdx.y; part < parts; part += 32) {
            total += totals[part * channels + channel];
            projection += projections[part * channels + channel];
        }
    of_lanes[0][threadIdx.y][threadIdx.x] = total;
    of_lanes[1][threadIdx.y][threadIdx.x] = projection;
    __syncthreads();
    if (threadIdx.y || channel >= channels) return;
    for (int other = 1; other < 32; other++) {
        total += of_lanes[0][other][threadIdx.x];
        projection += of_lanes[1][other][threadIdx.x];
    }
    real scale = rstd[channel], factor = (weight ? weight[channel] : (real)1) / (real)count;
    of_weight[channel] = projection * scale;
    of_bias[channel] = total;
    constant[channel] = factor * total;
    multiple[channel] = factor * projection * scale * scale;
}

// The same for groups, from (samples, parts, channels): a warp a (sample, group).
extern "C" __global__ void group_slopes(
    const real* totals, const real* projections, const real* rstd, const real* weight, int64 samples, int64 parts,
    int64 channels, int64 groups, int64 count, real* constant, real* multiple) {
    int64 width = channels / groups, step = (int64)gridDim.x * blockDim.x / 32;
    for (int64 at = ((int64)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < samples * groups; at += step) {
        int64 sample = at / groups, first = at % groups * width;
        real total = 0, projection = 0;
        for (int64 item = threadIdx.x % 32; item < parts * width; item += 32) {
            int64 channel = first + item % width, place = (sample * parts + item / width) * channels + channel;
            real factor = weight ? weight[channel] : (real)1;
            total += factor * totals[place];
            projection += factor * projections[place];
        }
        total = over_warp<Sum>(total);
        projection = over_warp<Sum>(projection);
        if (threadIdx.x % 32) continue;
        constant[at] = total / (real)count;
        multiple[at] = projection * rstd[at] * rstd[at] / (real)count;
    }
}

// Gradients of weight and bias of group norm, from (samples, parts, channels). Blocks of 32 channels by 32.
extern "C" __global__ void __launch_bounds__(1024) group_parameter_slopes(
    const real* totals, const real* projections, const real* rstd, int64 samples, int64 parts, int64 channels,
    int64 groups, real* of_weight, real* of_bias) {
    __shared__ real of_lanes[2][32][33];
    int64 channel = (int64)blockIdx.x * 32 + threadIdx.x;
    real total = 0, projection = 0;
    if (channel < channels)
        for (int64 row = threadIdx.y; row < samples * parts; row += 32) {
            real scale = rstd[row / parts * groups + channel / (channels / groups)];
            total += totals[row * channels + channel];
            projection += projections[row * channels + channel] * scale;
        }
    of_lanes[0][threadIdx.y][threadIdx.x] = total;
    of_lanes[1][threadIdx.y][threadIdx.x] = projection;
    __syncthreads();
    if (threadIdx.y || channel >= channels) return;
    for (int other = 1; other < 32; other++) {
        total += of_lanes[0][other][threadIdx.x];
        projection += of_lanes[1][other][threadIdx.x];
    }
    of_weight[channel] = projection;
    of_bias[channel] = total;
}

struct Sloping {
    const real *mean, *rstd, *weight, *constant, *multiple;

    MEMBER element of(element g, element x, int64 channel, int64 statistic) const {
        real slope = weight ? (real)g * weight[channel] : (real)g;
        real distance = (real)x - mean[statistic];
        return (element)((slope - constant[statistic] - distance * multiple[statistic]) * rstd[statistic]);
    }
};

extern "C" __global__ void __launch_bounds__(256) input_slopes_of_planes(
    const element* g, const element* x, element* out, const real* mean, const real* rstd, const real* weight,
    const real* constant, const real* multiple, int64 count, int64 channels, int64 packs, int64 group) {
    Sloping sloping = {mean, rstd, weight, constant, multiple};
    auto make = [&](int64 pack, int64 channel, int64 statistic) {
        Elements slopes = ((const Elements*)g)[pack], values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) slopes.at[i] = sloping.of(slopes.at[i], values.at[i], channel, statistic);
        ((Elements*)out)[pack] = slopes;
    };
    IN_PLANES(make)
}

extern "C" __global__ void __launch_bounds__(256) input_slopes_of_rows(
    const element* g, const element* x, element* out, const real* mean, const real* rstd, const real* weight,
    const real* constant, const real* multiple, int64 count, int64 channels, int64 packs, int64 group,
    int64 a_sample) {
    Sloping sloping = {mean, rstd, weight, constant, multiple};
    auto make = [&](int64 pack, int64 first, int64 base) {
        Elements slopes = ((const Elements*)g)[pack], values = ((const Elements*)x)[pack];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            slopes.at[i] =
                sloping.of(slopes.at[i], values.at[i], first + i, STATISTIC(first + i));
        ((Elements*)out)[pack] = slopes;
    };
    IN_ROWS(make)
}
