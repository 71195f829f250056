"""The host waits for the device where the size of a result depends on values, and nowhere else: what a training step
calls is queued and returns.
"""

from collections.abc import Callable
from typing import Any

import pytest

import engine
import engine.nn.functional as F
from tests import cuda_device

Calls = dict[str, Callable[[], Any]]


def given(cuda: engine.device) -> tuple[engine.Tensor, engine.Tensor, engine.Tensor, engine.Tensor]:
    """A leaf (4, 6), a mask of its shape, indices (4,), targets (4,)."""
    x = engine.randn(4, 6, device=cuda).requires_grad_()
    index = engine.tensor([2, 0, 2, 3], device=cuda)
    return x, x.detach() > 0, index, engine.tensor([1, 5, 0, 2], device=cuda)


def queued(cuda: engine.device) -> Calls:
    x, mask, index, target = given(cuda)
    column = index.unsqueeze(1)
    host = engine.tensor(2.0)
    return {
        "arithmetic": lambda: (x * 2 + x.abs() ** 1.5 - host) / (x.exp() + 1),
        "comparison": lambda: engine.where(x > 0.5, x, 0.0).clamp(-1, 1).maximum(x),
        "reductions": lambda: x.sum() + x.mean(0).sum() + x.amax() + x.var() + x.norm() + x.logsumexp(1).sum(),
        "picked": lambda: x.max(1)[0] + x.min(1)[0] + x.median(1)[0],
        "products": lambda: (x @ x.t()).sum() + F.linear(x, x).sum() + engine.einsum("ij,kj->ik", x, x).sum(),
        "rows": lambda: x[index] + x.index_select(0, index) + x.gather(0, index.view(4, 1).expand(4, 6)),
        "pairs": lambda: x[index, target],
        "written rows": lambda: (x * 1).index_add(0, index, x).index_copy(0, index.sort()[0], x),
        "written pairs": lambda: (x * 1).index_put((index, target), x[:, 0], accumulate=True),
        "scattered": lambda: x.scatter(1, column, 1.0) + x.scatter_add(1, column, x),
        "masked": lambda: x.masked_fill(mask, 0.0) + engine.where(mask, x, -x),
        "order": lambda: x.sort(1)[0] + x.cumsum(1) + x.flip(0) + x.roll(1, 0) + x.cummax(1)[0],
        "largest": lambda: x.topk(2, 1)[0],
        "joined": lambda: engine.cat([x, x]).chunk(2)[0] + engine.stack([x, x]).sum(0),
        "softmax": lambda: x.softmax(1) + x.log_softmax(0),
        "activations": lambda: F.gelu(x) + F.silu(x) + F.relu(x) + F.leaky_relu(x) + F.dropout(x, 0.5),
        "norms": lambda: F.layer_norm(x, (6,)) + F.rms_norm(x, (6,)) + F.batch_norm(x, None, None, training=True),
        "cross entropy": lambda: F.cross_entropy(x, target, label_smoothing=0.1) + F.nll_loss(x, target),
        "losses": lambda: (
            F.mse_loss(x, x * 2)
            + F.smooth_l1_loss(x, x * 2)
            + F.kl_div(x, x.detach().softmax(1), reduction="batchmean")
        ),
        "binary": lambda: (
            F.binary_cross_entropy(x.sigmoid(), mask.float()) + F.binary_cross_entropy_with_logits(x, mask.float())
        ),
        "classes": lambda: x * F.one_hot(target, 6),
        "embedding": lambda: F.embedding(index, x) + F.embedding(index, x, padding_idx=1),
        "images": lambda: F.max_pool2d(F.conv2d(x.view(1, 1, 4, 6), x[:2, :2].reshape(1, 1, 2, 2)), 2),
        "resized": lambda: (
            F.interpolate(x.view(1, 1, 4, 6), size=(8, 5), mode="bilinear") + F.avg_pool2d(x[None], 1).sum()
        ),
        "attention": lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    }


def test_nothing_waits(cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("a real device does not tell")
    waiting = []
    for name, call in queued(cuda).items():
        out = call()  # kernels are compiled, tables of interpolation copied
        out.backward(engine.ones_like(out))
        with cuda_device.counters() as count:
            out = call()
            out.backward(engine.ones_like(out))
        if count.synchronizations or count.pageable:
            waiting.append((name, count.synchronizations, count.pageable))
    assert not waiting


def test_sizes_that_depend_on_values_are_waited_for(cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("a real device does not tell")
    x, mask, index, _ = given(cuda)
    x = x.detach()
    for call in (
        lambda: x[mask],
        lambda: x.nonzero(),
        lambda: index.unique(),
        lambda: x.sum().item(),
        lambda: bool(x[0, 0]),
    ):
        with cuda_device.counters() as count:
            call()
        assert count.synchronizations
