"""The matrix product against NumPy's: whole numbers give the same in any order of summation."""

import tracemalloc

import numpy as np
import pytest

import engine
from engine.kernels.vectors import vector_bytes
from engine.ops.matmul.kernels import product
from engine.sharing import threads
from tests.engine.kernels.samples import DTYPES, normal, shifted

# Several panels of depth; rows of the left factor a page apart, which are packed as others are not.
SHAPES = [(33, 70, 47), (130, 300, 10), (14, 2100, 64), (20, 1024, 40), (9, 9, 200), (8, 1, 8), (100, 33, 128)]


def whole(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def factors(rows, depth, columns, dtype):
    """Both matrices row-major and column-major, and with gaps between rows."""
    a, b = whole((rows, depth), dtype, 1), whole((depth, columns), dtype, 2)
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, 0)[::2]):
        for right in (b, np.asfortranarray(b), np.repeat(b, 2, 0)[::2]):
            yield left, right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_numpy(shape, dtype):
    for a, b in factors(*shape, dtype):
        expected = a @ b
        np.testing.assert_array_equal(product.multiply(a, b), expected)
        out = np.full((shape[0], shape[2]), np.nan, dtype)
        assert product.multiply(a, b, out) is out
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_row_and_column_alone(dtype):
    """Not on the number of rows and columns, on alignment or on threads."""
    a, b = normal((40, 90), dtype), normal((90, 150), dtype, seed=1)
    expected = product.multiply(a, b)
    np.testing.assert_array_equal(product.multiply(a[3:12], b[:, 5:77]), expected[3:12, 5:77])
    np.testing.assert_array_equal(product.multiply(shifted(a, 1), shifted(b, 3)), expected)
    np.testing.assert_array_equal(product.multiply(np.asfortranarray(a), np.asfortranarray(b)), expected)
    before = threads.get_num_threads()
    try:
        a, b = normal((512, 128), dtype), normal((128, 384), dtype, seed=1)
        results = []
        for number in (1, 2, 3):
            threads.set_num_threads(number)
            results += [product.multiply(a, b), product.multiply(b.T, a.T).T]
    finally:
        threads.set_num_threads(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_packed_once_gives_the_same_bits(dtype):
    """For each of several left factors, on one thread and on two."""
    before = threads.get_num_threads()
    try:
        for rows, depth, columns in (*SHAPES, (300, 128, 384)):
            rights = normal((depth, columns), dtype, seed=1), np.asfortranarray(normal((depth, columns), dtype, seed=1))
            lefts = [normal((rows, depth), dtype, seed=seed) for seed in (2, 3)]
            for number in (1, 2):
                threads.set_num_threads(number)
                for right in rights:
                    packed = product.Packed(right)
                    for left in lefts:
                        out = np.full((rows, columns), np.nan, dtype)
                        for some in threads.pieces(rows, product.LEAST):
                            packed.of_rows(some.stop - some.start)(left[some], out[some])
                        np.testing.assert_array_equal(out, product.multiply(left, right))
    finally:
        threads.set_num_threads(before)


def test_it_steps_aside():
    big = np.ones((512, 512), np.float32)
    for other in (np.float16, np.int64, np.complex64):
        matrix = big.astype(other)
        assert not product.serves(matrix, matrix)
        few = matrix[:16]  # NumPy takes seconds for all rows
        np.testing.assert_array_equal(product.dot(few, matrix), few.dot(matrix))
    assert not product.serves(big, big.astype(np.float64))
    assert not product.serves(big[:, ::2], big[::2])
    assert not product.serves(big[:4], big)
    np.testing.assert_array_equal(product.dot(big[:, ::2], big[::2]), np.full((512, 512), 256, np.float32))
    np.testing.assert_array_equal(product.dot(big, big), np.full((512, 512), 512, np.float32))


def test_which_small_products_it_serves():
    """Those of a weight that lies by columns, unless the result is so small that BLAS has a kernel for it."""
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(1)
        few, some, weight = (np.ones((rows, 128), np.float32) for rows in (8, 32, 128))
        assert product.serves(some, weight.T) == (vector_bytes() == 64)
        assert not product.serves(some, weight)
        assert not product.serves(few, weight.T)
    finally:
        threads.set_num_threads(before)


GAPS = {
    "columns left out": lambda: (np.ones((400, 512), np.float32)[:, :300], np.ones((300, 20), np.float32)),
    "rows left out of a transposed factor": lambda: (np.ones((512, 400), np.float32)[:300].T, np.ones((300, 20), "f")),
    "the right factor": lambda: (np.ones((20, 300), np.float32), np.ones((300, 512), np.float32)[:, :400]),
}


@pytest.mark.parametrize("name", GAPS)
def test_a_factor_with_gaps_is_not_copied(name, monkeypatch):
    monkeypatch.setattr(product, "serves", lambda a, b: False)
    a, b = map(engine.from_numpy, GAPS[name]())
    expected = a.numpy().dot(b.numpy())
    assert np.allclose((a @ b).numpy(), expected)
    tracemalloc.start()
    try:
        a @ b
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    factor = max(a.nbytes, b.nbytes)
    assert peak < expected.nbytes + factor // 2


def test_what_blas_cannot_read_is_multiplied_nevertheless():
    every_other = np.arange(40_000.0).reshape(100, 400)[:, ::2]
    right = np.ones((200, 3))
    assert (product.by_blas(every_other, right) == every_other.dot(right)).all()
    repeated = np.broadcast_to(np.arange(200.0), (50, 200))
    assert (product.by_blas(repeated, right) == repeated.dot(right)).all()
