// Attention without a matrix of all scores: a block takes a tile of queries and goes over the keys tile by tile, with
// the maximum and the sum of each row brought up to date as it goes. Dao, Fu, Ermon, Rudra and Re, "FlashAttention"
// (2022); Dao, "FlashAttention-2" (2023). Each warp has rows of its own, so that rows are reduced over four lanes.

const int MT = TILES, NT = KEYS / 8, OT = HEAD / 8;
const int QUERIES = 16 * MT * WARPS;
const float LN_2 = 0.6931471805599453f;

struct Call {
    int64 middle, inner;
    STEPS(query) STEPS(key) STEPS(value) STEPS(out) STEPS(mask)
    NUMBERS
};

extern "C" __global__ void __launch_bounds__(THREADS)
attention(const element* query, const element* key, const element* value, const void* mask, const uint64* draws,
          element* out, float* log_sums, Call call) {
    STEPS_OF(query) STEPS_OF(key) STEPS_OF(value) STEPS_OF(out) STEPS_OF(mask)
    NUMBERS_OF_CALL
    element* query_tile = (element*)memory;
    element* key_tile = query_tile + QUERIES * LEADING;
    element* value_tile = key_tile + KEYS * LEADING;
    float* scratch = (float*)(value_tile + KEYS * LEADING) + threadIdx.x / 32 * (16 * MT * (KEYS + 4));

    int tiles = (queries + QUERIES - 1) / QUERIES;
    int64 number = blockIdx.x / tiles;
    int first = (tiles - 1 - (int)(blockIdx.x % tiles)) * QUERIES;  // the longest rows of a causal mask first
    Head head = head_of(number, middle, inner);
    query += PLACE(query);
    key += PLACE(key);
    value += PLACE(value);
    out += PLACE(out);
    Mask masked = mask_of(mask, mask_kind, PLACE(mask), mask_row, mask_column);
    Dropout dropout = dropout_of(draws, kept_scale);
    int64 groups = (keys + 3) / 4;
    const float scale = call.scale * LOG2_E;
    int end = causal && first + QUERIES < keys ? first + QUERIES : keys;

    int first_of_warp = threadIdx.x / 32 * 16 * MT;
    const element* rows = query_tile + first_of_warp * LEADING;
    float sums[MT][OT][4], largest[MT][2], total[MT][2];
    clear(sums);
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
        largest[m][r] = -infinity();
        total[m][r] = 0;
    }

    stage_rows<QUERIES, HEAD, THREADS>(query_tile, LEADING, query, query_row, first, queries, width, vectors);
    stage_rows<KEYS, HEAD, THREADS>(key_tile, LEADING, key, key_row, 0, keys, width, vectors);
    end_of_copies();
    for (int place = 0; place < end; place += KEYS) {
        wait_for_copies<0>();
        __syncthreads();  // these keys are there, the last values are done with
        stage_rows<KEYS, HEAD, THREADS>(value_tile, LEADING, value, value_row, place, keys, value_width, vectors);
        end_of_copies();
        float scores[MT][NT][4];
        clear(scores);
        product::multiply<HEAD, false, false>(scores, rows, LEADING, key_tile, LEADING);

        bool partial = place + KEYS > keys || (causal && place + KEYS > first + first_of_warp + 1);
        UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
            int64 row = first + first_of_warp + 16 * m + row_of(2 * r);
            float high = -infinity();
            UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++) {
                float& score = scores[m][n][2 * r + i];
                int column = place + product::column_of(n, i);
                if (partial && (column >= keys || (causal && column > row))) score = -infinity();
                else if (row < queries) score = score_of(score, masked, row, column, scale);
                high = score > high || score != score ? score : high;
            }
            for (int distance = 1; distance < 4; distance *= 2) {
                float other = __shfl_xor_sync(0xffffffffu, high, distance);
                high = other > high || other != other ? other : high;
            }
            float before = largest[m][r];
            high = high > before || high != high ? high : before;
            float base = high == -infinity() ? 0.0f : high;  // of a row without keys so far
            float correction = power_of_two(before - base);
            largest[m][r] = high;
            float sum = 0;
            UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++) {
                float& score = scores[m][n][2 * r + i];
                score = power_of_two(score - base);
                sum += score;
            }
            total[m][r] = total[m][r] * correction + sum;
            UNROLL for (int n = 0; n < OT; n++) UNROLL for (int i = 0; i < 2; i++)
                sums[m][n][2 * r + i] *= correction;
            if (MASKED && dropout.active) UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++)
                scores[m][n][2 * r + i] *=
                    factor_of(dropout, number * queries + row, groups, place + product::column_of(n, i));
        }
        wait_for_copies<0>();
        __syncthreads();  // the values are there, these keys are done with
        if (place + KEYS < end) {
            stage_rows<KEYS, HEAD, THREADS>(key_tile, LEADING, key, key_row, place + KEYS, keys, width, vectors);
            end_of_copies();
        }
        product::multiply_tile(sums, scores, value_tile, LEADING, scratch);
    }

    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + 16 * m + row_of(2 * r);
        float sum = total[m][r];
        for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (row >= queries) continue;
        float factor = sum == 0 ? 0.0f : 1 / sum;
        UNROLL for (int n = 0; n < OT; n++) {
            int column = product::column_of(n, 0);
            store_two(out + row * out_row + column, sums[m][n][2 * r] * factor, sums[m][n][2 * r + 1] * factor,
                      value_width - column, vectors);
        }
        if (lane_of_warp() % 4 == 0)
            log_sums[number * queries + row] = sum == 0 ? -infinity() : largest[m][r] * LN_2 + logf(sum);
    }
}
