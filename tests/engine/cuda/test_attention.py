"""scaled_dot_product_attention on a GPU: values, gradients and layouts as on the CPU, dropout, second derivatives,
what is computed without kernels, memory, and no waiting for the device.
"""

import numpy as np
import pytest

import engine
from engine import ops
from engine.nn.functional import scaled_dot_product_attention
from tests import cuda_device
from tests.engine.cuda.comparison import layout_of

TOLERANCES = {engine.float32: 5e-6, engine.float64: 1e-13, engine.bfloat16: 2e-2}


def on(device, arrays, dtype):
    return [engine.tensor(array, dtype=dtype, device=device).requires_grad_() for array in arrays]


def results(device, arrays, dtype, turned=False, mask=None, **options):
    leaves = on(device, arrays, dtype)
    operands = [leaf.transpose(-2, -3).contiguous().transpose(-2, -3) for leaf in leaves] if turned else leaves
    if mask is not None:
        options["attn_mask"] = engine.tensor(mask, device=device)
    out = scaled_dot_product_attention(*operands, **options)
    (out * out).sum().backward()
    return out, [leaf.grad for leaf in leaves]


CASES = {
    "causal": ([(2, 3, 17, 16)] * 3, {"is_causal": True}),
    "turned": ([(2, 3, 17, 16)] * 3, {"turned": True}),
    "other widths": ([(2, 3, 9, 16), (2, 3, 20, 16), (2, 3, 20, 8)], {"scale": 0.2}),
    "no heads": ([(9, 16), (20, 16), (20, 8)], {}),
    "grouped": ([(2, 4, 9, 16), (2, 2, 20, 16), (2, 2, 20, 16)], {"enable_gqa": True, "is_causal": True}),
    "shared keys": ([(2, 4, 9, 16), (1, 20, 16), (1, 20, 16)], {}),
    "five axes": ([(2, 2, 1, 3, 9, 16), (1, 1, 2, 1, 7, 16), (1, 1, 2, 1, 7, 16)], {}),
    "mask": ([(2, 3, 9, 16), (2, 3, 20, 16), (2, 3, 20, 16)], {"mask": np.tri(9, 20, 3, dtype=bool)}),
    "wide": ([(2, 5, 300)] * 3, {}),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_as_on_the_cpu(cuda: engine.device, case: str, dtype):
    shapes, options = CASES[case]
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape) for shape in shapes]
    (out, slopes), (expected, wanted) = (results(device, arrays, dtype, **options) for device in ("cuda", "cpu"))
    assert out.is_cuda
    for mine, theirs in zip((out, *slopes), (expected, *wanted), strict=True):
        assert mine.dtype is dtype
        assert mine.shape == theirs.shape
        assert layout_of(mine) == layout_of(theirs)
        largest = theirs.double().abs().max().item()
        difference = (mine.detach().cpu().double() - theirs.detach().double()).abs().max().item()
        assert difference <= TOLERANCES[dtype] * largest


def test_gradient_of_an_added_mask(cuda: engine.device):
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(shape).astype("f") for shape in ((2, 5, 8), (2, 6, 8), (2, 6, 8), (5, 6))]
    slopes = []
    for device in ("cpu", "cuda"):
        *operands, mask = on(device, arrays, engine.float32)
        scaled_dot_product_attention(*operands, attn_mask=mask).square().sum().backward()
        slopes.append(mask.grad.cpu().numpy())
    np.testing.assert_allclose(*slopes, rtol=0, atol=1e-5)


def kept_of(query, key, dropout):
    """What dropout keeps of the probabilities: attention to unit vectors gives them as they are."""
    units = engine.eye(key.shape[-2], dtype=query.dtype, device=query.device).expand(*key.shape[:-1], key.shape[-2])
    return scaled_dot_product_attention(query, key, units, dropout_p=dropout)


@pytest.mark.parametrize("dtype", [engine.float32, engine.float64], ids=str)
def test_dropout(cuda: engine.device, dtype):
    random = np.random.default_rng(2)
    query, key, value = on("cuda", [random.standard_normal((2, 3, 40, 16)) for _ in range(3)], dtype)
    engine.manual_seed(5)
    whole = kept_of(query, key, 0.0).detach()
    dropped = kept_of(query, key, 0.4).detach()
    kept = dropped != 0
    assert abs(kept.to(engine.float32).mean().item() - 0.6) < 0.02
    assert engine.allclose(dropped[kept], whole[kept] / 0.6, rtol=1e-5, atol=1e-6)
    assert not engine.equal(kept_of(query, key, 0.4) != 0, kept)
    assert not kept_of(query, key, 1.0).any()

    # with the same draws, and with the mask in plain operators: equal gradients of first and second order
    def slopes(attention, order):
        engine.manual_seed(5)
        kept_of(query, key, 0.0)
        out = attention()
        first = engine.autograd.grad(out.square().sum(), (query, key, value), create_graph=order > 1)
        if order == 1:
            return first
        return engine.autograd.grad(sum(each.square().sum() for each in first), (query, key, value))

    def plain():
        scores = query @ key.transpose(-1, -2) / 4.0
        return (ops.softmax(scores, -1) * kept / 0.6) @ value

    for order in (1, 2):
        found = slopes(lambda: scaled_dot_product_attention(query, key, value, dropout_p=0.4), order)
        for mine, theirs in zip(found, slopes(plain, order), strict=True):
            scale = theirs.abs().max()
            assert engine.allclose(mine / scale, theirs / scale, rtol=0, atol=2e-5)


def test_dropout_with_shared_keys_is_the_grouped_one(cuda: engine.device):
    random = np.random.default_rng(3)
    query, key, value = on(
        "cuda", [random.standard_normal(shape) for shape in ((1, 4, 9, 16), *[(1, 2, 9, 16)] * 2)], engine.float32
    )
    outs = []
    for keys, values, options in (
        (key, value, {"enable_gqa": True}),
        (key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), {}),
    ):
        engine.manual_seed(1)
        outs.append(scaled_dot_product_attention(query, keys, values, dropout_p=0.3, **options))
    assert engine.allclose(*outs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_memory_does_not_grow_with_the_square_and_nothing_waits(cuda: engine.device, dropout: float):
    length = 512
    operands = [engine.ones(1, 1, length, 16, device=cuda).requires_grad_() for _ in range(3)]
    scaled_dot_product_attention(*operands, dropout_p=dropout, is_causal=True).sum().backward()  # compiles
    engine.cuda.synchronize()
    engine.cuda.reset_peak_memory_stats()
    before = engine.cuda.memory_allocated()
    with cuda_device.counters() as count:
        scaled_dot_product_attention(*operands, dropout_p=dropout, is_causal=True).sum().backward()
    if cuda_device.ours():
        assert count.synchronizations == 0, count.waits
        assert {"attention", "attention_of_query", "attention_of_key"} <= set(count.names)
    assert engine.cuda.max_memory_allocated() - before < length * length * 4 / 2


def test_tensor_float_32_is_asked_for(cuda: engine.device):
    random = np.random.default_rng(4)
    operands = on("cuda", [random.standard_normal((1, 20, 32)) for _ in range(3)], engine.float32)
    exact = scaled_dot_product_attention(*operands)
    try:
        engine.backends.cuda.matmul.allow_tf32 = True
        rounded = scaled_dot_product_attention(*operands)
    finally:
        engine.backends.cuda.matmul.allow_tf32 = False
    difference = (exact - rounded).abs().max().item()
    assert 1e-6 < difference < 1e-2
