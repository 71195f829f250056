// What forward and backward of attention share: sizes, places in memory, masks. See attention.py for the macros; MASKED
// is 0 where there is neither a mask nor dropout, whose instructions then take no registers.
//
// Heads are numbered over three leading axes; an axis that an operand is shared along has step 0. Queries, keys, values
// and outputs have neighbouring elements in their last axis.

typedef ELEMENT element;
typedef PRODUCT<element> product;  // mma.cuh

const int THREADS = 32 * WARPS;
const int LEADING = HEAD + 16 / (int)sizeof(element);  // of a row in shared memory: rows start in different banks
const float LOG2_E = 1.4426950408889634f;

extern __shared__ __align__(16) unsigned char memory[];

DEVICE float infinity() { return bits_float(0x7f800000u); }

// 2 to the power of x, to about 22 bits; 0 at -infinity.
DEVICE float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// An operand's place: steps of the three leading axes and of rows, in elements.
// What a call says besides its arrays is one argument: an argument by itself takes the host 30 ns.
#define STEPS(name) int64 name##_outer, name##_middle, name##_inner, name##_row;
#define STEPS_OF(name)                                                                                                 \
    const int64 name##_outer = call.name##_outer, name##_middle = call.name##_middle;                                  \
    const int64 name##_inner = call.name##_inner, name##_row = call.name##_row;
#define NUMBERS                                                              \
    int64 mask_column;                                                       \
    int queries, keys, width, value_width, mask_kind, causal, vectors;       \
    float scale, kept_scale;
#define NUMBERS_OF_CALL                                                                                                \
    const int64 middle = call.middle, inner = call.inner, mask_column = call.mask_column;                              \
    const int queries = call.queries, keys = call.keys, width = call.width, value_width = call.value_width;            \
    const int mask_kind = call.mask_kind, causal = call.causal, vectors = call.vectors;                                \
    const float kept_scale = call.kept_scale;
#define PLACE_OF(head, name)                                                                                           \
    ((head).outer * name##_outer + (head).middle * name##_middle + (head).inner * name##_inner)
#define PLACE(name) PLACE_OF(head, name)

struct Head {
    int64 outer, middle, inner;
};
DEVICE Head head_of(int64 number, int64 middle, int64 inner) {
    Head head = {number / inner / middle, number / inner % middle, number % inner};
    return head;
}

// What happens to scores before softmax: nothing (MASK 0), those of a false mask become -infinity (1), or the mask is
// added (2). `mask` begins at the head's first element.
struct Mask {
    const unsigned char* flags;
    const element* added;
    int64 row, column;
    int kind;
};
DEVICE Mask mask_of(const void* mask, int kind, int64 place, int64 row, int64 column) {
    Mask result = {(const unsigned char*)mask + place, (const element*)mask + place, row, column, kind};
    return result;
}

// A score in units of log 2 from the product of query and key.
DEVICE float score_of(float product_of_rows, const Mask& mask, int64 query, int64 key, float scale) {
    if (!MASKED || mask.kind == 0) return product_of_rows * scale;
    int64 place = query * mask.row + key * mask.column;
    if (mask.kind == 1) return mask.flags[place] ? product_of_rows * scale : -infinity();
    return product_of_rows * scale + (float)mask.added[place] * LOG2_E;
}

// Two neighbouring elements of a row, of which `count` are there; at once with `vectors`, when all rows begin and end
// at multiples of 16 bytes.
struct alignas(2 * sizeof(element)) Two {
    element of[2];
};
DEVICE void store_two(element* target, float first, float second, int count, bool vectors) {
    Two two = {{(element)first, (element)second}};
    if (vectors && count > 1) *(Two*)target = two;
    else {
        if (count > 0) target[0] = two.of[0];
        if (count > 1) target[1] = two.of[1];
    }
}
