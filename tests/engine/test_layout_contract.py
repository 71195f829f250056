"""The layout contract over the whole registry: for channels-last images and other dense inputs, which operators give
results and gradients in the memory order of their inputs.

The tables say which do not. They are exact in both directions: an operator that forgets the order fails, and so does
one that is named here and keeps it.
"""

from collections import defaultdict

import numpy as np
import pytest

import engine
from engine.reports import layout_report as report
from tests.engine.test_operators import results, tensors
from tests.op_samples import SAMPLES, Sample

IMAGE, PERMUTED = "channels-last images", "permuted axes"

# Row-major, or as their kernels make them, as most of these are in PyTorch: running sums, choices along an axis, norms
# over the last axes, matrices, indexing; convolutions and pooling keep channels-last and no other order.
RESULTS = {
    IMAGE: """
avg_pool_gradient conv_weight_gradient cummax cummin cumprod cumsum layer_norm log_softmax logcumsumexp logsigmoid
masked_fill pixel_shuffle pixel_unshuffle pool_scatter scaled_dot_product_attention softmax topk
""",
    PERMUTED: """
addmm batch_norm_inference batch_norm_training cat conv cummax cummin cumprod cumsum gather group_norm index_select
lay_out layer_norm linalg_cholesky linalg_factor linalg_inv linalg_lu_factor linalg_solve log_softmax logcumsumexp
logsigmoid masked_fill pool_gather pow rms_norm scaled_dot_product_attention scatter scatter_reduce softmax tril triu
""",
}
GRADIENTS = {
    IMAGE: """
amax amin avg_pool_gradient cummax cummin cumprod cumsum im2col index_get kthvalue layer_norm log_softmax logcumsumexp
logsigmoid max_dim median_dim min_dim mode pixel_shuffle pixel_unshuffle pool_scatter prod rms_norm
scaled_dot_product_attention softmax sort stack std topk var vector_norm view_backward
""",
    PERMUTED: """
adaptive_max_pool addmm amax amin as_strided_backward as_strided_gather avg_pool avg_pool_gradient baddbmm
batch_norm_inference batch_norm_training bmm cat col2im complex constant_pad_nd conv conv_transposed
conv_weight_gradient cross_entropy cummax cummin cumprod cumsum diagonal embedding embedding_backward fft_c2r fft_r2c
flip gather group_norm gru im2col index_backward index_get index_select kthvalue lay_out layer_norm linalg_cholesky
linalg_det linalg_eigh linalg_factor linalg_inv linalg_lu_factor linalg_pinv linalg_slogdet linalg_solve linalg_svd
log_softmax logcumsumexp logsigmoid lstm masked_fill max_dim max_pool max_pool_with_indices mean median
median_dim min_dim mm mode mv nll_loss pixel_shuffle pixel_unshuffle pool_gather pool_scatter pow prod resample rms_norm
rnn_relu rnn_tanh scaled_dot_product_attention scatter scatter_add_zeros scatter_reduce select slice softmax sort stack
std sum topk tril triu unbind unfold var vector_norm view_backward zeta
""",
}


def order(tensor: engine.Tensor) -> list[int]:
    """The axes that address something, from the slowest to the fastest."""
    return sorted((axis for axis, size in enumerate(tensor.shape) if size > 1), key=lambda a: -tensor.stride()[a])


def obeys(tensor: engine.Tensor, like: engine.Tensor) -> bool:
    """Whether a result lies as an input does: in the same order of axes where the shapes are equal."""
    if tensor.shape == like.shape:
        return tensor.is_non_overlapping_and_dense() and order(tensor) == order(like)
    return tensor.is_contiguous(memory_format=engine.channels_last)


def samples(name: str, kind: str) -> list[tuple[Sample, str]]:
    """The samples of an operator that can lie so, with the layout that says it."""
    found = []
    for sample in SAMPLES[name]:
        ranks = {np.ndim(array) for array in sample.arrays}
        if not sample.relayout or any(not np.size(array) for array in sample.arrays):
            continue
        if kind == IMAGE and max(ranks) == 4 and all(np.shape(a)[1] > 1 for a in sample.arrays if np.ndim(a) == 4):
            found.append((sample, "channels-last"))
        if kind == PERMUTED:
            found += [(sample, "column-major")] * (max(ranks) > 1) + [(sample, "channels-last")] * (max(ranks) == 3)
    return found


def images(tensors: list[engine.Tensor]) -> list[engine.Tensor]:
    """The inputs of the highest rank whose order of axes means something."""
    rank = max(each.ndim for each in tensors)
    return [each for each in tensors if each.ndim == rank and sum(size > 1 for size in each.shape) > 1]


def breaches(name: str, kind: str) -> tuple[list[str], list[str]]:
    """What is wrong with results and with gradients of an operator, in words."""
    of_results, of_gradients = [], []
    for sample, layout in samples(name, kind):
        inputs = tensors(sample, layout, sample.differentiable)
        outs = results(sample.function(*inputs))
        models = images(inputs)
        for out in outs:
            like = next((each for each in models if each.shape == out.shape), None)
            if like is None and kind == IMAGE and out.ndim == 4 and models and min(out.shape[1:]) > 1:
                like = models[0]
            if like is not None and out._base is None and not obeys(out, like):
                of_results.append(f"{list(out.shape)} strides {out.stride()}, input {list(like.shape)} {like.stride()}")
        outs = [out for out in outs if out.requires_grad]
        if outs:
            engine.autograd.backward(outs, [engine.ones_like(out.detach()) for out in outs])
            # what `layout_report` would say, which looks for names among all of Python's objects
            of_gradients += [str(each._meta.breach) for each in inputs if each._meta and each._meta.breach]
    return of_results, of_gradients


@pytest.fixture(autouse=True)
def silent():
    engine.set_layout_report("off")
    yield
    report.reset()


@pytest.mark.parametrize("kind", [IMAGE, PERMUTED])
def test_results_and_gradients_lie_as_the_inputs_do(kind: str) -> None:
    found: dict[str, dict[str, str]] = {"results": defaultdict(str), "gradients": defaultdict(str)}
    walked = 0
    for name in SAMPLES:
        walked += bool(samples(name, kind))
        for what, wrong in zip(found, breaches(name, kind), strict=True):
            if wrong:
                found[what][name] = wrong[0]
    for what, table in (("results", RESULTS), ("gradients", GRADIENTS)):
        expected = set(table[kind].split())
        forgotten = {name: why for name, why in found[what].items() if name not in expected}
        assert not forgotten, f"{what} of {kind}: these operators forget the memory order of their inputs: {forgotten}"
        kept = expected - found[what].keys()
        assert not kept, f"{what} of {kind}: these keep the order and are listed as if they did not: {sorted(kept)}"
    assert walked > (40 if kind == IMAGE else 150)
