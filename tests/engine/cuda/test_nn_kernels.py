"""Operators of neural networks on the device beside the CPU, in single and half precision and in both layouts: values,
gradients, strides; each runs its fused kernel, a few launches of it, and nothing waits for the device.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
import engine.nn.functional as F
from tests import cuda_device
from tests.engine.cuda.comparison import all_of, assert_same, twin

TOLERANCES = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
IMAGE, ROWS, VECTOR = (2, 6, 5, 8), (7, 40), (40,)


def pooled(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    return lambda x: function(x, *arguments, **options)


# function, shapes, the most launches of a forward and a backward pass, one of the kernels
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int, str]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (40,), w, b), [ROWS, VECTOR, VECTOR], 3, "layer_norm_forward"),
    "rms_norm": (lambda x, w: F.rms_norm(x, (40,), w), [ROWS, VECTOR], 3, "rms_norm_backward"),
    "softmax": (lambda x: F.softmax(x, -1), [ROWS], 2, "softmax_backward"),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [IMAGE], 2, "log_softmax_columns_forward"),
    "gelu": (F.gelu, [IMAGE], 2, "gelu_backward"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [ROWS], 2, "gelu_tanh_forward"),
    "silu": (F.silu, [IMAGE], 2, "silu_forward"),
    "relu": (F.relu, [IMAGE], 2, "relu_backward"),
    "sigmoid": (engine.sigmoid, [ROWS], 2, "sigmoid_forward"),
    "tanh": (engine.tanh, [ROWS], 2, "tanh_backward"),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), [ROWS], 2, "leaky_relu_backward"),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), [IMAGE, (6,), (6,)], 7, "normalise_"),
    "max_pool2d": (pooled(F.max_pool2d, 3, stride=2, padding=1), [IMAGE], 2, "max_pool_backward"),
    "avg_pool2d": (pooled(F.avg_pool2d, 2, ceil_mode=True), [IMAGE], 2, "avg_pool_backward"),
    "adaptive_max_pool2d": (pooled(F.adaptive_max_pool2d, (2, 3)), [IMAGE], 4, "max_pool_backward"),
}


def made(shapes: list[tuple[int, ...]], kind: str, last: bool) -> list[engine.Tensor]:
    """Leaves with the same values for every kind, images channels-last in memory if asked for."""
    rng = np.random.default_rng(5)
    found = []
    for shape in shapes:
        tensor = engine.from_numpy(rng.normal(size=shape).astype(NUMPY[kind]))
        if last and len(shape) == 4:
            tensor = tensor.to(memory_format=engine.channels_last)
        found.append(tensor.requires_grad_())
    return found


def run(function: Callable[..., Any], leaves: list[engine.Tensor], weights: engine.Tensor | None) -> Any:
    out = function(*leaves)
    weights = engine.ones_like(out) if weights is None else weights
    out.backward(weights)
    return out


def compare(name: str, kind: str, last: bool, cuda: engine.device) -> None:
    function, shapes, most, kernel = CASES[name]
    here = made(shapes, kind, last)
    there = [twin(each, cuda) for each in here]
    expected = function(*here)
    g = engine.from_numpy(np.random.default_rng(6).normal(size=tuple(expected.shape)).astype(NUMPY[kind]))
    expected.backward(g)
    slopes = g.to(cuda)
    if cuda_device.ours():
        with cuda_device.counters() as count:
            out = run(function, there, slopes)
        assert not count.synchronizations
        assert any(kernel in launched for launched in count.names), count.names
        if not last and kind == "float32":
            assert count.launches <= most, count.names
    else:
        out = run(function, there, slopes)
    assert_same(out, expected, "values", TOLERANCES[kind])
    for one, other in zip(there, here, strict=True):
        assert_same(one.grad, other.grad, "gradients", 4 * TOLERANCES[kind])


@pytest.mark.parametrize("kind", NUMPY)
def test_values_gradients_and_strides(cuda: engine.device, kind: str):
    all_of(
        (f"{name}, channels-last {last}", lambda name=name, last=last: compare(name, kind, last, cuda))
        for name in CASES
        for last in (False, True)
    )


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_batch_norm_moves_its_statistics_on_the_device(cuda: engine.device, kind: str, last: bool):
    here = engine.nn.BatchNorm2d(6)
    there = engine.nn.BatchNorm2d(6).to(cuda)
    (x,) = made([IMAGE], kind, last)
    y = twin(x, cuda)
    for _ in range(2):
        expected = here(x)
        with cuda_device.counters() as count:
            out = there(y)
            out.sum().backward()
        assert not count.synchronizations
        expected.sum().backward()
        assert_same(out, expected, "values", TOLERANCES[kind])
    for one, other in zip(there.buffers(), here.buffers(), strict=True):
        np.testing.assert_allclose(one.cpu().numpy(), other.numpy(), rtol=1e-2 if kind == "bfloat16" else 1e-5)
    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.cpu().numpy(), other.grad.numpy(), rtol=0.1, atol=0.1)
    here.eval(), there.eval()
    assert_same(there(y), here(x), "evaluation", TOLERANCES[kind])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(cuda: engine.device, reduction: str):
    for shape, last in (((6, 9), False), ((2, 5, 3, 4), False), ((2, 5, 3, 4), True)):
        (x,) = made([shape], "float32", last)
        target = engine.tensor(np.random.default_rng(1).integers(0, shape[1], (shape[0], *shape[2:])))
        y, classes = twin(x, cuda), target.to(cuda)
        for function in (F.cross_entropy, lambda x, t, **o: F.nll_loss(F.log_softmax(x, 1), t, **o)):
            x.grad = y.grad = None
            expected = function(x, target, reduction=reduction, ignore_index=2)
            expected.sum().backward()
            with cuda_device.counters() as count:
                out = function(y, classes, reduction=reduction, ignore_index=2)
                out.sum().backward()
            assert not count.synchronizations
            assert_same(out, expected, "loss", 1e-5)
            np.testing.assert_allclose(y.grad.cpu().numpy(), x.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_targets_out_of_range_give_nan(cuda: engine.device):
    x = engine.zeros(3, 4, device=cuda, requires_grad=True)
    losses = F.cross_entropy(x, engine.tensor([1, 4, -100], device=cuda), reduction="none")
    losses.sum().backward()
    assert engine.isnan(losses).tolist() == [False, True, False]
    assert engine.isnan(x.grad).any(1).tolist() == [False, True, False]
    rows = F.embedding(engine.tensor([0, 3, 7], device=cuda), x.detach())
    assert engine.isnan(rows).any(1).tolist() == [False, True, True]


def test_embedding_gradient_is_the_same_each_time(cuda: engine.device):
    rng = np.random.default_rng(2)
    index = engine.tensor(rng.integers(0, 5, (40, 6)))
    weight, direction = rng.normal(size=(5, 12)).astype("f"), rng.normal(size=(40, 6, 12)).astype("f")
    tables = [engine.tensor(weight, device=where, requires_grad=True) for where in ("cpu", cuda, cuda)]
    for table in tables:
        with cuda_device.counters() as count:
            out = F.embedding(index.to(table.device), table, padding_idx=1)
            gradient = engine.tensor(direction).to(table.device)
            before = count.synchronizations  # of the copies of index and direction
            out.backward(gradient)
            assert count.synchronizations == before
    found = [table.grad.cpu().numpy() for table in tables]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert (found[1] == found[2]).all()


@pytest.mark.parametrize("mode", ["LSTM", "GRU"])
def test_recurrent_layers(cuda: engine.device, mode: str):
    engine.manual_seed(1)
    here = getattr(engine.nn, mode)(5, 7)
    there = getattr(engine.nn, mode)(5, 7)
    there.load_state_dict(here.state_dict())
    there = there.to(cuda)
    x = engine.randn(4, 3, 5)
    expected, _ = here(x)
    expected.sum().backward()
    y = x.to(cuda)
    with cuda_device.counters() as count:
        out, _ = there(y)
        out.sum().backward()
    assert not count.synchronizations
    assert_same(out, expected, "values", 1e-5)
    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.cpu().numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_same_elements_in_backward(cuda: engine.device):
    x = engine.ones(40, 30, device=cuda, requires_grad=True)
    with cuda_device.counters() as count:
        out = F.dropout(x, 0.25)
        out.backward(engine.ones_like(out))
    assert not count.synchronizations
    assert "masked_scale" in " ".join(count.names) or not cuda_device.ours()
    kept = out.detach().cpu().numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.6 < (kept != 0).mean() < 0.9
    assert (x.grad.cpu().numpy() == kept).all()


@pytest.mark.parametrize("name", ["layer_norm", "attention", "linear"])
def test_a_plan_serves_operands_that_begin_anywhere(cuda: engine.device, name: str):
    function: Callable[..., Any] = {
        "layer_norm": lambda x, y, z: F.layer_norm(x, (16,), y[0], z[0]),
        "attention": F.scaled_dot_product_attention,
        "linear": lambda x, y, z: F.linear(x, y, z[:, 0].contiguous()),
    }[name]
    flat = engine.randn(3, 8 * 16 + 1)
    there = flat.to(cuda)
    for start in (0, 1, 0):  # of one layout, aligned for accesses of 16 bytes and not
        found, expected = (
            function(*(each[row, start : start + 128].view(8, 16) for row in range(3))) for each in (there, flat)
        )
        assert_same(found, expected, f"{name} from {start}", 1e-5)
