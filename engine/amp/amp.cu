// The loss scale follows what was found in the gradients.

// After an overflow the scale shrinks and the count of good steps is 0; after `interval` good ones in a row it grows.
extern "C" __global__ void update_scale(
    float* scale, int* good_steps, const float* found, float growth, float backoff, int interval) {
    if (*found != 0.0f) {
        *scale *= backoff;
        *good_steps = 0;
        return;
    }
    int steps = *good_steps + 1;
    if (steps == interval) {
        float grown = *scale * growth;
        if (grown - grown == 0.0f) *scale = grown;  // not beyond what float32 holds
        steps = 0;
    }
    *good_steps = steps;
}
