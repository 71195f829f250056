"""Embedding kernels, and sums of columns, beside NumPy on whole numbers, whose sums are exact. Without a GPU they run
on the CPU (tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
from engine.ops.embedding import cuda as embedding
from engine.ops.reduce import cuda as reduce
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, drawn, here, there

# rows of the table, columns, indices: one and several digits of the sort, blocks and chunks; long runs
SIZES = [(5, 3, 7), (300, 8, 1000), (70_000, 4, 500), (1, 33, 100), (10, 1025, 65), (4, 4, 0), (50, 16, 2049)]


def whole(seed: int, shape: tuple[int, ...], kind: str) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(KINDS[kind][0])


def check(kind: str, rows: int, columns: int, count: int) -> None:
    table, gradient = whole(1, (rows, columns), kind), whole(2, (count, columns), kind)
    index = np.random.default_rng(3).integers(0, rows, count)
    if count > 10:
        index[3], index[4] = rows, -2
    inside = (index >= 0) & (index < rows)
    found = here(embedding.look_up(there(table), there(index)))
    assert (found[inside] == table[index[inside]]).all()
    assert np.isnan(found[~inside]).all()
    for padding in (-1, min(2, rows - 1)):
        kept = inside & (index != padding)
        sums = np.zeros((rows, columns))
        np.add.at(sums, index[kept], gradient[kept].astype("d"))
        found = embedding.add_rows(there(gradient), there(index), rows, padding)
        assert found.dtype == gradient.dtype
        assert (here(found) == sums.astype(gradient.dtype)).all()
        often = np.maximum(np.bincount(index[kept], minlength=rows), 1)[:, None]
        found = embedding.add_rows(there(gradient), there(index), rows, padding, by_frequency=True)
        tolerance = KINDS[kind][1]
        np.testing.assert_allclose(here(found), sums / often, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_values(cuda: engine.device, kind: str):
    for size in SIZES if kind == "float32" else SIZES[:2]:
        check(kind, *size)


def test_runs_over_several_chunks_are_summed_in_order(cuda: engine.device):
    """Equal indices from end to end of chunks, and from inside to inside: the same bits as one after another."""
    values = drawn(1, (200, 5), "float32")
    for index in (np.repeat([0, 1, 2], [64, 96, 40]), np.repeat([2, 0, 1], [33, 100, 67]), np.zeros(200, int)):
        runs = []
        for seed in (0, 7):
            with cuda_device.order(seed):
                runs.append(here(embedding.add_rows(there(values), there(index), 4)))
        assert (runs[0] == runs[1]).all()
        sums = np.zeros((4, 5))
        np.add.at(sums, index, values.astype("d"))
        np.testing.assert_allclose(runs[0], sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_column_sums(cuda: engine.device, kind: str):
    for shape in ((1, 1), (0, 5), (5, 0), (33, 31), (1000, 8), (130, 1025), (65, 256)):
        rows = whole(1, shape, kind)
        found = reduce.column_sums(there(rows))
        assert found.dtype == rows.dtype
        assert (here(found) == rows.astype("d").sum(0).astype(rows.dtype)).all()


def test_rows_that_are_not_aligned(cuda: engine.device):
    """Rows of a multiple of 16 bytes, one element after such an address."""
    table, gradient = whole(1, (40, 8), "float32"), whole(2, (30, 8), "float32")
    late, late_gradient = (there(np.append(each[:1, 0], each))[1:].reshape(each.shape) for each in (table, gradient))
    assert late.data.ptr % 16
    assert late_gradient.data.ptr % 16
    index = np.arange(30) % 7
    assert (here(embedding.look_up(late, there(index))) == table[index]).all()
    sums = here(embedding.add_rows(there(gradient), there(index), 40))
    assert (here(embedding.add_rows(late_gradient, there(index), 40)) == sums).all()


def test_accesses(cuda: engine.device):
    with cuda_device.checked(3):
        check("float16", 40, 8, 300)
        check("float32", 3, 5, 70)
        reduce.column_sums(there(whole(1, (150, 40), "float16")))
        reduce.column_sums(there(whole(1, (9, 5), "float32")))
