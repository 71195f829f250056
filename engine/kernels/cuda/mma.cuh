// Products of one warp: a tile of 16 * MT rows and 8 * NT columns in float32 registers, from operands in shared memory.
// `Tensor` runs on the tensor cores with float16 or bfloat16 operands, `Tf32` with float32 rounded to 10 bits of
// mantissa, `Simt` in float32 on the ordinary units. All three are used through the same functions, so that a kernel is
// written once. Instructions and layouts of fragments: PTX ISA, "Warp-level matrix instructions" and "cp.async".
//
// An operand with rows of the contraction ("turned") lies as [k][m] or [k][n], any other as [m][k] or [n][k]; every
// leading size is a multiple of 16 bytes. A thread's element e = 0..3 of tile (mt, nt) lies in row
// 16 * mt + row_of(e) and column column_of(nt, e); elements 2i and 2i + 1 are neighbours in a row.

#define UNROLL _Pragma("unroll")
#define UNROLL_TWICE _Pragma("unroll 2")

DEVICE int lane_of_warp() { return threadIdx.x % 32; }
DEVICE int row_of(int e) { return lane_of_warp() / 4 + 8 * (e >> 1); }

struct alignas(16) Float4 {
    float of[4];
};
struct alignas(16) Words4 {
    uint32 of[4];
};

// ---- from global to shared memory, complete after wait_for_copies and a barrier -------------------------------------

// With `inside` false the target becomes zero and nothing is read.
DEVICE void copy_16_bytes(void* target, const void* source, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint32)__cvta_generic_to_shared(target)), "l"(source), "r"(inside ? 16 : 0) : "memory");
}

DEVICE void copy_4_bytes(void* target, const void* source, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((uint32)__cvta_generic_to_shared(target)), "l"(source), "r"(inside ? 4 : 0) : "memory");
}

DEVICE void end_of_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last `pending` groups that end_of_copies closed are there.
template <int pending> DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}

// Rows [first, first + ROWS) of a matrix with `rows` rows of `width` elements, `step` elements apart, as [ROWS][WIDTH]
// with zeros outside; by all THREADS of a block. `vectors`: rows start at multiples of 16 bytes and so does their end.
template <int ROWS, int WIDTH, int THREADS, typename T>
DEVICE void stage_rows(T* target, int leading, const T* matrix, int64 step, int64 first, int64 rows, int width,
                       bool vectors) {
    const int VECTOR = 16 / sizeof(T), A_ROW = WIDTH / VECTOR;
    if (vectors) {
        for (int place = threadIdx.x; place < ROWS * A_ROW; place += THREADS) {
            int row = place / A_ROW, column = place % A_ROW * VECTOR;
            bool inside = first + row < rows && column < width;
            copy_16_bytes(target + row * leading + column, matrix + (inside ? (first + row) * step + column : 0),
                          inside);
        }
    } else {
        for (int place = threadIdx.x; place < ROWS * WIDTH; place += THREADS) {
            int row = place / WIDTH, column = place % WIDTH;
            bool inside = first + row < rows && column < width;
            target[row * leading + column] = inside ? matrix[(first + row) * step + column] : (T)0.0f;
        }
    }
}

// ---- what a warp does together --------------------------------------------------------------------------------------

// ldmatrix.x4: four matrices of 8 rows of 16 bytes; lane i names row i % 8 of matrix i / 8 and gets of each matrix the
// elements 2 * (lane % 4) and the next of row lane / 4 (turned: of column lane / 4).
template <bool turned> DEVICE void load_matrices(uint32 (&fragment)[4], const void* row) {
    uint32 address = (uint32)__cvta_generic_to_shared(row);
    if (turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                     : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                     : "r"(address) : "memory");
}

template <typename T> struct mma;

template <> struct mma<float16> {
    static MEMBER void run(float (&c)[4], const uint32 (&a)[4], uint32 first, uint32 second) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));
    }
    static MEMBER uint32 pack(float low, float high) {
        uint32 word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

template <> struct mma<bfloat16> {
    static MEMBER void run(float (&c)[4], const uint32 (&a)[4], uint32 first, uint32 second) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));
    }
    static MEMBER uint32 pack(float low, float high) {
        uint32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

template <> struct mma<float> {  // TF32
    static MEMBER void run(float (&c)[4], const uint32 (&a)[4], uint32 first, uint32 second) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));
    }
    static MEMBER uint32 rounded(float value) {
        uint32 word;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
        return word;
    }
};

// ---- tiles ----------------------------------------------------------------------------------------------------------

template <int MT, int NT> DEVICE void clear(float (&c)[MT][NT][4]) {
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int n = 0; n < NT; n++) UNROLL for (int e = 0; e < 4; e++)
        c[m][n][e] = 0;
}

template <typename T> struct Tensor {
    static const int STEP = 16;              // of the contraction
    static const bool NEEDS_SCRATCH = false;
    static MEMBER int column_of(int nt, int e) { return 8 * nt + 2 * (lane_of_warp() % 4) + (e & 1); }

    // c += a b over K terms; a and b begin at the warp's first row and column.
    template <int K, bool TURNED_A, bool TURNED_B, int MT, int NT>
    static MEMBER void multiply(float (&c)[MT][NT][4], const T* a, int leading_a, const T* b, int leading_b) {
        int lane = lane_of_warp(), matrix = lane / 8, row = lane % 8;
        UNROLL for (int k = 0; k < K; k += 16) {
            uint32 left[MT][4];
            UNROLL for (int m = 0; m < MT; m++) {
                int first = 16 * m + matrix % 2 * 8;
                if (TURNED_A) load_matrices<true>(left[m], a + (k + matrix / 2 * 8 + row) * leading_a + first);
                else load_matrices<false>(left[m], a + (first + row) * leading_a + k + matrix / 2 * 8);
            }
            UNROLL for (int n = 0; n < NT; n += 2) {
                uint32 right[4];
                if (TURNED_B)
                    load_matrices<true>(right, b + (k + matrix % 2 * 8 + row) * leading_b + 8 * n + matrix / 2 * 8);
                else
                    load_matrices<false>(right, b + (8 * n + matrix / 2 * 8 + row) * leading_b + k + matrix % 2 * 8);
                UNROLL for (int m = 0; m < MT; m++) {
                    mma<T>::run(c[m][n], left[m], right[0], right[1]);
                    mma<T>::run(c[m][n + 1], left[m], right[2], right[3]);
                }
            }
        }
    }

    // c += p b, p being a tile in registers and b turned.
    template <int MT, int NT, int PT>
    static MEMBER void multiply_tile(float (&c)[MT][NT][4], const float (&p)[MT][PT][4], const T* b, int leading_b,
                                     float*) {
        int lane = lane_of_warp(), matrix = lane / 8, row = lane % 8;
        UNROLL for (int k = 0; k < PT; k += 2) {
            uint32 left[MT][4];
            UNROLL for (int m = 0; m < MT; m++) {
                left[m][0] = mma<T>::pack(p[m][k][0], p[m][k][1]);
                left[m][1] = mma<T>::pack(p[m][k][2], p[m][k][3]);
                left[m][2] = mma<T>::pack(p[m][k + 1][0], p[m][k + 1][1]);
                left[m][3] = mma<T>::pack(p[m][k + 1][2], p[m][k + 1][3]);
            }
            UNROLL for (int n = 0; n < NT; n += 2) {
                uint32 right[4];
                load_matrices<true>(right, b + (8 * k + matrix % 2 * 8 + row) * leading_b + 8 * n + matrix / 2 * 8);
                UNROLL for (int m = 0; m < MT; m++) {
                    mma<T>::run(c[m][n], left[m], right[0], right[1]);
                    mma<T>::run(c[m][n + 1], left[m], right[2], right[3]);
                }
            }
        }
    }
};

template <typename T> struct Tf32 {
    static const int STEP = 8;
    static const bool NEEDS_SCRATCH = false;
    static MEMBER int column_of(int nt, int e) { return 8 * nt + 2 * (lane_of_warp() % 4) + (e & 1); }

    template <bool TURNED> static MEMBER uint32 at(const float* matrix, int leading, int place, int k) {
        return mma<float>::rounded(matrix[TURNED ? k * leading + place : place * leading + k]);
    }

    template <int K, bool TURNED_A, bool TURNED_B, int MT, int NT>
    static MEMBER void multiply(float (&c)[MT][NT][4], const float* a, int leading_a, const float* b, int leading_b) {
        int group = lane_of_warp() / 4, member = lane_of_warp() % 4;
        UNROLL for (int k = 0; k < K; k += 8) {
            uint32 left[MT][4];
            UNROLL for (int m = 0; m < MT; m++) UNROLL for (int i = 0; i < 4; i++)
                left[m][i] = at<TURNED_A>(a, leading_a, 16 * m + group + (i & 1) * 8, k + member + (i >> 1) * 4);
            UNROLL for (int n = 0; n < NT; n++) {
                uint32 first = at<TURNED_B>(b, leading_b, 8 * n + group, k + member);
                uint32 second = at<TURNED_B>(b, leading_b, 8 * n + group, k + member + 4);
                UNROLL for (int m = 0; m < MT; m++) mma<float>::run(c[m][n], left[m], first, second);
            }
        }
    }

    // The terms of a contraction may change places: a thread's two neighbours in a row of p are terms t and t + 4.
    template <int MT, int NT, int PT>
    static MEMBER void multiply_tile(float (&c)[MT][NT][4], const float (&p)[MT][PT][4], const float* b, int leading_b,
                                     float*) {
        int group = lane_of_warp() / 4, member = lane_of_warp() % 4;
        UNROLL for (int k = 0; k < PT; k++) {
            uint32 left[MT][4];
            UNROLL for (int m = 0; m < MT; m++) UNROLL for (int i = 0; i < 4; i++)
                left[m][i] = mma<float>::rounded(p[m][k][(i & 1) * 2 + (i >> 1)]);
            UNROLL for (int n = 0; n < NT; n++) {
                uint32 first = at<true>(b, leading_b, 8 * n + group, 8 * k + 2 * member);
                uint32 second = at<true>(b, leading_b, 8 * n + group, 8 * k + 2 * member + 1);
                UNROLL for (int m = 0; m < MT; m++) mma<float>::run(c[m][n], left[m], first, second);
            }
        }
    }
};

template <typename T> struct Simt {
    static const int STEP = 4;
    static const bool NEEDS_SCRATCH = true;
    // Two tiles are 16 columns, of which a thread has four neighbours.
    static MEMBER int column_of(int nt, int e) {
        return 16 * (nt / 2) + 4 * (lane_of_warp() % 4) + 2 * (nt % 2) + (e & 1);
    }

    template <int K, bool TURNED_A, bool TURNED_B, int MT, int NT>
    static MEMBER void multiply(float (&c)[MT][NT][4], const float* a, int leading_a, const float* b, int leading_b) {
        int group = lane_of_warp() / 4, member = lane_of_warp() % 4;
        UNROLL_TWICE for (int k = 0; k < K; k += 4) {
            float left[MT][2][4];
            UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
                int row = 16 * m + group + 8 * r;
                if (TURNED_A) UNROLL for (int i = 0; i < 4; i++) left[m][r][i] = a[(k + i) * leading_a + row];
                else {
                    Float4 four = *(const Float4*)(a + row * leading_a + k);
                    UNROLL for (int i = 0; i < 4; i++) left[m][r][i] = four.of[i];
                }
            }
            UNROLL for (int n = 0; n < NT; n += 2) {
                float right[4][4];  // [term][column]
                UNROLL for (int i = 0; i < 4; i++) {
                    Float4 four = TURNED_B ? *(const Float4*)(b + (k + i) * leading_b + 8 * n + 4 * member)
                                           : *(const Float4*)(b + (8 * n + 4 * member + i) * leading_b + k);
                    UNROLL for (int j = 0; j < 4; j++) right[TURNED_B ? i : j][TURNED_B ? j : i] = four.of[j];
                }
                UNROLL for (int i = 0; i < 4; i++) UNROLL for (int m = 0; m < MT; m++)
                    UNROLL for (int j = 0; j < 4; j++) UNROLL for (int r = 0; r < 2; r++)
                        c[m][n + j / 2][2 * r + j % 2] += left[m][r][i] * right[i][j];
            }
        }
    }

    // `scratch`: 16 * MT rows of 8 * PT + 4 elements of the warp's own.
    template <int MT, int NT, int PT>
    static MEMBER void multiply_tile(float (&c)[MT][NT][4], const float (&p)[MT][PT][4], const float* b, int leading_b,
                                     float* scratch) {
        const int leading = 8 * PT + 4;
        UNROLL for (int m = 0; m < MT; m++) UNROLL for (int n = 0; n < PT; n++) UNROLL for (int e = 0; e < 4; e++)
            scratch[(16 * m + row_of(e)) * leading + column_of(n, e)] = p[m][n][e];
        __syncwarp();
        multiply<8 * PT, false, true>(c, scratch, leading, b, leading_b);
        __syncwarp();
    }
};
