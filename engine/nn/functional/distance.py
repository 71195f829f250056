"""Distances and directions between vectors: normalize, cosine similarity, pairwise distance."""

from engine import linalg
from engine.calls.listening import heard
from engine.ops import triu_indices
from engine.ops.writing.out import deliver
from engine.tensor import Tensor


def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """x / max(‖x‖_p, eps) along `dim`."""
    if out is not None:
        return deliver(out, normalize, input, p, dim, eps, same_dtype=False)
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


@heard
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 / (max(‖x1‖, eps) max(‖x2‖, eps)) along `dim`; the inputs broadcast."""
    lengths1 = x1.norm(2, dim, keepdim=True).clamp(min=eps)
    lengths2 = x2.norm(2, dim, keepdim=True).clamp(min=eps)
    return ((x1 / lengths1) * (x2 / lengths2)).sum(dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """‖x1 - x2 + eps‖_p along the last axis."""
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@heard
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """p-distances of all pairs of rows: (N, M) -> (N (N - 1) / 2,), in the order (0, 1), (0, 2), ..., (N-2, N-1).

    Raises: RuntimeError unless 2-D.
    """
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    first, second = triu_indices(len(input), len(input), 1)
    return linalg.vector_norm(input[first] - input[second], p, dim=1)
