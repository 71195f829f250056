"""Complex tensors: parts, conjugates, polar form. `real`, `imag`, `view_as_real` and `view_as_complex` are views.

The gradient of a real loss by z = x + iy is dL/dx + i dL/dy, as in PyTorch ("Autograd mechanics", complex numbers).
`conj` computes its result at once, where PyTorch's is a view that remembers to conjugate.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.versions import CopyCounter
from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import Operator, define
from engine.memory import backend
from engine.ops.pointwise.row import FUNCTIONS, Facts, floating, pointwise, result_spec
from engine.ops.shared.operands import require_tensors
from engine.ops.writing.out import deliver
from engine.rules import dtypes
from engine.rules.layout import contiguous_format
from engine.rules.spec import Spec
from engine.tensor import Tensor

pointwise("conj", "conjugate", (lambda g, nd: nd.conjugate(g),), analytic=False)


def _not_analytic(operator: Operator) -> Operator:
    operator.analytic = False
    return operator


# --- parts ------------------------------------------------------------------------------------------------------------


def _part_rule(input: Spec) -> Spec:
    return input.like(stride=tuple(2 * step for step in input.stride), dtype=input.dtype.to_real())


REAL = _not_analytic(
    define("real", rule=_part_rule, forward=lambda xp, input: input.real, backward=(lambda g: g,), view=True)
)
IMAG = _not_analytic(
    define("imag", rule=_part_rule, forward=lambda xp, input: input.imag, backward=(lambda g: g * 1j,), view=True)
)


def _as_real_rule(input: Spec) -> Spec:
    if not input.dtype.is_complex:
        raise RuntimeError(f"view_as_real is only supported for complex tensors, got {input.dtype}")
    stride = (*(2 * step for step in input.stride), 1)
    return input.like(shape=(*input.shape, 2), stride=stride, dtype=input.dtype.to_real())


def _as_real(xp: ModuleType, input: Any) -> Any:
    strides = (*input.strides, input.dtype.itemsize // 2)
    return xp.lib.stride_tricks.as_strided(input.real, (*input.shape, 2), strides)


def _as_complex_rule(input: Spec) -> Spec:
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(
            f"view_as_complex is only supported for half, float and double tensors, but got a tensor of dtype "
            f"{input.dtype}"
        )
    if not input.ndim or input.shape[-1] != 2:
        raise RuntimeError(f"Tensor must have a last dimension of size 2, got shape {list(input.shape)}")
    kind = dtypes.complex64 if input.dtype is dtypes.float32 else dtypes.complex128
    if not input.numel:
        return input.like(shape=input.shape[:-1], dtype=kind)
    if input.stride[-1] != 1:
        raise RuntimeError(f"Tensor must have a last dimension with stride 1, got strides {input.stride}")
    if any(step % 2 for step in input.stride[:-1]):
        raise RuntimeError(
            f"Tensor must have a stride divisible by 2 for all but last dimension, got strides {input.stride}"
        )
    return input.like(shape=input.shape[:-1], stride=tuple(step // 2 for step in input.stride[:-1]), dtype=kind)


VIEW_AS_REAL = _not_analytic(
    define(
        "view_as_real",
        rule=_as_real_rule,
        forward=_as_real,
        backward=(
            implements(lambda g, nd: nd.view_as_complex(g.clone(memory_format=contiguous_format)))(
                lambda g: g[..., 0] + 1j * g[..., 1]
            ),
        ),
        view=True,
    )
)
VIEW_AS_COMPLEX = _not_analytic(
    define(
        "view_as_complex",
        rule=_as_complex_rule,
        forward=lambda xp, input: _joined(xp, input),
        backward=(implements(lambda g, nd: nd.view_as_real(g))(lambda g, nd: nd.xp.stack([g.real, g.imag], -1)),),
        view=True,
    )
)


def _joined(xp: ModuleType, input: Any) -> Any:
    """The same memory as complex numbers: the pair of parts is one element whatever the other axes do."""
    kind = input.dtype.char.upper()
    if not input.size:
        return xp.empty(input.shape[:-1], kind)
    offset = (backend.address(input) - backend.address(backend.storage(input))) // input.itemsize
    if offset % 2:
        raise RuntimeError(f"Tensor must have a storage_offset divisible by 2, got {offset}")
    if input.strides[-1] != input.itemsize:  # NumPy's own answer for an axis that was made of another one
        return xp.lib.stride_tricks.as_strided(input, strides=(*input.strides[:-1], input.itemsize)).view(kind)[..., 0]
    return input.view(kind)[..., 0]


def real(input: Tensor) -> Tensor:
    """The real part, a view; a real tensor as it is."""
    return apply(REAL, (input,)) if input.is_complex() else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part, a view. Raises: RuntimeError for a real tensor."""
    if not input.is_complex():
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return apply(IMAG, (input,))


def view_as_real(input: Tensor) -> Tensor:
    """The parts of complex numbers as a last axis of size 2, a view. Raises: RuntimeError for a real tensor."""
    return apply(VIEW_AS_REAL, (input,))


@heard
def view_as_complex(input: Tensor) -> Tensor:
    """A last axis of size 2 as the parts of complex numbers, a view.

    Raises: RuntimeError for other sizes or strides, and where it begins at an odd place in its storage: a GPU reads
    both parts at once.
    """
    return apply(VIEW_AS_COMPLEX, (input,))


def conj(input: Tensor) -> Tensor:
    """The complex conjugate; a real tensor as it is.

    PyTorch's shares the tensor's memory, this is a copy: it keeps its values when the tensor is written, and writing to
    it or its views raises RuntimeError.
    """
    if not input.is_complex():
        return input
    found = FUNCTIONS["conj"](input)
    found._counter = CopyCounter()
    return found


@heard
def conj_physical(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The complex conjugate in new memory; a real tensor as it is."""
    if out is not None:
        return deliver(out, conj_physical, input)
    return FUNCTIONS["conj"](input) if input.is_complex() else input


@heard
def resolve_conj(input: Tensor) -> Tensor:
    """A copy of a conjugate, which may be written; every other tensor as it is."""
    return input.clone() if type(input._counter) is CopyCounter else input


@heard
def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: no negation is ever pending here."""
    return input


@heard
def is_conj(input: Tensor) -> bool:
    """False: no conjugation is ever pending here."""
    return False


is_neg = is_conj


# --- composed ---------------------------------------------------------------------------------------------------------


def _complex_rule(input: Spec, other: Spec) -> Spec:
    if input.dtype is not other.dtype:
        raise RuntimeError(f"Expected object of scalar type {input.dtype} but got {other.dtype} for second argument")
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(f"Expected both inputs to be Half, Float or Double tensors but got {input.dtype}")
    kind = dtypes.complex64 if input.dtype is dtypes.float32 else dtypes.complex128
    return result_spec("complex", "arithmetic", "", input, other).like(dtype=kind)


COMPLEX = _not_analytic(
    define(
        "complex",
        rule=_complex_rule,
        forward=lambda xp, input, other: input + other * xp.asarray(1j, "F" if input.dtype.char == "f" else "D"),
        backward=(
            lambda g, nd: nd.real(g),
            lambda g, nd: nd.imag(g),
        ),
        inputs="input other",
    )
)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """real + i imag. Raises: RuntimeError unless both are float32 or both float64."""
    return apply(COMPLEX, (real, imag))


@heard
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs (cos(angle) + i sin(angle))."""
    require_tensors("polar", abs=abs, angle=angle)
    return complex(abs * angle.cos(), abs * angle.sin())


def _angle(xp: ModuleType, input: Any) -> Any:
    if input.dtype.kind == "c":
        return xp.angle(input)
    return xp.where(xp.isnan(input), input, xp.where(input < 0, xp.asarray(np.pi, input.dtype), 0)).astype(input.dtype)


def _angle_slope(g: Any, nd: Any, input: Any) -> Any:
    """i z g / |z|², and 0 at 0."""
    if not nd.is_complex(input):
        return nd.zeros_like(g)
    size = nd.abs(input)
    square = size * size
    return nd.where(square == 0, 0, g * 1j * input / nd.where(square == 0, 1, square))


floating("angle", _angle, (_angle_slope,), analytic=False, facts=Facts(real=True))
angle = FUNCTIONS["angle"]


@heard
def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose of a matrix or a batch of them."""
    if input.ndim == 1:
        raise RuntimeError("tensor.adjoint() is only supported on matrices or batches of matrices. Got 1-D tensor.")
    return conj(input.transpose(-2, -1)) if input.ndim else conj(input)
