"""Convolution: PyTorch's numbers, second derivatives, layouts of results and gradients, refusals."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import columns as conv_cpu
from engine.ops.shared.windows import ConvWindow
from tests.data.operators.conv import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("conv", name, CASES[name], dtype)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


@pytest.mark.parametrize("tile", [1, 5000, 1 << 30])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
def test_tiles_of_any_size_give_the_same(
    monkeypatch: pytest.MonkeyPatch, tile: int, groups: int, layout: engine.memory_format
) -> None:
    """Columns in tiles against the plain array formulation, on integers: exact."""
    monkeypatch.setattr(conv_cpu, "_TILE_BYTES", tile)
    rng = np.random.RandomState(0)
    x = rng.randint(-4, 5, (3, 6, 9, 11)).astype(np.float64)
    w = rng.randint(-4, 5, (12 if groups < 6 else 6, 6 // groups, 3, 2)).astype(np.float64)
    window = ConvWindow((2, 1), (1, 2), (1, 2), groups)
    out = window.positions(x.shape[2:], w.shape[2:])
    g = rng.randint(-4, 5, (3, len(w), *out)).astype(np.float64)
    result = conv_cpu.input_gradient(g, w, x.shape[2:], window, layout)
    assert (result == conv_arrays.convolve_transposed(np, g, w, None, x.shape[2:], window, layout)).all()


FORMATS = {4: engine.channels_last, 5: engine.channels_last_3d}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("w_last", [False, True])
def test_one_channels_last_operand_makes_the_result_channels_last(
    dims: int, transposed: bool, x_last: bool, w_last: bool
) -> None:
    channels_last = FORMATS[dims + 2]
    x, w = engine.randn(2, 3, *(5,) * dims), engine.randn(3, 3, *(2,) * dims)
    x = x.to(memory_format=channels_last) if x_last else x
    w = w.to(memory_format=channels_last) if w_last else w
    y = getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")(x, w)
    expected = channels_last if x_last or w_last else engine.contiguous_format
    assert y.is_contiguous(memory_format=expected)


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (4, 3, 1, 1), (4, 1, 3, 3), (1, 3, 3, 3), (4, 3, 1, 2)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_weight_gradients_have_the_strides_of_the_weight(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    inverse = np.argsort(order).tolist()
    w = engine.randn(*(shape[axis] for axis in order)).permute(*inverse).detach().requires_grad_()
    F.conv2d(engine.randn(2, shape[1], 5, 5), w).sum().backward()
    assert w.grad is not None
    assert w.grad.stride() == w.stride()


def test_a_channels_last_network_never_changes_layout() -> None:
    w1 = engine.randn(4, 3, 3, 3).to(memory_format=engine.channels_last).requires_grad_()
    w2 = engine.randn(5, 4, 3, 3).to(memory_format=engine.channels_last).requires_grad_()
    scale = engine.ones(4).requires_grad_()
    shift = engine.zeros(4).requires_grad_()
    x = engine.randn(2, 3, 12, 12).to(memory_format=engine.channels_last)
    hidden = [F.conv2d(x, w1, padding=1)]
    hidden.append(F.batch_norm(hidden[-1], None, None, scale, shift, training=True))
    hidden.append(F.relu(hidden[-1]))
    hidden.append(F.max_pool2d(hidden[-1], 2))
    hidden.append(F.pad(hidden[-1], (1, 1, 1, 1)))
    hidden.append(F.interpolate(hidden[-1], scale_factor=2, mode="bilinear"))
    hidden.append(F.conv2d(hidden[-1], w2, stride=2))
    hidden.append(F.max_pool2d(hidden[-1], 2, 1))
    hidden.append(hidden[-1] + F.adaptive_avg_pool2d(hidden[-1], 1))
    hidden.append(F.group_norm(hidden[-1], 5))
    hidden.append(F.max_pool2d(hidden[-1], hidden[-1].shape[2:]))
    seen = []
    for number, tensor in enumerate(hidden):
        assert tensor.is_contiguous(memory_format=engine.channels_last), number
        tensor.register_hook(lambda gradient: seen.append(gradient.is_contiguous(memory_format=engine.channels_last)))
    (hidden[-1] * engine.randn_like(hidden[-1])).sum().backward()
    assert seen == [True] * len(hidden)
    assert [leaf.grad.stride() for leaf in (w1, w2)] == [w1.stride(), w2.stride()]  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16])
def test_half_precision_sums_in_single(dtype: engine.dtype) -> None:
    x, w = engine.randn(1, 64, 5, 5).to(dtype), engine.randn(2, 64, 3, 3).to(dtype)
    y = F.conv2d(x, w)
    assert y.dtype == dtype
    assert engine.equal(y, F.conv2d(x.float(), w.float()).to(dtype))
    up = F.conv_transpose2d(x, w.transpose(0, 1))
    assert engine.equal(up, F.conv_transpose2d(x.float(), w.transpose(0, 1).float()).to(dtype))


def test_integers_convolve() -> None:
    x, w = engine.arange(18).reshape(1, 2, 3, 3), engine.ones(1, 2, 2, 2, dtype=engine.int64)
    assert F.conv2d(x, w).tolist() == [[[[52, 60], [76, 84]]]]


@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 0, 5, 5)])
def test_empty_batches_and_channels(shape: tuple[int, ...]) -> None:
    x = engine.zeros(*shape).requires_grad_()
    w = engine.zeros(4, shape[1], 3, 3).requires_grad_()
    y = F.conv2d(x, w, engine.ones(4))
    assert y.shape == (shape[0], 4, 3, 3)
    assert (y == 1).all()
    y.sum().backward()
    assert [leaf.grad.shape for leaf in (x, w)] == [x.shape, w.shape]  # type: ignore[union-attr]


def test_meta_device_runs_the_rule_only() -> None:
    x = engine.empty(2, 3, 8, 8, device="meta").to(memory_format=engine.channels_last)
    y = F.conv2d(x, engine.empty(4, 3, 3, 3, device="meta"), stride=2)
    assert (y.shape, y.stride()) == ((2, 4, 3, 3), (36, 1, 12, 4))


@pytest.mark.parametrize(
    ("function", "x", "w", "options", "error", "message"),
    [
        ("conv2d", (2, 3, 8, 8), (4, 5, 3, 3), {}, RuntimeError, r"conv2d: .*expected input.* 5 channels, but got 3"),
        ("conv2d", (2, 3, 2, 2), (4, 3, 3, 3), {}, RuntimeError, r"conv2d: .*\(2 x 2\)\. Kernel size: \(3 x 3\)"),
        ("conv2d", (2, 3, 8), (4, 3, 3), {}, RuntimeError, r"conv2d: expected a 4-dimensional weight"),
        ("conv2d", (3, 8), (4, 3, 3, 3), {}, RuntimeError, r"conv2d: Expected 3D \(unbatched\) or 4D"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"stride": 0}, RuntimeError, "conv2d: non-positive stride"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"padding": -1}, RuntimeError, "conv2d: negative padding"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"padding": "some"}, RuntimeError, "conv2d: Invalid padding string"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"padding": "same", "stride": 2}, RuntimeError, "strided convolutions"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"stride": (1, 1, 1)}, RuntimeError, "stride must be a single int or"),
        ("conv2d", (2, 3, 8, 8), (4, 3, 3, 3), {"stride": 1.5}, TypeError, "stride must be an int"),
        ("conv2d", (2, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, RuntimeError, "divisible by 2 at dimension 0"),
        ("conv_transpose1d", (2, 3, 8), (4, 3, 3), {}, RuntimeError, r"conv_transpose1d: .*4 channels, but got 3"),
        (
            "conv_transpose1d",
            (2, 3, 8),
            (3, 4, 3),
            {"output_padding": 1},
            RuntimeError,
            "output padding must be smaller",
        ),
        ("conv_transpose1d", (2, 3, 1), (3, 4, 1), {"padding": 1}, RuntimeError, "Output size is too small"),
    ],
)
def test_refusals(
    function: str, x: tuple[int, ...], w: tuple[int, ...], options: dict, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(F, function)(engine.zeros(*x), engine.zeros(*w), **options)


def test_refusals_of_operands() -> None:
    x, w = engine.zeros(1, 3, 4, 4), engine.zeros(2, 3, 3, 3)
    with pytest.raises(RuntimeError, match=r"Input type \(engine.float32\) and weight type \(engine.float64\)"):
        F.conv2d(x, w.double())
    with pytest.raises(RuntimeError, match="expected bias to be 1-dimensional with 2 elements"):
        F.conv2d(x, w, engine.zeros(3))
    with pytest.raises(TypeError, match="argument 'weight' must be Tensor, not ndarray"):
        F.conv2d(x, w.numpy())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16], ids=str)
def test_half_precision_depthwise_gradients(dtype: engine.dtype) -> None:
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, shape) for shape in ((2, 16, 4, 5), (16, 1, 3, 3), (16,))]
    found = []
    for kind in (dtype, engine.float32):
        leaves = [engine.tensor(array, dtype=kind).requires_grad_() for array in arrays]
        F.conv2d(*leaves, padding=1, groups=16).sum().backward()
        found.append([leaf.grad.float() for leaf in leaves])
    assert all(engine.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
