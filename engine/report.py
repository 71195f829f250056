"""The layout report: which gradients break the gradient layout contract, what made them, what that costs a step, and
what to do about it.

A gradient whose strides differ from its parameter's (on axes of size > 1) must be copied into the parameter's memory
order before an optimizer or a
bucket can use it. AccumulateGrad makes that copy and notes it here; a breach is told once per parameter, when it
reaches a bucket or an optimizer.
A gradient that is merely expanded (stride 0: of a sum, say) is not a breach: it has no memory of its own yet, so
writing it out is no extra copy.
"""

import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine import layout
from engine.layout import channels_last

if TYPE_CHECKING:
    from engine.tensor import Tensor

Mode = Literal["warn", "strict", "off"]
_MODES = ("warn", "strict", "off")


@dataclass(slots=True)
class LayoutBreach:
    """One parameter whose gradients arrive in another memory order. Strides in elements; bytes and milliseconds of one
    copy.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    gradient_stride: tuple[int, ...]
    parameter_stride: tuple[int, ...]
    bytes_per_step: int
    milliseconds: float
    copies: int
    fix: str
    told: bool = False

    def __str__(self) -> str:
        return (
            f"gradient of {self.name} {list(self.shape)}, made by {self.operator}, has strides {self.gradient_stride} "
            f"where the parameter has "
            f"{self.parameter_stride}: {self.bytes_per_step:,} bytes are copied a step ({self.milliseconds:.3f} ms). "
            f"{self.fix}"
        )


class LayoutWarning(UserWarning):
    """A gradient that has to be copied into another memory order each step."""


class LayoutError(RuntimeError):
    """The same, in mode "strict"."""


_mode: Mode = "warn"
# parameters with a breach; the breach itself hangs on the parameter and goes with it
_found: "list[weakref.ref[Tensor]]" = []
untold = False  # whether there is a breach that an optimizer has not heard of; read by every step


def set_layout_report(mode: Mode) -> None:
    """What happens at a breach: "warn" (default) once per parameter, "strict" raises `LayoutError`, "off" keeps silent
    (`layout_report` still counts).

    Raises: ValueError for another mode.
    """
    global _mode
    if mode not in _MODES:
        raise ValueError(f"set_layout_report: expected one of {', '.join(_MODES)}, got {mode!r}")
    _mode = mode


def layout_report(*, clear: bool = False) -> list[LayoutBreach]:
    """Every breach so far, the most expensive first; `clear` forgets them."""
    alive = [parameter for reference in _found if (parameter := reference()) is not None]
    breaches = [breach for parameter in alive if (breach := parameter._autograd_meta().breach) is not None]
    if clear:
        for parameter in alive:
            parameter._autograd_meta().breach = None
        _found.clear()
    return sorted(breaches, key=lambda breach: -breach.bytes_per_step)


def name_parameters(named: Iterable[tuple[str, "Tensor"]]) -> None:
    """Gives parameters the names the report uses (DistributedDataParallel and optimizers of named parameters do)."""
    for name, parameter in named:
        parameter._autograd_meta().name = name


def is_breach(gradient_stride: tuple[int, ...], variable: "Tensor") -> bool:
    """Whether a gradient of these strides has memory of its own, in another order than the contract asks for."""
    shape = tuple(variable.shape)
    if variable.numel() < 2 or any(step == 0 and size > 1 for step, size in zip(gradient_stride, shape, strict=True)):
        return False
    wanted = layout.contract_strides(shape, variable.stride())
    return not layout.same_layout_modulo_size_one(shape, gradient_stride, wanted)


def note(
    variable: "Tensor", gradient_stride: tuple[int, ...], operator: str, seconds: float, consumer: str | None
) -> None:
    """Counts one copy. `consumer` is "bucket" when the copy goes straight into one; otherwise the breach is told at the
    optimizer's step.
    """
    global untold
    meta = variable._autograd_meta()
    breach = meta.breach
    if breach is None:
        _found.append(weakref.ref(variable))
        breach = meta.breach = LayoutBreach(
            meta.name or _hint(variable),
            operator,
            tuple(variable.shape),
            gradient_stride,
            tuple(variable.stride()),
            variable.nbytes,
            seconds * 1e3,
            0,
            _fix(variable, gradient_stride, operator),
        )
    breach.copies += 1
    breach.milliseconds = min(breach.milliseconds, seconds * 1e3)
    if not breach.told or _mode == "strict":
        if consumer is None:
            untold = True
        else:
            _tell(breach, consumer)


def tell_optimizer(parameters: Iterable["Tensor"]) -> None:
    """Tells the breaches that reached an optimizer with these parameters; called by its step while `untold` is set."""
    global untold
    untold = False
    for parameter in parameters:
        breach = None if parameter._meta is None else parameter._meta.breach
        if breach is not None and (not breach.told or _mode == "strict"):
            _tell(breach, "optimizer")


def _tell(breach: LayoutBreach, consumer: str) -> None:
    breach.told = True
    if _mode == "strict":
        raise LayoutError(f"layout contract broken on the way to the {consumer}: {breach}")
    if _mode == "warn":
        warnings.warn(f"layout contract broken on the way to the {consumer}: {breach}", LayoutWarning, stacklevel=2)


def _hint(variable: "Tensor") -> str:
    return f"an unnamed parameter ({type(variable).__name__})"


def _fix(variable: "Tensor", gradient_stride: tuple[int, ...], operator: str) -> str:
    shape, stride = tuple(variable.shape), tuple(variable.stride())
    if variable.ndim == 4 and layout.is_contiguous(shape, gradient_stride, channels_last):
        return (
            "Fix: keep the model channels-last, model.to(memory_format=engine.channels_last), before making the "
            "optimizer "
            "and wrapping it."
        )
    if variable.ndim == 4 and layout.is_contiguous(shape, stride, channels_last):
        return (
            f"Fix: give {operator} channels-last inputs, x.to(memory_format=engine.channels_last), or keep this "
            f"parameter "
            "contiguous."
        )
    if not layout.is_non_overlapping_and_dense(shape, gradient_stride):
        return (
            f"Fix: {operator} returns a part of a larger tensor; use the whole parameter there, or .contiguous() in a "
            "backward of your own."
        )
    return (
        f"Fix: store the parameter in the order {operator} uses it (strides {gradient_stride}), or undo the "
        f"permutation "
        "permutation in forward."
    )


def reset(mode: Any = "warn") -> None:
    """Forgets everything and sets the mode (tests)."""
    global untold
    set_layout_report(mode)
    layout_report(clear=True)
    untold = False
