// The last step of a weight's gradient: parts of sums, added in their order.

typedef ELEMENT element;
typedef accumulator<element>::type sum;

// The weight's gradient (outputs, channels, kernel) in its own strides from `count` parts; channels of one group.
extern "C" __global__ void add_parts(const sum* parts, element* of_weight, int count, int64 outputs, int channels,
                                     POINT(kernel), IMAGE(weight_step)) {
    Point kernels = POINT_OF(kernel);
    Image weights = IMAGE_OF(weight_step);
    int64 width = (int64)kernels.at[0] * kernels.at[1] * kernels.at[2] * channels, size = outputs * width;
    for (int64 number = (int64)blockIdx.x * blockDim.x + threadIdx.x; number < size;
         number += (int64)gridDim.x * blockDim.x) {
        sum total = 0;
        for (int part = 0; part < count; part++) total += parts[part * size + number];
        Point tap;
        int64 rows = number / channels, channel = number - rows * channels, output = decode(rows, kernels, tap);
        of_weight[output * weights.sample + channel * weights.channel + offset_of(tap, weights)] = (element)total;
    }
}
