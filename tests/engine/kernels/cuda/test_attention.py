"""The fused attention kernels on NumPy's formulas: tails of tiles, masks, dropout, shared keys, permuted operands, for
every way of multiplying. Without a GPU the kernels run on the CPU (tests/cuda_driver).
"""

import ml_dtypes
import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.ops.attention import cuda as kernels
from tests import cuda_device

bfloat16 = np.dtype(ml_dtypes.bfloat16)
# What is compared is divided by the largest expected element.
KINDS = {
    "float32": (np.dtype("f"), False, 3e-6),
    "tf32": (np.dtype("f"), True, 2e-3),
    "float16": (np.dtype("e"), False, 2e-3),
    "bfloat16": (bfloat16, False, 1.5e-2),
}
every_kind = pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16"])


def expected(query, key, value, slope, mask, kept, causal, scale, kept_scale):
    """Result, logarithms of sums and gradients in float64."""
    query, key, value, slope = (array.astype(np.float64) for array in (query, key, value, slope))
    scores = query @ key.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(np.float64)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = powers.sum(-1, keepdims=True)
    chances = powers / np.where(total == 0, 1, total)
    factors = np.ones_like(chances) if kept is None else kept * kept_scale
    of_dropped = slope @ value.swapaxes(-1, -2) * factors
    of_scores = chances * (of_dropped - (of_dropped * chances).sum(-1, keepdims=True))
    log_sums = (largest + np.log(np.where(total == 0, 1, total)))[..., 0]
    return (
        chances * factors @ value,
        log_sums,
        of_scores @ key * scale,
        of_scores.swapaxes(-1, -2) @ query * scale,
        (chances * factors).swapaxes(-1, -2) @ slope,
    )


def draws_of(seed: int, offset: int):
    return kernels.draw((np.uint64(0), np.uint64(seed), np.uint64(offset)))


def summed_to(array, shape):
    """The sum over the axes along which an operand of `shape` was shared."""
    array = array.sum(tuple(range(array.ndim - len(shape))))
    shared = tuple(axis for axis, (size, own) in enumerate(zip(array.shape, shape, strict=True)) if own < size)
    return array.sum(shared, keepdims=True)


def check(kind, query, key, value, *, mask=None, causal=False, dropout=0.0, permuted=False):
    """Runs forward and backward on random operands of these shapes; `mask` makes one from the scores' shape."""
    cupy = backend.require_cupy()
    dtype, tf32, tolerance = KINDS[kind]
    random = np.random.default_rng(0)

    def sample(shape):
        return random.standard_normal(shape).astype(dtype)

    def given(array):
        if not permuted:
            return cupy.asarray(array)
        return cupy.asarray(np.ascontiguousarray(array.swapaxes(-2, -3))).swapaxes(-2, -3)

    batch = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    scores = (*batch, query[-2], key[-2])
    host = [sample(query), sample(key), sample(value), sample((*batch, query[-2], value[-1]))]
    scale, kept_scale = query[-1] ** -0.5, 1 / (1 - dropout)
    draws = draws_of(123, 7) if dropout else None
    kept = kernels.keep_mask(draws, scores, kept_scale).get() if dropout else None
    masked = None if mask is None else mask(random, scores)
    masked = masked if masked is None or masked.dtype == bool else masked.astype(dtype)
    on_device = None if masked is None else cupy.asarray(masked)
    arrays = [given(array) for array in host]
    out = given(np.zeros(host[3].shape, dtype))
    assert kernels.serves(*arrays[:3])
    log_sums = kernels.forward(*arrays[:3], on_device, draws, out, causal, scale, kept_scale, tf32)
    found = kernels.backward(arrays[3], *arrays[:3], on_device, draws, out, log_sums, causal, scale, kept_scale, tf32)
    wanted = expected(*host, masked, kept, causal, scale, kept_scale)
    shapes = (wanted[0].shape, wanted[1].shape, query, key, value)
    for mine, theirs, shape in zip((out, log_sums, *found), wanted, shapes, strict=True):
        mine, theirs = (summed_to(array, shape) for array in (mine.get().astype(np.float64), theirs))
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(np.isfinite(mine), finite)
        np.testing.assert_array_equal(mine[~finite], theirs[~finite])
        largest = max(1, np.abs(theirs[finite]).max())
        np.testing.assert_allclose(mine[finite] / largest, theirs[finite] / largest, rtol=0, atol=tolerance)


def some_true(random, shape):
    mask = random.random(shape[-2:]) < 0.6
    mask[3] = False  # a query that may attend to nothing
    return mask


def added(random, shape):
    mask = random.standard_normal((shape[0], 1, 1, shape[-1]))
    mask[0, 0, 0, 2] = -np.inf
    return mask


@every_kind
def test_causal_over_several_tiles(cuda: engine.device, kind: str):
    check(kind, (1, 2, 70, 32), (1, 2, 70, 32), (1, 2, 70, 32), causal=True, permuted=True)


@every_kind
@pytest.mark.parametrize("positions", [(33, 65), (65, 33)], ids=str)
def test_causal_with_other_numbers_of_keys(cuda: engine.device, kind: str, positions: tuple[int, int]):
    check(kind, (positions[0], 32), (positions[1], 32), (positions[1], 32), causal=True)


@every_kind
def test_rows_that_are_no_multiples_of_anything(cuda: engine.device, kind: str):
    check(kind, (2, 1, 9, 21), (2, 1, 37, 21), (2, 1, 37, 17))


@every_kind
@pytest.mark.parametrize("mask", [some_true, added])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_masks_and_dropout(cuda: engine.device, kind: str, mask, dropout: float):
    check(kind, (2, 2, 17, 24), (2, 2, 35, 24), (2, 2, 35, 24), mask=mask, dropout=dropout)


@every_kind
def test_heads_that_share_keys_and_values(cuda: engine.device, kind: str):
    check(kind, (2, 3, 2, 20, 32), (2, 3, 1, 33, 32), (2, 3, 1, 33, 32), causal=True, dropout=0.5)


def test_keys_that_are_shared_and_values_that_are_not(cuda: engine.device):
    check("float32", (2, 4, 10, 16), (1, 1, 12, 16), (2, 4, 12, 16))


def test_float16(cuda: engine.device):
    check("float16", (1, 2, 40, 64), (1, 2, 70, 64), (1, 2, 70, 64), causal=True)


@pytest.mark.parametrize(("kind", "width"), [("float32", 256), ("bfloat16", 64), ("bfloat16", 128), ("bfloat16", 256)])
def test_wide_rows(cuda: engine.device, kind: str, width: int):
    check(kind, (1, 20, width), (1, 40, width), (1, 40, width - 28), causal=True)


def test_equal_calls_give_equal_bits(cuda: engine.device):
    cupy = backend.require_cupy()
    random = np.random.default_rng(1)
    arrays = [cupy.asarray(random.standard_normal((2, 50, 32), np.float32)) for _ in range(4)]
    results = []
    for _ in range(2):
        out = cupy.empty((2, 50, 32), np.float32)
        log_sums = kernels.forward(*arrays[:3], None, draws_of(1, 2), out, False, 0.3, 1.25, False)
        slopes = kernels.backward(arrays[3], *arrays[:3], None, draws_of(1, 2), out, log_sums, False, 0.3, 1.25, False)
        results.append([out.get(), *(slope.get() for slope in slopes)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_dropout_keeps_its_share_and_depends_on_seed_and_offset(cuda: engine.device):
    masks = [kernels.keep_mask(draws_of(*where), (2, 64, 63), 1 / 0.7).get() for where in ((1, 0), (1, 1), (2, 0))]
    for mask in masks:
        assert abs(mask.mean() - 0.7) < 0.02
    agreement = 0.7**2 + 0.3**2
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[first] == masks[second]).mean() - agreement) < 0.03
    assert not kernels.keep_mask(draws_of(1, 0), (4, 5), 0.0).get().any()  # a probability of 1


def test_accesses_are_in_bounds_and_in_order(cuda: engine.device):
    with cuda_device.checked(seed=3):
        check("float32", (1, 1, 18, 20), (1, 1, 66, 20), (1, 1, 66, 20), mask=some_true, dropout=0.2)
        check("bfloat16", (1, 70, 16), (1, 70, 16), (1, 70, 16), causal=True)


def test_what_is_not_served(cuda: engine.device):
    cupy = backend.require_cupy()
    assert not kernels.serves(*[cupy.zeros((1, 2, 8), np.float64)] * 3)
    assert not kernels.serves(*[cupy.zeros((1, 2, 257), np.float32)] * 3)
    assert not kernels.serves(*[cupy.zeros((0, 2, 8), np.float32)] * 3)
