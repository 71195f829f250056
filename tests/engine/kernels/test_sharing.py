"""Kernels that several threads share: the same bits on any number of threads, and errors that arrive."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.activation.kernels import piecewise
from engine.ops.activation.kernels import smooth as activation
from engine.ops.conv import direct as conv_direct
from engine.ops.conv import planes as conv_planes
from engine.ops.embedding import kernels as embedding
from engine.ops.loss import kernels as loss
from engine.ops.matmul.kernels import bias as linear
from engine.ops.norm.kernels import batch_norm, group_norm
from engine.ops.norm.kernels import layer_norm as norm
from engine.ops.pointwise import kernels as pointwise
from engine.ops.pooling.kernels import avg_pool, max_pool
from engine.ops.resample import kernels as resample
from engine.ops.rnn import kernels as rnn
from engine.ops.shared.windows import ConvWindow
from engine.ops.softmax import kernels as softmax
from engine.rules.layout import contiguous_format
from engine.sharing import threads

Array = np.ndarray

ROWS, COLUMNS = 3307, 515  # of matrices that five threads share


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrix(seed: int = 0) -> Array:
    return normal(ROWS, COLUMNS, seed=seed)


def softmaxes() -> list[Array]:
    x, g = matrix(), matrix(1)
    forward, logs = softmax.softmax_forward(x), softmax.log_softmax_forward(x)
    return [forward, logs, softmax.softmax_backward(g, forward), softmax.log_softmax_backward(g, logs)]


def cross_entropy() -> list[Any]:
    logits, weight = matrix(), np.abs(normal(COLUMNS))
    target = np.random.default_rng(0).integers(0, COLUMNS, ROWS)
    results: list[Any] = []
    for options in ({}, {"weight": weight, "ignore_index": 3, "label_smoothing": 0.1}):
        losses, log_sums, total = loss.cross_entropy_forward(logits, target, **options)
        results += [losses, log_sums, total]
        for gradient in (losses, losses[:1]):
            results.append(loss.cross_entropy_backward(gradient, logits, target, log_sums, **options))
    return results


def activations() -> list[Any]:
    x, g = matrix().reshape(-1), matrix(1).reshape(-1)
    results: list[Any] = [activation.silu_forward(x), activation.silu_backward(g, x), activation.tanh_backward(g, x)]
    for approximate in ("none", "tanh"):
        results.append(activation.gelu_forward(x, approximate=approximate))
        results.append(activation.gelu_backward(g, x, approximate=approximate))
    for name in ("relu", "sigmoid"):
        results += [piecewise.activated(name, x), piecewise.slope(name, g, x)]
    return results


def bias() -> list[Array]:
    x = matrix()
    linear.add_bias(x, normal(COLUMNS))
    return [x, linear.column_sums(x), linear.column_sums(normal(ROWS * 27, 20))]


def layer_norm() -> list[Array]:
    x, g, weight = matrix(), matrix(1), normal(COLUMNS)
    out, mean, rstd = norm.layer_norm_forward(x, weight, weight, 1e-5)
    return [out, mean, rstd, *norm.layer_norm_backward(g, x, mean, rstd, weight)]


def normalised(*shape: int) -> list[Array]:
    x, g, weight = normal(*shape), normal(*shape, seed=1), normal(shape[1], seed=2)
    mean, variance = batch_norm.moments(x)
    rstd = 1 / np.sqrt(variance)
    total, projected = batch_norm.gradient_sums(g, x, mean)
    slope = batch_norm.input_gradient(g, x, mean, rstd, weight, total, projected, x.size / shape[1])
    return [mean, variance, total, projected, slope, batch_norm.normalise(x, mean, rstd, weight, weight)]


def group_norms() -> list[Array]:
    x, g, weight = normal(11, 36, 4400), normal(11, 36, 4400, seed=1), normal(36)
    results = []
    for as_channels_last in (False, True):
        if as_channels_last:
            x, g = (np.ascontiguousarray(one.swapaxes(1, 2)) for one in (x, g))
        out, mean, rstd = group_norm.forward(x, weight, weight, 6, 1e-5, as_channels_last)
        results += [out, mean, rstd, *group_norm.backward(g, x, mean, rstd, weight, as_channels_last)]
    return results


def repeated() -> list[Array]:
    x = normal(9000, 400)
    results = [np.empty_like(x), np.empty_like(x)]
    for which, other, numbers, out in (
        (pointwise.MULTIPLY, normal(400, seed=1), [400, 9000, 0, 0, 1], results[0]),
        (pointwise.DIVIDED, normal(9000, seed=2), [400, 9000, 0, 1, 0], results[1]),
    ):
        pointwise.combine(which, x.reshape(-1), other, out.reshape(-1), np.array(numbers))
    return results


def pools(shape: tuple[int, ...]) -> list[Array]:
    image, results = normal(*shape), []
    height, width = shape[1:3]
    for window in ((2, 2), (3, 3)):
        size = (height // 2, width // 2)
        padding = ((window[0] - 1) // 2,) * 2
        out, places = max_pool.max_pool2d_forward(image, size, window, (2, 2), padding)
        # places come in the shape of the maxima or flat
        backward = [max_pool.max_pool2d_backward(out, each, shape) for each in (places, places.reshape(-1))]
        average = avg_pool.avg_pool2d_forward(image, size, window, (2, 2), padding)
        results += [out, places, *backward, average]
        results.append(avg_pool.avg_pool2d_backward(average, shape, window, (2, 2), padding))
    return results


def depthwise_convolution() -> list[Array]:
    image, weight = normal(11, 48, 40, 44), normal(48, 1, 3, 3)
    results = []
    for stride in (1, 2):
        window = ConvWindow((stride, stride), (1, 1), (1, 1), 48)
        out = conv_direct.forward(image, weight, None, window, contiguous_format)
        results += [out, conv_direct.input_gradient(out, weight, (40, 44), window, contiguous_format)]
        results.append(conv_direct.weight_gradient(out, image, window, weight.shape, weight.strides))
    return results


def grouped_convolution_of_planes() -> list[Array]:
    """Two groups of three outputs: threads take outputs of both."""
    image, weight, window = normal(11, 10, 80, 88), normal(6, 5, 3, 3), ConvWindow((1, 1), (1, 1), (1, 1), 2)
    out = conv_planes.forward(image, weight, None, window, contiguous_format)
    return [out, conv_planes.weight_gradient(out, image, window, weight.shape, weight.strides)]


def weighted_sums() -> list[Array]:
    indices = np.random.default_rng(0).integers(-1, 40, (4, 80))
    sums = resample.weighted_sums(normal(11, 40, 1100), indices, normal(4, 80))
    return [sums, resample.weighted_sums(normal(12100, 40, 1), indices, normal(4, 80))]


def embeddings() -> list[Array]:
    places = np.random.default_rng(0).integers(0, 700, ROWS)
    table = normal(700, COLUMNS)
    embedding.index_add(table, places, matrix(), 0.5)
    return [table, embedding.embedding_backward(matrix(), places, 700, padding_idx=5, scale_grad_by_freq=True)]


def recurrent_steps() -> list[Array]:
    results = []
    for gates, forward, backward in (
        (4, rnn.lstm_cell, rnn.lstm_cell_backward),
        (3, rnn.gru_cell, rnn.gru_cell_backward),
    ):
        wide, more, vector = normal(331, gates * 515), normal(331, gates * 515, seed=1), normal(gates * 515)
        states = [normal(331, 515, seed=seed) for seed in range(5)]
        forward(wide, more, vector, *states[:3])
        backward(*states[:3], wide, *states[3:], *([more] if gates == 4 else [more, more.copy()]))
        results += [wide, more, *states]
    return results


def convolutions() -> list[Array]:
    results = []
    for channels, outputs in ((1, 32), (24, 40), (24, 3)):
        x = engine.tensor(normal(13, channels, 28, 31)).requires_grad_(channels > 1)  # of one, by the BLAS
        weight = engine.tensor(normal(outputs, channels, 3, 3)).requires_grad_()
        F.conv2d(x, weight, weight.detach()[:, 0, 0, 0], padding=1).square().sum().backward()
        results += [tensor.grad.numpy() for tensor in (x, weight) if tensor.requires_grad]
    return results


def attention() -> list[Array]:
    results = []
    mask = engine.tensor(normal(1, 1, 200, 200) > 0)
    for options in ({"is_causal": True}, {"attn_mask": mask}, {"dropout_p": 0.2}):
        engine.manual_seed(0)
        query, key, value = (engine.tensor(normal(3, 5, 200, 64, seed=s)).requires_grad_() for s in range(3))
        out = F.scaled_dot_product_attention(query, key, value, **options)  # type: ignore[arg-type]
        out.square().sum().backward()
        results += [out.detach().numpy(), query.grad.numpy(), key.grad.numpy(), value.grad.numpy()]
    return results


CASES: dict[str, Callable[[], list[Any]]] = {
    "softmax": softmaxes,
    "cross entropy": cross_entropy,
    "activations": activations,
    "bias": bias,
    "layer norm": layer_norm,
    "batch norm of rows": lambda: normalised(ROWS * 8, 65),
    "batch norm of planes": lambda: normalised(31, 57, 1000),
    "group norm": group_norms,
    "repeated": repeated,
    "pooling of planes": lambda: pools((1730, 32, 31)),
    "pooling of pixels": lambda: pools((27, 32, 31, 64)),
    "depthwise convolution": depthwise_convolution,
    "grouped convolution of planes": grouped_convolution_of_planes,
    "weighted sums": weighted_sums,
    "embedding": embeddings,
    "recurrent steps": recurrent_steps,
    "convolution": convolutions,
    "attention": attention,
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = engine.get_num_threads()
    yield
    engine.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_on_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.set_num_threads(1)
    expected = CASES[name]()
    most = 0
    share = threads.share

    def counted(function: Callable[[Any], Any], parts: Any, work: int | None = None) -> None:
        nonlocal most
        most = max(most, len(parts))
        share(function, parts)  # however little it is

    monkeypatch.setattr(threads, "share", counted)
    for number in (2, 3, 5):
        engine.set_num_threads(number)
        most = 0
        for actual, wanted in zip(CASES[name](), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
        assert most >= number, "the case is too small to be shared"


@pytest.mark.parametrize("number", [1, 3])
def test_the_first_wrong_index_is_named(number: int) -> None:
    engine.set_num_threads(number)
    target = np.zeros(ROWS, np.int64)
    target[[700, 3000]] = COLUMNS
    with pytest.raises(IndexError, match="element 700 of target"):
        loss.cross_entropy_forward(matrix(), target)
    table = normal(700, COLUMNS)
    before = table.copy()
    with pytest.raises(IndexError, match=r"index\[700\] is 700"):
        embedding.index_add(table, np.where(target > 0, 700, 0), matrix())
    np.testing.assert_array_equal(table, before)
