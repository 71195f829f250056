"""The functions that derivative rules call, as `nd`: on raw arrays, or on Tensors when the rule is itself recorded."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.calls.dispatch import Operator


OPERATORS: dict[str, "Operator"] = {}  # all there are, by name; `engine.calls.dispatch.define` adds them
COMPOSITES: dict[str, Callable[..., Any]] = {}
"""What derivative rules call besides operators: functions that are made of several, `function(xp, *arrays)`."""


class RawNamespace:
    """The functions of engine.ops on raw arrays: `nd.exp(x)`, `nd.sum(x, dim, keepdim)` with attributes in canonical
    form.
    """

    records = False

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = OPERATORS.get(name)
        function: Callable[..., Any]
        if name in COMPOSITES:
            function = partial(COMPOSITES[name], self.xp)
            setattr(self, name, function)
            return function
        if operator is None:
            raise AttributeError(
                f"derivative rules may use operators only, and {name!r} is none; known are "
                f"{', '.join(sorted(OPERATORS))}"
            )
        kernel = operator.kernels.get("cpu" if self.xp is np else "cuda", operator.forward)
        function = partial(kernel, self.xp)
        if not operator.single and operator.outputs == 1:
            function = partial(_first_of, function)
        setattr(self, name, function)  # found directly from now on
        return function


def _first_of(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)[0]


_raw_namespaces: dict[ModuleType, RawNamespace] = {}


def raw_namespace(xp: ModuleType) -> RawNamespace:
    """The one RawNamespace of an array module."""
    if xp not in _raw_namespaces:
        _raw_namespaces[xp] = RawNamespace(xp)
    return _raw_namespaces[xp]


class TensorNamespace:
    """The same functions on Tensors, for create_graph: the public functions of engine.ops."""

    records = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from engine import ops

        function: Callable[..., Any] = getattr(ops, name)
        setattr(self, name, function)
        return function


tensor_namespace = TensorNamespace()


def conjugate(x: Any, nd: Any) -> Any:
    """The complex conjugate; real numbers as they are."""
    if nd.records:
        return nd.conj_physical(x) if x.is_complex() else x
    return nd.xp.conj(x) if x.dtype.kind == "c" else x
