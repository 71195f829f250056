"""Older names, forms that always return indices, and pairwise distances within a batch."""

from collections.abc import Callable
from typing import Any

import engine
from engine.calls.listening import heard
from engine.nn.functional import pooling, upsampling
from engine.tensor import Tensor


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate(..., mode="nearest")`."""
    return upsampling.interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate(..., mode="bilinear", align_corners=True)`."""
    return upsampling.interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


@heard
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """p-distances of all pairs of rows: (N, M) -> (N (N - 1) / 2,), in the order (0, 1), (0, 2), ..., (N-2, N-1).

    Raises: RuntimeError unless 2-D.
    """
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    first, second = engine.triu_indices(len(input), len(input), 1)
    return engine.linalg.vector_norm(input[first] - input[second], p, dim=1)


def _with_indices(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    def with_indices(input: Tensor, *args: Any, return_indices: bool = True, **options: Any) -> tuple[Tensor, Tensor]:
        return function(input, *args, return_indices=True, **options)

    with_indices.__name__ = with_indices.__qualname__ = f"{function.__name__}_with_indices"
    with_indices.__doc__ = f"`{function.__name__}` and the places of the maxima."
    return with_indices


max_pool1d_with_indices = _with_indices(pooling.max_pool1d)
max_pool2d_with_indices = _with_indices(pooling.max_pool2d)
max_pool3d_with_indices = _with_indices(pooling.max_pool3d)
adaptive_max_pool1d_with_indices = _with_indices(pooling.adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _with_indices(pooling.adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _with_indices(pooling.adaptive_max_pool3d)
