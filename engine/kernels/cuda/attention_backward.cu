// Gradients of attention without a matrix of all scores and without atomic additions: one kernel goes over the keys for a
// tile of queries, the other over the queries for a tile of keys; both compute the probabilities again from the
// logarithms of their sums. Dao, Fu, Ermon, Rudra and Re, "FlashAttention" (2022).

const int TILE = 16 * WARPS;  // of the axis a block has to itself
const int NT = OTHERS / 8;    // tiles along the axis it goes over, OTHERS at a time

// log_sums in units of log 2, so that power_of_two(score - result) is a probability: 0 in a row without keys.
DEVICE float base_of(float log_sum) { return log_sum == -infinity() ? infinity() : log_sum * LOG2_E; }

// Also writes `deltas`, the products of output and gradient summed over each row, which the other kernel reads.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_of_query(const element* query, const element* key, const element* value, const void* mask,
                   const uint64* draws, const element* out, const element* slope, const float* log_sums, float* deltas,
                   element* of_query, int64 middle, int64 inner, int queries, int keys, int width, int value_width,
                   STEPS(query), STEPS(key), STEPS(value), STEPS(out), STEPS(slope), STEPS(of_query), STEPS(mask),
                   int64 mask_column, int mask_kind, int causal, int vectors, float scale, float kept_scale) {
    const int OT = HEAD / 8;
    element* query_tile = (element*)memory;
    element* slope_tile = query_tile + TILE * LEADING;
    element* key_tile = slope_tile + TILE * LEADING;
    element* value_tile = key_tile + OTHERS * LEADING;
    float* scratch = (float*)(value_tile + OTHERS * LEADING) + threadIdx.x / 32 * (16 * (OTHERS + 4));

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
    stage_rows<OTHERS, HEAD, THREADS>(key_tile, LEADING, key, key_row, 0, keys, width, vectors);
    stage_rows<OTHERS, HEAD, THREADS>(value_tile, LEADING, value, value_row, 0, keys, value_width, vectors);
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
        if (row < queries)
            for (int column = lane_of_warp() % 4; column < value_width; column += 4)
                sum += (float)slopes[row_of(2 * r) * LEADING + column] * (float)out[row * out_row + column];
        for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        delta[r] = sum;
        base[r] = row < queries ? base_of(log_sums[number * queries + row]) : infinity();
        if (row < queries && lane_of_warp() % 4 == 0) deltas[number * queries + row] = sum;
    }

    for (int place = 0; place < end; place += OTHERS) {
        if (place) {
            wait_for_copies<0>();
            __syncthreads();  // these keys and values are there
        }
        float scores[1][NT][4], of_scores[1][NT][4];
        clear(scores);
        clear(of_scores);
        product::multiply<HEAD, false, false>(scores, rows, LEADING, key_tile, LEADING);
        product::multiply<HEAD, false, false>(of_scores, slopes, LEADING, value_tile, LEADING);
        __syncthreads();  // these values are done with
        bool more = place + OTHERS < end;
        if (more) {
            stage_rows<OTHERS, HEAD, THREADS>(value_tile, LEADING, value, value_row, place + OTHERS, keys, value_width,
                                              vectors);
            end_of_copies();
        }
        UNROLL for (int r = 0; r < 2; r++) {
            int64 row = first + first_of_warp + row_of(2 * r);
            UNROLL for (int n = 0; n < NT; n++) UNROLL for (int i = 0; i < 2; i++) {
                int e = 2 * r + i, column = place + product::column_of(n, i);
                float slope_of_score = 0;
                if (row < queries && column < keys && !(causal && column > row)) {
                    float score = score_of(scores[0][n][e], masked, row, column, factor);
                    float of_dropped = of_scores[0][n][e];
                    if (MASKED && dropout.active) of_dropped *= factor_of(dropout, number * queries + row, groups, column);
                    slope_of_score = power_of_two(score - base[r]) * (of_dropped - delta[r]);
                }
                of_scores[0][n][e] = slope_of_score;
            }
        }
        product::multiply_tile(sums, of_scores, key_tile, LEADING, scratch);
        if (more) {
            __syncthreads();  // these keys are done with
            stage_rows<OTHERS, HEAD, THREADS>(key_tile, LEADING, key, key_row, place + OTHERS, keys, width, vectors);
            end_of_copies();
        }
    }

    UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + row_of(2 * r);
        if (row >= queries) continue;
        UNROLL for (int n = 0; n < OT; n++) {
            int column = product::column_of(n, 0);
            store_two(of_query + row * of_query_row + column, sums[0][n][2 * r] * scale, sums[0][n][2 * r + 1] * scale,
                      width - column);
        }
    }
}

// Heads that share keys and values (`shared` neighbours along the inner axis) are summed over in their order. A block
// makes CHUNK columns of both gradients. Rows of a tile of scores are keys here, columns are queries.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_of_key(const element* query, const element* key, const element* value, const void* mask, const uint64* draws,
                 const element* slope, const float* log_sums, const float* deltas, element* of_key, element* of_value,
                 int64 middle, int64 inner, int64 shared, int queries, int keys, int width, int value_width,
                 STEPS(query), STEPS(key), STEPS(value), STEPS(slope), STEPS(of_key), STEPS(of_value), STEPS(mask),
                 int64 mask_column, int mask_kind, int causal, int vectors, float scale, float kept_scale) {
    const int OT = CHUNK / 8;
    element* key_tile = (element*)memory;
    element* value_tile = key_tile + TILE * LEADING;
    element* query_tile = value_tile + TILE * LEADING;
    element* slope_tile = query_tile + OTHERS * LEADING;
    float* bases = (float*)(slope_tile + OTHERS * LEADING);
    float* row_deltas = bases + OTHERS;
    float* scratch = row_deltas + OTHERS + threadIdx.x / 32 * (16 * (OTHERS + 4));

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

    for (int64 repeat = 0; repeat < shared; repeat++) {
        int64 number = (head.outer * middle + head.middle) * inner + head.inner;
        const element* queries_of_head = query + PLACE(query);
        const element* slopes_of_head = slope + PLACE(slope);
        Mask masked = mask_of(mask, mask_kind, PLACE(mask), mask_row, mask_column);
        for (int place = causal ? first / OTHERS * OTHERS : 0; place < queries; place += OTHERS) {
            __syncthreads();  // the last queries are done with
            stage_rows<OTHERS, HEAD, THREADS>(query_tile, LEADING, queries_of_head, query_row, place, queries, width,
                                              vectors);
            stage_rows<OTHERS, HEAD, THREADS>(slope_tile, LEADING, slopes_of_head, slope_row, place, queries,
                                              value_width, vectors);
            end_of_copies();
            for (int i = threadIdx.x; i < OTHERS; i += THREADS) {
                bool inside = place + i < queries;
                bases[i] = inside ? base_of(log_sums[number * queries + place + i]) : infinity();
                row_deltas[i] = inside ? deltas[number * queries + place + i] : 0.0f;
            }
            wait_for_copies<0>();
            __syncthreads();

            float scores[1][NT][4], of_scores[1][NT][4];
            clear(scores);
            clear(of_scores);
            product::multiply<HEAD, false, false>(scores, key_rows, LEADING, query_tile, LEADING);
            product::multiply<HEAD, false, false>(of_scores, value_rows, LEADING, slope_tile, LEADING);
            UNROLL for (int n = 0; n < NT; n++) UNROLL for (int e = 0; e < 4; e++) {
                int64 row = first + first_of_warp + row_of(e);
                int local = product::column_of(n, e), column = place + local;
                float probability = 0, slope_of_score = 0;
                if (row < keys && column < queries && !(causal && row > column)) {
                    float score = score_of(scores[0][n][e], masked, column, row, factor);
                    float of_dropped = of_scores[0][n][e], kept = 1;
                    probability = power_of_two(score - bases[local]);
                    if (MASKED && dropout.active) kept = factor_of(dropout, number * queries + column, groups, row);
                    slope_of_score = probability * (of_dropped * kept - row_deltas[local]);
                    probability *= kept;
                }
                scores[0][n][e] = probability;
                of_scores[0][n][e] = slope_of_score;
            }
            product::multiply_tile(value_sums, scores, slope_tile + chunk, LEADING, scratch);
            product::multiply_tile(key_sums, of_scores, query_tile + chunk, LEADING, scratch);
        }
        head.inner++;
    }

    UNROLL for (int r = 0; r < 2; r++) {
        int64 row = first + first_of_warp + row_of(2 * r);
        if (row >= keys) continue;
        UNROLL for (int n = 0; n < OT; n++) {
            int column = chunk + product::column_of(n, 0);
            store_two(of_key + row * of_key_row + column, key_sums[0][n][2 * r] * scale,
                      key_sums[0][n][2 * r + 1] * scale, width - column);
            store_two(of_value + row * of_value_row + column, value_sums[0][n][2 * r], value_sums[0][n][2 * r + 1],
                      value_width - column);
        }
    }
}
