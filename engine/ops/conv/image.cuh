// Places in images. Images have up to three spatial axes (missing ones have size 1 and come first) and any strides.

enum { NOWHERE = -(1 << 30) };  // a coordinate outside of every image

struct Point {
    int at[3];
};
struct Image {
    int64 sample, channel, step[3];
};
#define POINT(name) int name##_0, int name##_1, int name##_2
#define POINT_OF(name) { { name##_0, name##_1, name##_2 } }
#define IMAGE(name) int64 name##_sample, int64 name##_channel, int64 name##_0, int64 name##_1, int64 name##_2
#define IMAGE_OF(name) { name##_sample, name##_channel, { name##_0, name##_1, name##_2 } }

// The sample and the place of a pixel in an image of `size`; pixels are numbered row-major. Divisions of 64 bits are
// subroutines, so that they are kept for numbers that need them.
template <typename N> DEVICE N decode(N pixel, const Point& size, Point& place) {
#pragma unroll
    for (int axis = 2; axis >= 0; axis--) {
        N rest = pixel / (N)size.at[axis];
        place.at[axis] = (int)(pixel - rest * (N)size.at[axis]);
        pixel = rest;
    }
    return pixel;
}
DEVICE int64 decode(int64 pixel, const Point& size, Point& place) {
    if (pixel >> 32 == 0) return decode<uint32>((uint32)pixel, size, place);
    return decode<uint64>((uint64)pixel, size, place);
}

DEVICE int64 offset_of(const Point& place, const Image& image) {
    return place.at[0] * image.step[0] + place.at[1] * image.step[1] + place.at[2] * image.step[2];
}

// What a tap of a window adds to the place of the window, and whether it is then inside of an image.
struct Tap {
    int64 offset;
    Point move;
};
DEVICE bool is_inside(const Point& place, const Point& move, const Point& size) {
    return (uint32)(place.at[0] + move.at[0]) < (uint32)size.at[0] &&
           (uint32)(place.at[1] + move.at[1]) < (uint32)size.at[1] &&
           (uint32)(place.at[2] + move.at[2]) < (uint32)size.at[2];
}
