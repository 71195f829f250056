"""Derivative rules as they are called: where each argument is found, which form of a rule runs, and what is put around
it for complex numbers, half precision, and 0-dim host tensors beside tensors on a GPU.

Most rules are one function of arrays or Tensors. One with a fused kernel has two forms, and here is chosen between
them: its statement as a composition of operators, which runs where the step is itself recorded (create_graph), and the
implementation on raw arrays, `@implements(composition)`.
"""

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from engine.calls.namespaces import conjugate
from engine.rules.device import CPU
from engine.rules.spec import Spec
from engine.tensor import Tensor


class Bound:
    """A derivative rule, and where the code of a backward step has its arguments: expressions, see `places`.

    `recorded`: the form of it that runs on Tensors; itself, unless it is another.
    """

    __slots__ = ("places", "recorded", "rule")

    def __init__(self, rule: Callable[..., Any], places: tuple[str, ...], recorded: "Bound | None" = None) -> None:
        self.rule = rule
        self.places = places
        self.recorded = self if recorded is None else recorded


def implements(composition: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a rule on raw arrays: `composition` states the same in operators, and is what runs on Tensors. Its
    parameters are among those of the implementation.
    """

    def mark(rule: Callable[..., Any]) -> Callable[..., Any]:
        rule.composition = composition  # type: ignore[attr-defined]
        return rule

    return mark


def composition_of(rule: Callable[..., Any]) -> Callable[..., Any]:
    """What `rule` implements; itself, if it serves Tensors as well."""
    composition: Callable[..., Any] = getattr(rule, "composition", rule)
    return composition


def places(
    inputs: Sequence[str], before_list: int | None, attributes: Sequence[str], residuals: Sequence[str], outputs: int
) -> dict[str, str]:
    """What a derivative rule may ask for by name, and the expression for it in the code of a backward step
    (`engine.calls.recording.write_step`, which sets what stands at the left of each). Nothing else knows.
    """
    found = {name: name for name in ("g", "nd", "needs", "out", "into", "attributes")}
    found |= {name: f"v{i}" for i, name in enumerate(inputs)}
    found |= {name: f"attributes[{i}]" for i, name in enumerate(attributes)}
    found |= {f"{name}_spec": f"specs[{i}{':' if i == before_list else ''}]" for i, name in enumerate(inputs)}
    found |= {name: f"residuals[{i}]" for i, name in enumerate(residuals)}
    found |= {f"out{i}": f"o{i}" for i in range(outputs) if outputs > 1}
    return found


CONSTANT = ("nd", "needs", "specs", "attributes")
"""How the expressions begin of what is the same at every call that has the same plan."""


def _parameters(rule: Callable[..., Any]) -> list[str]:
    """Names, in order. Of plain functions, which nearly all rules are, without `inspect`: at import that took 20 ms."""
    if type(rule) is FunctionType and not rule.__dict__.keys() & {"__signature__", "__wrapped__"}:
        code = rule.__code__
        return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return list(inspect.signature(rule).parameters)


def bind(operator: str, rule: Callable[..., Any], places: dict[str, str]) -> Bound:
    """A rule of an operator, whose parameters must be among the names in `places`."""
    asked = _parameters(rule)
    unknown = [name for name in asked if name not in places]
    assert asked, f"{operator}: a derivative rule without parameters"
    assert not unknown, f"{operator}: the derivative rule asks for {unknown}, known are {list(places)}"
    found = tuple(places[name] for name in asked)
    composition = composition_of(rule)
    if composition is rule:
        return Bound(rule, found)
    recorded = bind(operator, composition, places)
    assert set(recorded.places) <= {*found, "nd"}, f"{operator}: {composition} asks for more than what it is a form of"
    return Bound(rule, found, recorded)


def conjugated(bound: Bound) -> Bound:
    """The rule between conjugations of the gradients it is given and of those it returns."""

    def rule(g: Any, nd: Any, *arguments: Any) -> Any:
        g = _conjugate_each(g, nd)
        found = bound.rule(
            *(g if place == "g" else value for place, value in zip(bound.places, arguments, strict=True))
        )
        return _conjugate_each(found, nd)

    return Bound(rule, ("g", "nd", *bound.places), _around(conjugated, bound))


def _around(change: Callable[[Bound], Bound], bound: Bound) -> Bound | None:
    """The form for Tensors of a changed rule."""
    return None if bound.recorded is bound else change(bound.recorded)


def _conjugate_each(value: Any, nd: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_conjugate_each(each, nd) for each in value)
    return None if value is None else conjugate(value, nd)


def in_single_precision(bound: Bound) -> Bound:
    """The rule on float32 arrays; the walker rounds what it returns to the dtype of the input."""

    def rule(*arguments: Any) -> Any:
        return bound.rule(*map(_single, arguments))

    return Bound(rule, bound.places, bound.recorded)


def as_it_is(bound: Bound) -> Bound:
    return bound


def with_host_scalars(bound: Bound, place: int | None) -> Bound:
    """The rule on copies of host arrays on the device of the gradient; what it returns for the input at `place` (None:
    for each of them) goes to where that is.
    """

    def of_arrays(nd: Any, specs: Any, *arguments: Any) -> Any:
        return given_back(bound.rule(*(_on_device(each, nd.xp) for each in arguments)), specs)

    def of_tensors(specs: Any, *arguments: Any) -> Any:
        return given_back(bound.recorded.rule(*arguments), specs)

    def given_back(found: Any, specs: Any) -> Any:
        if place is not None:
            return _where_it_belongs(found, specs[place])
        return tuple(_where_it_belongs(each, spec) for each, spec in zip(found, specs, strict=False))

    recorded = Bound(of_tensors, ("specs", *bound.recorded.places))
    return Bound(of_arrays, ("nd", "specs", *bound.places), recorded)


def _on_device(value: Any, xp: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_on_device(each, xp) for each in value)
    return xp.asarray(value) if isinstance(value, np.ndarray) else value


def _where_it_belongs(gradient: Any, spec: Spec | None) -> Any:
    """The gradient of a 0-dim host tensor in host memory, one number; others as they are."""
    if gradient is None or spec is None or spec.device is not CPU or spec.ndim:
        return gradient
    return gradient.sum().to(CPU) if isinstance(gradient, Tensor) else gradient.sum().get()


def _single(value: Any) -> Any:
    half = getattr(getattr(value, "dtype", None), "itemsize", 0) == 2 and value.dtype.kind in "fV"
    return value.astype(np.float32) if half else value
