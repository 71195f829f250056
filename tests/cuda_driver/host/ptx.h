// Instructions of the assembler language PTX that sources use, as functions of their operands in the instruction's
// order (PTX ISA). The lanes of a warp exchange what the instruction takes from other lanes.

#pragma once  // included by cuda.h

namespace simulated {
void begin_copy(char* target, const char* source, size_t size);
void close_copies();
void wait_for_copies(int pending);
extern char static_shared[];
}  // namespace simulated

// An address of shared memory in 32 bits: from dynamic_shared on, below it for arrays of fixed size.
static inline size_t __cvta_generic_to_shared(const void* address) {
    return (size_t)((const char*)address - simulated::dynamic_shared) & 0xffffffffu;
}

namespace ptx {

#define PTX __attribute__((no_sanitize("thread"), noinline, unused)) static

static inline char* shared(unsigned address) { return simulated::dynamic_shared + (int)address; }

PTX void cp_async_cg_shared_global(unsigned target, const void* source, int size, int of_source) {
    simulated::begin_copy(shared(target), of_source ? (const char*)source : nullptr, size);
}
PTX void cp_async_ca_shared_global(unsigned target, const void* source, int size, int of_source) {
    simulated::begin_copy(shared(target), of_source ? (const char*)source : nullptr, size);
}
PTX void cp_async_commit_group() { simulated::close_copies(); }
PTX void cp_async_wait_group(int pending) { simulated::wait_for_copies(pending); }

PTX void ldmatrix(unsigned (&fragment)[4], unsigned address, bool turned) {
    int lane = simulated::current % 32;
    unsigned all[32];
    const char* own = shared(address);
    if ((size_t)own % 16) simulated::fail("ldmatrix of a misaligned address");
    simulated::access(own, 16, simulated::READ);
    simulated::gather(0xffffffffu, &address, sizeof address, all, __LINE__);
    for (int matrix = 0; matrix < 4; matrix++) {
        fragment[matrix] = 0;
        for (int half = 0; half < 2; half++) {
            int pair = 2 * (lane % 4) + half, other = lane / 4;
            auto* row = (const unsigned short*)shared(all[8 * matrix + (turned ? pair : other)]);
            fragment[matrix] |= (unsigned)row[turned ? other : pair] << (16 * half);
        }
    }
    char none = 0, done[32];
    simulated::gather(0xffffffffu, &none, 1, done, __LINE__);
}
PTX void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned from) {
    unsigned fragment[4];
    ldmatrix(fragment, from, false);
    a = fragment[0], b = fragment[1], c = fragment[2], d = fragment[3];
}
PTX void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d,
                                                        unsigned from) {
    unsigned fragment[4];
    ldmatrix(fragment, from, true);
    a = fragment[0], b = fragment[1], c = fragment[2], d = fragment[3];
}

static inline float of_bits(unsigned bits) { return __uint_as_float(bits); }
static inline float of_half(unsigned short bits) {
    _Float16 value;
    __builtin_memcpy(&value, &bits, 2);
    return (float)value;
}
static inline unsigned short half_of(float value) {
    _Float16 half = (_Float16)value;
    unsigned short bits;
    __builtin_memcpy(&bits, &half, 2);
    return bits;
}
static inline unsigned short bfloat_of(float value) {
    unsigned whole = __float_as_uint(value);
    return value != value ? (unsigned short)(whole >> 16 | 0x40)
                          : (unsigned short)((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
}
static inline float half_in(unsigned word, int which) { return of_half((unsigned short)(word >> 16 * which)); }
static inline float bfloat_in(unsigned word, int which) { return of_bits((word >> 16 * which & 0xffff) << 16); }

// c += a b for 16 x K by K x 8: two elements a word where K is 16, one where it is 8.
template <int K, typename Element>
PTX void mma(float (&c)[4], const unsigned (&mine)[6], Element element) {
    struct Fragments {
        unsigned of[6];
    } own, all[32];
    for (int i = 0; i < 6; i++) own.of[i] = mine[i];
    simulated::gather(0xffffffffu, &own, sizeof own, all, __LINE__);
    const int each = K / 8;
    int lane = simulated::current % 32;
    for (int e = 0; e < 4; e++) {
        int row = lane / 4 + 8 * (e >> 1), column = 2 * (lane % 4) + (e & 1);
        double sum = c[e];
        for (int k = 0; k < K; k++) {
            int word = k % (K / 2) / each, upper = k >= K / 2;
            unsigned left = all[row % 8 * 4 + word].of[(row >= 8) + 2 * upper];
            unsigned right = all[column * 4 + word].of[4 + upper];
            sum += (double)element(left, k % each) * element(right, k % each);
        }
        c[e] = (float)sum;
    }
}
#define MMA(name, K, element)                                                                                          \
    PTX void name(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,      \
                  unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {                                  \
        float c[4] = {c0, c1, c2, c3};                                                                                 \
        unsigned mine[6] = {a0, a1, a2, a3, b0, b1};                                                                   \
        mma<K>(c, mine, element);                                                                                      \
        d0 = c[0], d1 = c[1], d2 = c[2], d3 = c[3];                                                                    \
    }
MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 16, half_in)
MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 16, bfloat_in)
MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 8, [](unsigned word, int) { return of_bits(word); })
#undef MMA

static inline void cvt_rn_f16_f32(unsigned short& to, float from) { to = half_of(from); }
static inline void cvt_f32_f16(float& to, unsigned short from) { to = of_half(from); }
static inline void cvt_rn_f16x2_f32(unsigned& to, float upper, float lower) {
    to = (unsigned)half_of(upper) << 16 | half_of(lower);
}
static inline void cvt_rn_bf16x2_f32(unsigned& to, float upper, float lower) {
    to = (unsigned)bfloat_of(upper) << 16 | bfloat_of(lower);
}
static inline void cvt_rna_tf32_f32(unsigned& to, float from) {
    unsigned bits = __float_as_uint(from);
    to = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
static inline void ex2_approx_ftz_f32(float& to, float from) { to = exp2f(from); }

}  // namespace ptx
