// Convolution with few channels in each of many groups (one: depthwise), where a product of matrices would have next to
// no rows and columns. A thread makes one element of the result; sums are those of `accumulator`.

typedef ELEMENT element;
typedef accumulator<element>::type sum;

// `adjoint` 0: convolution; 1: its adjoint in the input. The `count` elements of a sample are numbered with channels
// last if `channels_last`, else with the last spatial axis last: as they lie in memory, so that neighbouring threads
// read neighbours.
extern "C" __global__ void __launch_bounds__(256)
direct(const element* source, const element* weight, const element* bias, element* out, int batch, uint32 count,
       int groups, int channels, int outputs, POINT(source_size), POINT(size), POINT(kernel), POINT(stride),
       POINT(padding), POINT(dilation), IMAGE(source_step), IMAGE(out_step), IMAGE(weight_step), int64 weight_group,
       int adjoint, int channels_last) {
    Point sizes = POINT_OF(size), source_sizes = POINT_OF(source_size), kernels = POINT_OF(kernel);
    Point strides = POINT_OF(stride), paddings = POINT_OF(padding), dilations = POINT_OF(dilation);
    Image source_image = IMAGE_OF(source_step), out_image = IMAGE_OF(out_step), weights = IMAGE_OF(weight_step);
    uint32 number = blockIdx.x * blockDim.x + threadIdx.x, all = groups * outputs;
    if (number >= count) return;
    Point place;
    int channel;
    if (channels_last) {
        channel = number % all;
        decode<uint32>(number / all, sizes, place);
    } else {
        channel = decode<uint32>(number, sizes, place);
    }
    for (int64 sample = blockIdx.y; sample < batch; sample += gridDim.y) {
        int group = channel / outputs;
        const element* from = source + sample * source_image.sample + (int64)group * channels * source_image.channel;
        const element* filter = weight + group * weight_group + channel % outputs * weights.sample;
        sum total = bias ? (sum)bias[channel] : (sum)0;
        for (int first = 0; first < kernels.at[0]; first++)
            for (int second = 0; second < kernels.at[1]; second++)
                for (int third = 0; third < kernels.at[2]; third++) {
                    const Point tap = {{first, second, third}};
                    bool inside = true;
                    int64 offset = 0;
#pragma unroll
                    for (int axis = 0; axis < 3; axis++) {
                        int at = tap.at[axis] * dilations.at[axis] - paddings.at[axis];
                        at = adjoint ? place.at[axis] - at : place.at[axis] * strides.at[axis] + at;
                        if (adjoint) {
                            inside = inside && at % strides.at[axis] == 0;
                            at /= strides.at[axis];
                        }
                        inside = inside && (uint32)at < (uint32)source_sizes.at[axis];
                        offset += at * source_image.step[axis];
                    }
                    if (!inside) continue;
                    int64 element_of_filter = offset_of(tap, weights);
                    for (int c = 0; c < channels; c++)
                        total += (sum)from[offset + c * source_image.channel] *
                                 (sum)filter[element_of_filter + c * weights.channel];
                }
        out[sample * out_image.sample + channel * out_image.channel + offset_of(place, out_image)] = (element)total;
    }
}

// The gradient of the weight in parts (gridDim.x, groups * outputs, taps, channels), which `add_parts` of conv_parts.cu
// adds: a block sums, for one tap and channel (blockIdx.y), a part of the pixels; of 32 outputs with 8 threads each if
// `channels_last`, else of one output.
extern "C" __global__ void __launch_bounds__(256)
direct_weight(const element* slope, const element* input, sum* parts, int64 pixels, int64 pixels_a_part, int groups,
              int channels, int outputs, POINT(input_size), POINT(size), POINT(kernel), POINT(stride), POINT(padding),
              POINT(dilation), IMAGE(slope_step), IMAGE(input_step), int channels_last) {
    __shared__ sum scratch[256];
    Point sizes = POINT_OF(size), input_sizes = POINT_OF(input_size), kernels = POINT_OF(kernel);
    Point strides = POINT_OF(stride), paddings = POINT_OF(padding), dilations = POINT_OF(dilation);
    Image slopes = IMAGE_OF(slope_step), inputs = IMAGE_OF(input_step);
    int thread = threadIdx.x, lanes = channels_last ? 32 : 1;
    int64 output = (int64)blockIdx.z * lanes + thread % lanes, all = (int64)groups * outputs;
    int channel = blockIdx.y % channels;
    Point tap;
    decode<uint32>(blockIdx.y / channels, kernels, tap);
    int64 first = blockIdx.x * pixels_a_part, end = first + pixels_a_part < pixels ? first + pixels_a_part : pixels;
    sum total = 0;
    if (output < all) {
        const element* from = input + (output / outputs * channels + channel) * inputs.channel;
        for (int64 pixel = first + thread / lanes; pixel < end; pixel += 256 / lanes) {
            Point place, at;
            int64 sample = decode(pixel, sizes, place);
            bool inside = true;
#pragma unroll
            for (int axis = 0; axis < 3; axis++) {
                at.at[axis] = place.at[axis] * strides.at[axis] + tap.at[axis] * dilations.at[axis] - paddings.at[axis];
                inside = inside && (uint32)at.at[axis] < (uint32)input_sizes.at[axis];
            }
            if (inside)
                total += (sum)slope[sample * slopes.sample + output * slopes.channel + offset_of(place, slopes)] *
                         (sum)from[sample * inputs.sample + offset_of(at, inputs)];
        }
    }
    scratch[thread] = total;
    __syncthreads();
    for (int half = 128; half >= lanes; half /= 2) {
        if (thread < half) scratch[thread] += scratch[thread + half];
        __syncthreads();
    }
    int64 taps = (int64)kernels.at[0] * kernels.at[1] * kernels.at[2];
    if (thread < lanes && output < all)
        parts[((blockIdx.x * all + output) * taps + blockIdx.y / channels) * channels + channel] = scratch[thread];
}
