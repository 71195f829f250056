"""Attention of short sequences without a mask: one slice of the batch after the other, from its scores to what comes of
them, in a core's caches. Products are tiles summed in registers, of operands as they lie; what lies right of a causal
diagonal is left out, tile by tile.

Each sum of a product is a chain of fused multiply-adds in its order, so a result depends neither on the tile nor on how
many slices or threads there are. Matrices are told by their first element, and `places` (slices, matrices): where each
begins, in elements from there. ``numbers``: queries, keys, width of queries and keys, width of values, elements of a
vector, bytes of an element, then the rows' distances in elements, of one matrix after the other.

32 heads of 128 positions of width 32, causal, one thread of an AMD Zen 4: forward and backward 1.0 and 1.6 ms, in
blocks of 64 queries and by `numpy.matmul` 1.1 and 1.9; without AVX-512 1.0 and 1.2, and 1.4 and 2.3.
"""

from typing import Any

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, ReadInt64, Write1, Write2, address, array_at, multiply_tile, real
from engine.kernels.tiling import turn
from engine.ops.attention.kernels.softmax import softmax_lines, softmax_lines_again, softmax_lines_backward

# What there is of a product: all; of the result only what lies on and below the diagonal, but for tiles that this
# crosses, and zeros right of them; all, but the left factor is 0 above the diagonal, or below it.
_WHOLE, _LOWER_RESULT, _LOWER_LEFT, _UPPER_LEFT = range(4)


@helper
def _multiply(
    like: Any,
    numbers: ReadInt64,
    line: ReadInt64,
    depth: int,
    columns: int,
    part: int,
    a: int,
    a_row: int,
    a_column: int,
    b: int,
    b_row: int,
    out: int,
    out_row: int,
) -> None:
    """One product of matrices at these addresses, whose steps count elements; line: the tiles of its rows."""
    vector, item, number = numbers[4], numbers[5], line.size // 2
    begin = 0
    while begin < columns:  # the last panel begins inside the one before it
        wide = columns - begin > vector and columns >= 2 * vector
        width = 2 * vector if wide else vector
        start = min(begin, columns - width)
        for t in range(number):
            at, height = line[t], line[number + t]
            if part == _LOWER_RESULT and start >= at + height:
                for r in range(height):
                    array_at(out, (at + r) * out_row + start, width, like)[:] = real(0.0)
                continue
            first = at if part == _UPPER_LEFT else 0
            counts = (1, 1, (min(depth, at + height) if part == _LOWER_LEFT else depth) - first)
            left, a_steps = a + (at * a_row + first * a_column) * item, (0, 0, a_column)
            right, b_steps = b + (start + first * b_row) * item, (0, 0, b_row)
            goal = out + (at * out_row + start) * item
            multiply_tile(height, wide, like, goal, out_row, False, left, a_row, a_steps, right, b_steps, counts)
        begin = start + width


@kernel
def attend(
    query: Read1,
    key: Read1,
    value: Read1,
    out: Write1,
    log_sums: Write1,
    scores: Write2,
    room: Write1,
    places: ReadInt64,
    numbers: ReadInt64,
    rows: ReadInt64,
    causal: bool,
    scale: float,
) -> None:
    """Writes the result, the log-sums (slices * queries), and to ``scores`` (slices * queries, keys) the probabilities
    of all slices, or, where it is as large as those of one, of one after the other. rows: the tiles of queries. room:
    keys * width elements.
    """
    queries, keys, width, value_width, item = numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]
    result_part, left_part = _WHOLE, _WHOLE
    if causal:
        result_part, left_part = _LOWER_RESULT, _LOWER_LEFT
    for n in range(places.size // 4):
        q, k = address(query) + places[4 * n] * item, address(key) + places[4 * n + 1] * item
        v, to = address(value) + places[4 * n + 2] * item, address(out) + places[4 * n + 3] * item
        own = scores[n * queries : (n + 1) * queries] if len(scores) > queries else scores
        p, turned = address(own), address(room)
        turn(room, item, k, numbers[7], turned, keys, keys, width)
        _multiply(room, numbers, rows, width, keys, result_part, q, numbers[6], 1, turned, keys, p, keys)
        sums = log_sums[n * queries : (n + 1) * queries]
        softmax_lines(own, sums, queries, scale, causal, 0)
        _multiply(room, numbers, rows, keys, value_width, left_part, p, keys, 1, v, numbers[8], to, numbers[9])


@kernel
def descend(
    query: Read1,
    key: Read1,
    value: Read1,
    slope: Read1,
    of_query: Write1,
    of_key: Write1,
    of_value: Write1,
    log_sums: Write1,
    scores: Write2,
    of_scores: Write2,
    room: Write1,
    places: ReadInt64,
    numbers: ReadInt64,
    of_queries: ReadInt64,
    of_keys: ReadInt64,
    causal: bool,
    scale: float,
    again: bool,
) -> None:
    """Writes the gradients of query, key and value. scores: the probabilities of all slices, or, where they are
    computed ``again``, memory for those of one, as ``of_scores`` is. of_queries, of_keys: tiles. room: keys * the
    larger width.
    """
    queries, keys, width, value_width, item = numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]
    result_part, left_part, turned_part = _WHOLE, _WHOLE, _WHOLE
    if causal:
        result_part, left_part, turned_part = _LOWER_RESULT, _LOWER_LEFT, _UPPER_LEFT
    turned = address(room)
    for n in range(places.size // 7):
        q, k = address(query) + places[7 * n] * item, address(key) + places[7 * n + 1] * item
        v, g = address(value) + places[7 * n + 2] * item, address(slope) + places[7 * n + 3] * item
        own = scores if again else scores[n * queries : (n + 1) * queries]
        for which in range(0 if again else 1, 5):  # one call, which is inlined, serves all products
            line, depth, columns, part, b, b_row = of_queries, width, keys, result_part, turned, keys
            a, a_row, a_column, to, to_row = q, numbers[6], 1, address(own), keys
            if which == 0:
                turn(room, item, k, numbers[7], turned, keys, keys, width)
            elif which == 1:
                turn(room, item, v, numbers[8], turned, keys, keys, value_width)
                depth, a, a_row, to = value_width, g, numbers[9], address(of_scores)
            elif which == 2:
                depth, columns, part, b, b_row = keys, width, left_part, k, numbers[7]
                a, a_row, to, to_row = (
                    address(of_scores),
                    keys,
                    address(of_query) + places[7 * n + 4] * item,
                    numbers[10],
                )
            elif which == 3:
                line, depth, columns, part, b, b_row = of_keys, queries, width, turned_part, q, numbers[6]
                a, a_row, a_column = address(of_scores), 1, keys
                to, to_row = address(of_key) + places[7 * n + 5] * item, numbers[11]
            else:
                line, depth, columns, part, b, b_row = of_keys, queries, value_width, turned_part, g, numbers[9]
                a, a_row, a_column = address(own), 1, keys
                to, to_row = address(of_value) + places[7 * n + 6] * item, numbers[12]
            _multiply(room, numbers, line, depth, columns, part, a, a_row, a_column, b, b_row, to, to_row)
            if which == 0:
                sums = log_sums[n * queries : (n + 1) * queries]
                softmax_lines_again(own, sums, queries, scale, causal, 0)
            elif which == 1:
                softmax_lines_backward(of_scores, own, queries, scale, causal, 0)
