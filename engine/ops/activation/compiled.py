"""The one way in which an activation gets its compiled kernels on a CPU: they run on float32 and float64 arrays,
and what NumPy makes of the activation's own statement runs on all others.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.plan import Plan
from engine.calls.straight import Layout, Lines, straight
from engine.kernels.jit import DTYPES, Kernel
from engine.ops.activation.kernels import piecewise, smooth
from engine.ops.activation.kernels.piecewise import vectors
from engine.ops.shared.operands import in_single_precision
from engine.sharing.threads import WORTH

Array = Any

_SMOOTH: dict[str, tuple[Callable[..., Any], Callable[..., Any], Kernel]] = {  # forward, backward, its kernel
    "gelu": (smooth.gelu_forward, smooth.gelu_backward, smooth._gelu_erf_backward),
    "gelu_tanh": (
        lambda x, out: smooth.gelu_forward(x, approximate="tanh", out=out),
        lambda g, x, out: smooth.gelu_backward(g, x, approximate="tanh", out=out),
        smooth._gelu_tanh_backward,
    ),
    "silu": (smooth.silu_forward, smooth.silu_backward, smooth._silu_backward),
}


def variant(name: str, given: tuple[Any, ...]) -> tuple[str, tuple[float, ...]]:
    """The name of the kernel and its numbers, of an activation with these attributes."""
    if name == "gelu":
        return ("gelu_tanh" if given[0] == "tanh" else "gelu"), ()
    return name, given


def forward(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, a function of the array module, an array and attributes, by the compiled kernel where it serves."""
    if name not in _SMOOTH and name not in piecewise.FORWARD:
        return plain

    @wraps(plain)
    def run(xp: ModuleType, input: Array, *given: Any) -> Array:
        if xp is not np:
            return plain(xp, input, *given)
        if (
            input.dtype.itemsize == 2 and input.dtype.kind in "fV"
        ):  # half precision: the very bits of single precision, rounded once
            return run(xp, in_single_precision(input), *given).astype(input.dtype)
        flat = vectors(input)
        if flat is None:
            return plain(xp, input, *given)
        out = np.empty_like(input)
        called, numbers = variant(name, given)
        if called in _SMOOTH:
            _SMOOTH[called][0](flat[0], out=out.ravel("K"))
        else:
            piecewise.forward(called, flat[0], numbers, out.ravel("K"))
        return out

    return run


def in_place(name: str, plan: Plan) -> None:
    """Gives a plan on a CPU its `into` by the compiled kernel, where there is one and it serves."""
    spec, (called, numbers) = plan.out, variant(name, plan.attributes)
    if called not in piecewise.FORWARD or plan.input_specs[0] is not spec or not spec.dense:
        return
    if spec.dtype.numpy.char in DTYPES:
        plan.into = lambda input, out: piecewise.forward(called, input.ravel("K"), numbers, out.ravel("K"))


def slope(name: str, composition: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative rule `composition`, of g, nd, the input (or the result) and attributes, by the compiled kernel
    where there is one and it serves.
    """
    if name != "tanh" and name not in _SMOOTH and name not in piecewise.BACKWARD:
        return composition

    @implements(composition)
    @wraps(composition)
    def rule(g: Array, nd: Any, input: Array, *given: Any) -> Array:
        found = _slope(name, g, input, given)
        return composition(g, nd, input, *given) if found is None else found

    straight(rule)(partial(_lines, name))
    return rule


def _lines(name: str, made: Layout, g: Any, nd: Any, input: Any, *given: Any) -> Lines | None:
    """What a replay calls in place of such a rule."""
    if not (isinstance(g, Layout) and isinstance(input, Layout)) or any(isinstance(each, Layout) for each in given):
        return None
    alike = (g.shape, g.dtype) == (input.shape, input.dtype) and g.compiled and input.compiled and made.contiguous
    if not alike or g.size >= WORTH or (name == "tanh" and len(g.shape) != 2):
        return None
    kernel, numbers = _slope_kernel(name, given, g.dtype.char)
    if name == "tanh":
        call = "{kernel}({0}, {2}, {out})"
    else:
        flat = ", ".join(f"{each}.reshape(-1)" for each in ("{0}", "{2}", "{out}"))
        call = f"{{kernel}}({', '.join([flat, *map(repr, numbers)])})"
    return Lines("{out} = {memory}", call, kernel=kernel)


def _slope(name: str, g: Array, input: Array, given: tuple[Any, ...]) -> Array | None:
    if name == "tanh":
        return smooth.tanh_backward(g, input) if _row_major_alike(g, input) else None
    called, numbers = variant(name, given)
    if called not in _SMOOTH:
        return piecewise.slope(called, g, input, *numbers)
    flat = vectors(input, g)
    if flat is None:
        return None
    out = np.empty_like(input)
    _SMOOTH[called][1](flat[1], flat[0], out=out.ravel("K"))
    return out


def _slope_kernel(name: str, given: tuple[Any, ...], kind: str) -> tuple[Any, tuple[float, ...]]:
    """The kernel by itself for float32 ("f") or float64 ("d"), a function of vectors (of matrices for tanh): the
    gradient, the input, where to write, and these numbers.
    """
    called, numbers = variant(name, given)
    if called == "tanh":
        return smooth._tanh_backward[kind], ()
    if called in _SMOOTH:
        return _SMOOTH[called][2][kind], ()
    return piecewise.BACKWARD[called][kind], (*numbers, *(0.0,) * (3 - len(numbers)))


def _row_major_alike(g: Array, out: Array) -> bool:
    """Whether both are float32 or both float64 in host memory, of one shape and C-contiguous."""
    return (
        g.__class__ is np.ndarray
        and out.__class__ is np.ndarray
        and g.dtype.char in "fd"
        and out.dtype is g.dtype
        and g.shape == out.shape
        and g.flags.c_contiguous
        and out.flags.c_contiguous
    )
