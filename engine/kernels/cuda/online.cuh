// The greatest element and the sum of exp(element - greatest) of a row, in one pass. After M. Milakov and N.
// Gimelshein, "Online normalizer calculation for softmax" (2018).

#define LOWEST ((real)-bits_float(0x7f800000u))

struct Online {
    real greatest, sum;

    MEMBER void add(const real* values, int count) {
        real most = values[0];
        for (int i = 1; i < count; i++) most = Maximum::of(most, values[i]);
        merge(most, values, count);
    }
    MEMBER void merge(real most, const real* values, int count) {
        real next = Maximum::of(greatest, most);
        if (next == LOWEST) return;  // nothing but -inf so far: nothing to add
        if (next != greatest) sum *= exponential(greatest - next);
        for (int i = 0; i < count; i++) sum += exponential(values[i] - next);
        greatest = next;
    }
};

DEVICE Online nothing_yet() {
    Online none = {LOWEST, 0};
    return none;
}

// Of all threads of a row. Where everything is -inf the sum is 0; where there is a NaN both are NaN.
DEVICE Online over_row(Online own, real* scratch) {
    Online all;
    all.greatest = over_row<Maximum>(own.greatest, scratch);
    real share = own.greatest == all.greatest ? own.sum : own.sum * exponential(own.greatest - all.greatest);
    all.sum = over_row<Sum>(share, scratch);
    return all;
}
