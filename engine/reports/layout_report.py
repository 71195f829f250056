"""The layout report: which gradients break the gradient layout contract, what made them, what that costs a step, and
what to do about it.

A gradient whose strides differ from its parameter's (on axes of size > 1) must be copied into the parameter's memory
order before an optimizer or a bucket can use it. Whoever makes that copy notes it here: AccumulateGrad for gradients
that operators made, the Reducer and the optimizers for those that somebody assigned to `.grad`. A breach is told once
per parameter, when it reaches a bucket or an optimizer.

A gradient that is merely expanded (stride 0: of a sum, say) is not a breach: it has no memory of its own yet, so
writing it out is no extra copy. Nor are axes of size 1, whose strides address nothing: all public reports of PyTorch's
"grad strides do not match bucket view strides" that print both lists differ only there.
"""

import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine.errors.callers import stack_level
from engine.rules import layout
from engine.rules.layout import channels_last

if TYPE_CHECKING:
    from engine.tensor import Tensor

Mode = Literal["warn", "strict", "off"]
_MODES = ("warn", "strict", "off")

# What names parameters (`named_parameters`), by id: every Module of `engine.nn` enters itself.
owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

ASSIGNED = "an assignment to .grad"  # what made a gradient that no operator made


@dataclass(slots=True)
class LayoutBreach:
    """One parameter whose gradients arrive in another memory order.

    Strides in elements; `bytes_per_step` and `milliseconds` (the fastest seen) of one copy; `copies` so far.
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
            f"the gradient of {self.name} {list(self.shape)}, made by {self.operator}, has strides "
            f"{self.gradient_stride} where the parameter has {self.parameter_stride}: {self.bytes_per_step:,} bytes "
            f"are copied a step ({self.milliseconds:.3f} ms). {self.fix}"
        )


class LayoutWarning(UserWarning):
    """A gradient that has to be copied into another memory order each step."""


class LayoutError(RuntimeError):
    """The same, in mode "strict"."""


_UNNAMED = "an unnamed {}"

_mode: Mode = "warn"
# Parameters with a breach; the breach itself hangs on the parameter and goes with it.
_found: "list[weakref.ref[Tensor]]" = []
untold = False  # whether there is a breach that no optimizer has heard of; every step looks


def set_layout_report(mode: Mode) -> None:
    """What happens at a breach: "warn" (default) once per parameter, "strict" raises `LayoutError`, "off" keeps silent
    (`layout_report` still counts).

    Raises: ValueError for another mode.
    """
    global _mode, untold
    if mode not in _MODES:
        raise ValueError(f"set_layout_report: expected one of {', '.join(_MODES)}, got {mode!r}")
    _mode = mode
    untold = mode != "off" and bool(_found)


def layout_report(*, clear: bool = False) -> list[LayoutBreach]:
    """Every breach so far of parameters that still exist, the most expensive first; `clear` forgets them."""
    global untold
    alive = _alive()
    _settle_names(alive)
    breaches = [breach for parameter in alive if (breach := parameter._autograd_meta().breach) is not None]
    if clear:
        for parameter in alive:
            parameter._autograd_meta().breach = None
        _found.clear()
        untold = False
    return sorted(breaches, key=lambda breach: -breach.bytes_per_step)


def _alive() -> "list[Tensor]":
    return [parameter for reference in _found if (parameter := reference()) is not None]


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
    """Counts the copy of a gradient that is a breach.

    `consumer` is "bucket" or "optimizer" when the copy went straight there; None when AccumulateGrad made it, so that
    it is told at the optimizer's step.
    """
    global untold
    meta = variable._autograd_meta()
    breach = meta.breach
    if breach is None:
        _found[:] = [reference for reference in _found if reference() is not None]
        _found.append(weakref.ref(variable))
        breach = meta.breach = LayoutBreach(
            meta.name or _UNNAMED.format(type(variable).__name__),
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
    if _mode == "strict" or (_mode == "warn" and not breach.told):
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
    # A model with two optimizers: what this one does not hold waits for the other.
    untold = any(not parameter._autograd_meta().breach.told for parameter in _alive())


def _tell(breach: LayoutBreach, consumer: str) -> None:
    breach.told = True
    _settle_names(_alive())
    message = f"layout contract broken on the way to the {consumer}: {breach}"
    if _mode == "strict":
        raise LayoutError(message)
    warnings.warn(message, LayoutWarning, stacklevel=stack_level())


def _settle_names(parameters: "list[Tensor]") -> None:
    """Names the breaches of parameters that nobody named, by the longest path that leads to each from a living Module.

    Looking through all modules takes milliseconds, so it waits until somebody is told; keeping names up to date would
    cost every model.
    """
    unnamed = {id(parameter): parameter for parameter in parameters if parameter._autograd_meta().name is None}
    if not unnamed:
        return
    longest = {key: _UNNAMED.format(type(parameter).__name__) for key, parameter in unnamed.items()}
    found: dict[int, str] = {}
    for module in filter(None, (reference() for reference in owners.valuerefs())):
        for name, parameter in module.named_parameters():
            if id(parameter) in unnamed and len(name) > len(found.get(id(parameter), "")):
                found[id(parameter)] = name
    for key, name in (longest | found).items():
        meta = unnamed[key]._autograd_meta()
        meta.name = meta.breach.name = name


def _fix(variable: "Tensor", gradient_stride: tuple[int, ...], operator: str) -> str:
    shape, stride = tuple(variable.shape), tuple(variable.stride())
    if operator == ASSIGNED:
        return "Fix: assign gradients in the parameter's layout, engine.empty_like(parameter).copy_(gradient)."
    if variable.ndim == 4 and layout.is_contiguous(shape, gradient_stride, channels_last):
        return (
            "Fix: keep the model channels-last, model.to(memory_format=engine.channels_last), before making the "
            "optimizer and wrapping it."
        )
    if variable.ndim == 4 and layout.is_contiguous(shape, stride, channels_last):
        return (
            f"Fix: give {operator} channels-last inputs, x.to(memory_format=engine.channels_last), or keep this "
            "parameter contiguous."
        )
    if not layout.is_non_overlapping_and_dense(shape, gradient_stride):
        return (
            f"Fix: {operator} returns a part of a larger tensor; use the whole parameter there, or .contiguous() in a "
            "backward of your own."
        )
    return (
        f"Fix: store the parameter in the order {operator} uses it (strides {gradient_stride}), or undo the "
        "permutation in forward."
    )


def reset(mode: Mode = "warn") -> None:
    """Forgets everything and sets the mode (tests)."""
    layout_report(clear=True)
    set_layout_report(mode)
