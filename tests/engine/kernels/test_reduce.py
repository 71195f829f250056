"""Sums of slices: rank order, element by element, whatever the slicing."""

import numpy as np
import pytest

from engine.ops.reduce.kernels import slices as reduce
from tests.engine.kernels.samples import DTYPES, normal, shifted


def reference(arrays, divisor):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total / total.dtype.type(divisor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 5000])
def test_in_place_has_the_bits_of_the_plain_sum(size, ranks, dtype):
    arrays = [shifted(normal(size, dtype, seed=rank), rank) for rank in range(ranks)]
    expected = reference(arrays, ranks)
    table = reduce.addresses(arrays)
    # Slices of unlike length, as several ranks would take them, in any order.
    for start, end in ((size // 3, size // 2 + 1), (0, size // 3), (size // 2 + 1, size)):
        reduce.sum_slices(table, table, arrays[0].dtype.char, start, max(min(end, size) - start, 0), float(ranks))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_separate_destinations_leave_sources_and_neighbours_alone(dtype):
    sources = [normal(3000, dtype, seed=rank) for rank in range(3)]
    kept = [source.copy() for source in sources]
    destinations = [np.full(3000, np.nan, dtype) for _ in range(2)]
    char = sources[0].dtype.char
    reduce.sum_slices(reduce.addresses(sources), reduce.addresses(destinations), char, 100, 2500)
    expected = reference(sources, 1)
    for destination in destinations:
        np.testing.assert_array_equal(destination[100:2600], expected[100:2600])
        assert np.isnan(destination[:100]).all()
        assert np.isnan(destination[2600:]).all()
    for source, before in zip(sources, kept, strict=True):
        np.testing.assert_array_equal(source, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_weights_multiply_first_and_each_step_is_rounded(size, dtype):
    arrays = [normal(size, dtype, seed=rank) for rank in range(3)]
    weights = np.array([0.3, 2.0, 5.0])
    expected = arrays[0] * arrays[0].dtype.type(0.3)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        expected = expected + array * array.dtype.type(weight)
    expected = expected / expected.dtype.type(7.3)
    table = reduce.addresses(arrays)
    reduce.sum_slices(table, table, arrays[0].dtype.char, 0, size, 7.3, weights)
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_nan_and_infinity_come_through():
    arrays = [np.array([np.nan, np.inf, np.inf, 3e38], "float32"), np.array([1, 1, -np.inf, 3e38], "float32")]
    table = reduce.addresses(arrays)
    with np.errstate(invalid="ignore", over="ignore"):
        reduce.sum_slices(table, table, "f", 0, 4, 2.0)
    np.testing.assert_array_equal(arrays[1], np.array([np.nan, np.inf, np.nan, np.inf], "float32"))


def test_addresses_refuses_what_cannot_be_summed():
    flat = np.zeros(4, "float32")
    frozen = flat.copy()
    frozen.flags.writeable = False
    for other in (np.zeros(5, "float32"), np.zeros(4), np.zeros((2, 2), "float32")):
        with pytest.raises(ValueError, match=r"array 1 is .* expected float32 of shape \(4,\)"):
            reduce.addresses([flat, other])
    for other in (np.zeros(8, "float32")[::2], frozen):
        with pytest.raises(ValueError, match="array 1 is not contiguous, aligned and writable"):
            reduce.addresses([flat, other])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prepared_sum_is_the_same_sum(dtype):
    arrays = [normal(1000, dtype, seed) for seed in range(3)]
    others = [array.copy() for array in arrays]
    table, char = reduce.addresses(arrays), arrays[0].dtype.char
    again = reduce.addresses(others)
    reduce.sum_slices(table, table, char, 0, 1000, 3.0)
    reduce.prepare_sum(again, again, char, 1000)(3.0)
    for actual, expected in zip(others, arrays, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 63, 64, 200])
def test_an_exchange_sums_what_all_have_laid_down(size, dtype):
    """As three processes would, each with a source of its own: memory that all see is this one's."""
    ranks, header = 3, 2
    words = header + -(-size * np.dtype(dtype).itemsize // 8)
    numbers = [np.zeros(1, np.int64) for _ in range(ranks)]
    sources = [np.zeros(words) for _ in range(ranks)]
    places = [[np.zeros(words) for _ in range(ranks)] for _ in range(2)]

    def array(memory):
        return memory[header:].view(dtype)[:size]

    addends = [[array(place) for place in of_turn] for of_turn in places]
    made = [
        reduce.prepare_exchange(numbers, own, source, places, header, addends, array(source))
        for own, source in enumerate(sources)
    ]
    begins = [reduce.addresses([kept[0]])[0].item() for _, _, kept in made]
    for number in (1, 2, 3):
        values = [normal(size, dtype, seed=10 * number + rank) for rank in range(ranks)]
        for rank, (lay_down, sum_, _) in enumerate(made):
            assert sum_(begins[0], number, 1.0, 5) == ~rank  # this one is not there yet
            array(sources[rank])[:] = values[rank]
            sources[rank][:header] = 1 if number < 3 else rank, rank
            lay_down(begins[rank], number)
        expected = values[0] + values[1] + values[2]
        if number == 1:
            assert sum_(begins[2], number, 1.0, 5) == 1
            assert np.array_equal(array(sources[2]), expected)
            assert sources[2][:header].tolist() == [3, 3]
        elif number == 2:
            assert sum_(begins[2], number, 0.0, 0) == 1  # equal weights: the plain mean
            assert np.array_equal(array(sources[2]), expected / np.dtype(dtype).type(3))
        else:
            assert sum_(begins[2], number, 0.0, 0) == 2  # weights 0, 1, 2: of the headers only
            assert np.array_equal(array(sources[2]), values[2])
            assert sources[2][:header].tolist() == [3, 3]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64])
@pytest.mark.parametrize("columns", [1, 3, 509])
def test_columns_are_added_modulo_the_size_of_a_word(rows, columns):
    matrix = np.random.default_rng(rows).integers(-(2**63), 2**63, (rows, columns), np.int64)
    sums = np.arange(columns)
    reduce.prepare_columns(sums)(matrix.ctypes.data, rows)
    np.testing.assert_array_equal(sums, np.arange(columns) + matrix.sum(axis=0))
