// Philox4x32-10: random words as a function of (seed, offset, index), so that threads share no state and a value depends
// on its place in the output alone, not on the grid. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (2011). A generator hands out offsets: a launch takes as many as one of its indices calls `philox`.

struct Words {
    uint32 word[4];
};

DEVICE Words philox(uint64 seed, uint64 offset, uint64 index) {
    uint32 a = (uint32)offset, b = (uint32)(offset >> 32), c = (uint32)index, d = (uint32)(index >> 32);
    uint32 low_key = (uint32)seed, high_key = (uint32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64 left = (uint64)0xD2511F53u * a, right = (uint64)0xCD9E8D57u * c;
        a = (uint32)(right >> 32) ^ b ^ low_key;
        b = (uint32)right;
        c = (uint32)(left >> 32) ^ d ^ high_key;
        d = (uint32)left;
        low_key += 0x9E3779B9u;
        high_key += 0xBB67AE85u;
    }
    Words words = {{a, b, c, d}};
    return words;
}

// Where a launch draws from. `captured` is 0 outside CUDA graphs; inside it is the address of {seed, offset} in device
// memory, which are set before each replay, and `offset` counts from there.
struct Draws {
    uint64 seed, offset;
};

DEVICE Draws draws_from(uint64 captured, uint64 seed, uint64 offset) {
    const uint64* state = (const uint64*)captured;
    Draws draws = {captured ? state[0] : seed, captured ? state[1] + offset : offset};
    return draws;
}

// Uniform on [0, 1) as a multiple of 2^-24, and on (0, 1] with all 32 bits.
DEVICE float unit(uint32 word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }
DEVICE float unit_open_below(uint32 word) { return (float)word * 2.3283064365386963e-10f + 1.1641532182693481e-10f; }

// The same with 53 bits, of two words.
DEVICE double unit(uint32 high, uint32 low) {
    return (double)(((uint64)high << 21) | (low >> 11)) * 1.1102230246251565e-16;
}
DEVICE double unit_open_below(uint32 high, uint32 low) { return 1.0 - unit(high, low); }

// The word below which lie `probability` of all words (0 at 0, 2^32 at 1): word < threshold keeps with that probability.
DEVICE uint64 threshold(double probability) { return (uint64)(probability * 4294967296.0 + 0.5); }
