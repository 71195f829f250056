// Which probabilities dropout keeps: a function of head, query and key alone, so that backward finds the same ones.
// Four neighbouring keys of a query share one call of philox.
struct Dropout {
    uint64 seed, offset, limit;
    float factor;  // of what is kept; 1 without dropout
    bool active;
};
DEVICE Dropout dropout_of(const uint64* draws, float factor) {
    Dropout result = {0, 0, 0, factor, draws != 0};
    if (draws) {
        result.seed = draws[0];
        result.offset = draws[1];
        result.limit = factor > 0 ? threshold(1.0 / factor) : 0;
    }
    return result;
}
DEVICE float factor_of(const Dropout& dropout, int64 row, int64 groups, int64 key) {
    Words words = philox(dropout.seed, dropout.offset, (uint64)(row * groups + key / 4));
    uint32 low = key & 1 ? words.word[1] : words.word[0], high = key & 1 ? words.word[3] : words.word[2];
    return (key & 2 ? high : low) < dropout.limit ? dropout.factor : 0.0f;
}
