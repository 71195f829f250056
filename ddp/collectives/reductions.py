"""What a reduction does to elements: which operations there are, for which dtypes, and in which precision they work.

float16 and bfloat16 are combined in float32 and rounded once; a bool is combined as a truth value.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

import engine


class ReduceOp(Enum):
    """How elements are combined. AVG divides the sum by the number of ranks."""

    SUM = "SUM"
    AVG = "AVG"
    PRODUCT = "PRODUCT"
    MIN = "MIN"
    MAX = "MAX"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"
    PREMUL_SUM = "PREMUL_SUM"


@dataclass(frozen=True, slots=True, eq=False)
class PremulSum:
    """The sum of what each rank has multiplied with its own factor before; made by `_make_nccl_premul_sum`."""

    factor: float | complex | engine.Tensor
    name = "PREMUL_SUM"


Op = ReduceOp | PremulSum

_FLOATING_ONLY = ("AVG", "PREMUL_SUM")
_INTEGERS_ONLY = ("BAND", "BOR", "BXOR")
_NOT_COMPLEX = ("PRODUCT", "MIN", "MAX", *_INTEGERS_ONLY)
_MPI_NAMES = {"AVG": "SUM", "PREMUL_SUM": "SUM", "PRODUCT": "PROD"}
# Truth values travel as bytes 0 and 1, which a sum of 256 ranks would bring back to 0.
_MPI_NAMES_OF_BOOL = {"SUM": "MAX", "BOR": "MAX", "PRODUCT": "MIN", "BAND": "MIN"}


def _make_nccl_premul_sum(factor: float | complex | engine.Tensor) -> PremulSum:
    """The operation `ReduceOp.PREMUL_SUM` with a factor, a number or a tensor of one element, of this rank."""
    if isinstance(factor, engine.Tensor) and factor.numel() != 1:
        raise ValueError(f"_make_nccl_premul_sum: expected a factor of one element, got shape {tuple(factor.shape)}")
    return PremulSum(factor)


def check_reduction(name: str, op: Op, dtype: engine.dtype) -> None:
    """Raises where `op` has no meaning for `dtype`: TypeError, ValueError for complex, RuntimeError for bits of floats.

    The kinds of errors are PyTorch's.
    """
    if not isinstance(op, ReduceOp | PremulSum):
        raise TypeError(f"{name}: expected a ReduceOp, got {op!r}")
    if op is ReduceOp.PREMUL_SUM:
        raise ValueError(f"{name}: PREMUL_SUM needs a factor; pass ddp._make_nccl_premul_sum(factor)")
    floating = dtype.is_floating_point or dtype.is_complex
    if op.name in _FLOATING_ONLY and not floating:
        raise TypeError(f"{name}: {op.name} needs a floating point tensor, got {dtype}; use SUM")
    if dtype.is_complex and op.name in _NOT_COMPLEX:
        raise ValueError(f"{name} does not support {op} on complex tensors")
    if op.name in _INTEGERS_ONLY and floating:
        raise RuntimeError(f"{name}: Cannot use ReduceOp.{op.name} with non-integral dtype {dtype}")


def mpi_operation(op: Op, dtype: np.dtype[Any]) -> str:
    """MPI's name of the operation that combines what `before` gives."""
    names = _MPI_NAMES_OF_BOOL if dtype == np.bool_ else _MPI_NAMES
    return names.get(op.name, op.name)


def before(op: Op, values: np.ndarray) -> np.ndarray:
    """This rank's part as MPI combines it: `values` themselves, or a wider or multiplied copy, or bytes for bool."""
    if values.dtype == np.bool_:
        return values.view(np.uint8)
    if values.dtype.itemsize == 2 and values.dtype.kind not in "iu":  # float16, bfloat16
        values = values.astype(np.float32)
    if isinstance(op, PremulSum):
        factor = op.factor.item() if isinstance(op.factor, engine.Tensor) else op.factor
        return values * values.dtype.type(factor)
    return values


def after(op: Op, combined: np.ndarray, ranks: int, dtype: np.dtype[Any]) -> np.ndarray:
    """The result in `dtype`: what `before` did is undone, and AVG divides."""
    if op is ReduceOp.AVG:
        combined = combined / combined.dtype.type(ranks)
    return combined.view(np.bool_) if dtype == np.bool_ else combined.astype(dtype, copy=False)
