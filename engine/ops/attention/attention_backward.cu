// Gradients of attention without a matrix of all scores and without atomic additions: one kernel goes over the keys for
// a tile of queries, the other over the queries for a tile of keys; both compute the probabilities again from the
// logarithms of their sums. Dao, Fu, Ermon, Rudra and Re, "FlashAttention" (2022).

const int TILE = 16 * WARPS;  // of the axis a block has to itself
const int NT = OTHERS / 8;    // tiles along the axis it goes over, OTHERS at a time
const int PAIR = 2 * OTHERS * LEADING;  // of which two operands are in shared memory, STAGES of them
const int PACK = 16 / (int)sizeof(element);

struct alignas(16) Pack {
    element of[PACK];
};

// log_sums in units of log 2, so that power_of_two(score - result) is a probability: 0 in a row without keys.
DEVICE float base_of(float log_sum) { return log_sum == -infinity() ? infinity() : log_sum * LOG2_E; }

// Also writes `deltas`, the products of output and gradient summed over each row, which the other kernel reads.
struct CallOfQuery {
    int64 middle, inner;
    STEPS(query) STEPS(key) STEPS(value) STEPS(out) STEPS(slope) STEPS(of_query) STEPS(mask)
    NUMBERS
};

struct CallOfKey {
    int64 middle, inner, shared;
    STEPS(query) STEPS(key) STEPS(value) STEPS(slope) STEPS(of_key) STEPS(of_value) STEPS(mask)
    NUMBERS
};

extern "C" __global__ void __launch_bounds__(THREADS)
attention_of_query(const element* query, const element* key, const element* value, const void* mask,
                   const uint64* draws, const element* out, const element* slope, const float* log_sums, float* deltas,
                   element* of_query, CallOfQuery call) {
    STEPS_OF(query) STEPS_OF(key) STEPS_OF(value) STEPS_OF(out) STEPS_OF(slope) STEPS_OF(of_query) STEPS_OF(mask)
    NUMBERS_OF_CALL
    const float scale = call.scale;
    const int OT = HEAD / 8;
    element* query_tile = (element*)memory;
    element* slope_tile = query_tile + TILE * LEADING;
    element* pair_tiles = slope_tile + TILE * LEADING;  // keys and values
    float* scratch = (float*)(pair_tiles + STAGES * PAIR) + threadIdx.x / 32 * (16 * (OTHERS + 4));

    int tiles = (queries + TILE - 1) / TILE;
    int64 number = blockIdx.x / tiles;
    int first = (tiles - 1 - (int)(blockIdx.x % tiles)) * TILE;  // the longest rows of a causal mask first
    Head head = head_of(number, middle, inner);
    query += PLACE(query);
    key += PLACE(key);
    value += PLACE(value);
    out += PLACE(out);
    slope += PLACE(slope);
    of_query += PLACE(of_query);
    Mask masked = mask_of(mask, mask_kind, PLACE(mask), mask_row, mask_column);
    Dropout dropout = dropout_of(draws, kept_scale);
    int64 groups = (keys + 3) / 4;
    float factor = scale * LOG2_E;
    int end = causal && first + TILE < keys ? first + TILE : keys;

    stage_rows<TILE, HEAD, THREADS>(query_tile, LEADING, query, query_row, first, queries, width, vectors);
    stage_rows<TILE, HEAD, THREADS>(slope_tile, LEADING, slope, slope_row, first, queries, value_width, vectors);
    auto stage = [&](int place) {
        element* tile = pair_tiles + place / OTHERS % STAGES * PAIR;
        stage_rows<OTHERS, HEAD, THREADS>(tile, LEADING, key, key_row, place, keys, width, vectors);
        stage_rows<OTHERS, HEAD, THREADS>(tile + OTHERS * LEADING, LEADING, value, value_row, place, keys, value_width,
                                          vectors);
    };
    stage(0);
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();

    int first_of_warp = threadIdx.x / 32 * 16;
    const element* rows = query_tile + first_of_warp * LEADING;
    const element* slopes = slope_tile + first_of_warp * LEADING;
    float sums[1][OT][4], base[2], delta[2];
    clear(sums);
    UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + row_of(2 * r);
        float sum = 0;
        const element* of_row = slopes + row_of(2 * r) * LEADING;
        if (row < queries && vectors)
            for (int column = lane_of_warp() % 4 * PACK; column < value_width; column += 4 * PACK) {
                Pack left = *(const Pack*)(of_row + column), right = *(const Pack*)(out + row * out_row + column);
                UNROLL for (int i = 0; i < PACK; i++) sum += (float)left.of[i] * (float)right.of[i];
            }
        else if (row < queries)
            for (int column = lane_of_warp() % 4; column < value_width; column += 4)
                sum += (float)of_row[column] * (float)out[row * out_row + column];
        for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        delta[r] = sum;
        base[r] = row < queries ? base_of(log_sums[number * queries + row]) : infinity();
        if (row < queries && lane_of_warp() % 4 == 0) deltas[number * queries + row] = sum;
    }

    for (int place = 0; place < end; place += OTHERS) {
        if (place) {
            if (STAGES == 1) {
                __syncthreads();  // the last keys and values are done with
                stage(place);
                end_of_copies();
            }
            wait_for_copies<0>();
            __syncthreads();  // these are there, and with two stages the last ones are done with
        }
        if (STAGES > 1 && place + OTHERS < end) stage(place + OTHERS);
        end_of_copies();
        const element* key_tile = pair_tiles + place / OTHERS % STAGES * PAIR;
        float scores[1][NT][4], of_scores[1][NT][4];
        clear(scores);
        clear(of_scores);
        product::multiply<HEAD, false, false>(scores, rows, LEADING, key_tile, LEADING);
        product::multiply<HEAD, false, false>(of_scores, slopes, LEADING, key_tile + OTHERS * LEADING, LEADING);
        UNROLL for (int r = 0; r < 2; r++) {
            int64 row = first + first_of_warp + row_of(2 * r);
            UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++) {
                int e = 2 * r + i, column = place + product::column_of(n, i);
                float slope_of_score = 0;
                if (row < queries && column < keys && !(causal && column > row)) {
                    float score = score_of(scores[0][n][e], masked, row, column, factor);
                    float of_dropped = of_scores[0][n][e];
                    if (MASKED && dropout.active)
                        of_dropped *= factor_of(dropout, number * queries + row, groups, column);
                    slope_of_score = power_of_two(score - base[r]) * (of_dropped - delta[r]);
                }
                of_scores[0][n][e] = slope_of_score;
            }
        }
        product::multiply_tile(sums, of_scores, key_tile, LEADING, scratch);
    }

    UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + row_of(2 * r);
        if (row >= queries) continue;
        UNROLL for (int n = 0; n < OT; n++) {
            int column = product::column_of(n, 0);
            store_two(of_query + row * of_query_row + column, sums[0][n][2 * r] * scale, sums[0][n][2 * r + 1] * scale,
                      width - column, vectors);
        }
    }
}

// Heads that share keys and values (`shared` neighbours along the inner axis) are summed over in their order. A block
// makes CHUNK columns of both gradients. Rows of a tile of scores are keys here, columns are queries.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_of_key(const element* query, const element* key, const element* value, const void* mask, const uint64* draws,
                 const element* slope, const float* log_sums, const float* deltas, element* of_key, element* of_value,
                 CallOfKey call) {
    STEPS_OF(query) STEPS_OF(key) STEPS_OF(value) STEPS_OF(slope) STEPS_OF(of_key) STEPS_OF(of_value) STEPS_OF(mask)
    NUMBERS_OF_CALL
    const int64 shared = call.shared;
    const float scale = call.scale;
    const int OT = CHUNK / 8;
    element* key_tile = (element*)memory;
    element* value_tile = key_tile + TILE * LEADING;
    element* pair_tiles = value_tile + TILE * LEADING;  // queries and slopes
    float* row_tiles = (float*)(pair_tiles + STAGES * PAIR);
    float* scratch = row_tiles + STAGES * 2 * OTHERS + threadIdx.x / 32 * (16 * (OTHERS + 4));

    int tiles = (keys + TILE - 1) / TILE;
    int64 kept_inner = inner / shared, own = blockIdx.x / tiles;
    int first = (int)(blockIdx.x % tiles) * TILE, chunk = blockIdx.y * CHUNK;
    Head head = head_of(own, middle, kept_inner);
    head.inner *= shared;
    key += PLACE(key);
    value += PLACE(value);
    of_key += PLACE(of_key);
    of_value += PLACE(of_value);
    Dropout dropout = dropout_of(draws, kept_scale);
    int64 groups = (keys + 3) / 4;
    float factor = scale * LOG2_E;

    stage_rows<TILE, HEAD, THREADS>(key_tile, LEADING, key, key_row, first, keys, width, vectors);
    stage_rows<TILE, HEAD, THREADS>(value_tile, LEADING, value, value_row, first, keys, value_width, vectors);
    end_of_copies();
    int first_of_warp = threadIdx.x / 32 * 16;
    const element* key_rows = key_tile + first_of_warp * LEADING;
    const element* value_rows = value_tile + first_of_warp * LEADING;
    float key_sums[1][OT][4], value_sums[1][OT][4];
    clear(key_sums);
    clear(value_sums);

    // All tiles of queries of all heads that share these keys, one after another.
    int start = causal ? first / OTHERS : 0, count = (queries + OTHERS - 1) / OTHERS - start;
    int64 first_number = (head.outer * middle + head.middle) * inner + head.inner;
    int steps = count > 0 ? (int)shared * count : 0;
    auto stage = [&](int step) {
        Head at = head;
        int repeat = step / count, place = (start + step % count) * OTHERS;
        at.inner += repeat;
        element* pair = pair_tiles + step % STAGES * PAIR;
        float* rows = row_tiles + step % STAGES * 2 * OTHERS;
        stage_rows<OTHERS, HEAD, THREADS>(pair, LEADING, query + PLACE_OF(at, query), query_row, place, queries, width,
                                          vectors);
        stage_rows<OTHERS, HEAD, THREADS>(pair + OTHERS * LEADING, LEADING, slope + PLACE_OF(at, slope), slope_row,
                                          place, queries, value_width, vectors);
        int64 row = (first_number + repeat) * queries + place;
        for (int i = threadIdx.x; i < OTHERS; i += THREADS) {
            bool inside = place + i < queries;
            copy_4_bytes(rows + i, log_sums + (inside ? row + i : 0), inside);
            copy_4_bytes(rows + OTHERS + i, deltas + (inside ? row + i : 0), inside);
        }
    };
    if (STAGES > 1 && steps) stage(0);
    end_of_copies();
    for (int step = 0; step < steps; step++) {
        if (STAGES == 1) {
            __syncthreads();  // the last queries are done with
            stage(step);
            end_of_copies();
        }
        wait_for_copies<0>();
        __syncthreads();  // these are there, and with two stages the last ones are done with
        if (STAGES > 1 && step + 1 < steps) stage(step + 1);
        end_of_copies();
        Head at = head;
        int repeat = step / count, place = (start + step % count) * OTHERS;
        at.inner += repeat;
        int64 number = first_number + repeat;
        Mask masked = mask_of(mask, mask_kind, PLACE_OF(at, mask), mask_row, mask_column);
        const element* pair = pair_tiles + step % STAGES * PAIR;
        const float* rows = row_tiles + step % STAGES * 2 * OTHERS;

        float scores[1][NT][4], of_scores[1][NT][4];
        clear(scores);
        clear(of_scores);
        product::multiply<HEAD, false, false>(scores, key_rows, LEADING, pair, LEADING);
        product::multiply<HEAD, false, false>(of_scores, value_rows, LEADING, pair + OTHERS * LEADING, LEADING);
        UNROLL for (int n = 0; n < NT; n++) UNROLL for (int e = 0; e < 4; e++) {
            int64 row = first + first_of_warp + row_of(e);
            int local = product::column_of(n, e), column = place + local;
            float probability = 0, slope_of_score = 0;
            if (row < keys && column < queries && !(causal && row > column)) {
                float score = score_of(scores[0][n][e], masked, column, row, factor);
                float of_dropped = of_scores[0][n][e], kept = 1;
                probability = power_of_two(score - base_of(rows[local]));
                if (MASKED && dropout.active) kept = factor_of(dropout, number * queries + column, groups, row);
                slope_of_score = probability * (of_dropped * kept - rows[OTHERS + local]);
                probability *= kept;
            }
            scores[0][n][e] = probability;
            of_scores[0][n][e] = slope_of_score;
        }
        product::multiply_tile(value_sums, scores, pair + OTHERS * LEADING + chunk, LEADING, scratch);
        product::multiply_tile(key_sums, of_scores, pair + chunk, LEADING, scratch);
    }
    wait_for_copies<0>();  // of keys that no query looks at: nothing is on its way when the block ends

    UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + row_of(2 * r);
        if (row >= keys) continue;
        UNROLL for (int n = 0; n < OT; n++) {
            int column = chunk + product::column_of(n, 0);
            store_two(of_key + row * of_key_row + column, key_sums[0][n][2 * r] * scale,
                      key_sums[0][n][2 * r + 1] * scale, width - column, vectors);
            store_two(of_value + row * of_value_row + column, value_sums[0][n][2 * r], value_sums[0][n][2 * r + 1],
                      value_width - column, vectors);
        }
    }
}
