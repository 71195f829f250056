"""The functions that derivative rules call, as `nd`: on raw arrays, or on Tensors when the rule is itself recorded."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.calls.operator import Operator


OPERATORS: dict[str, "Operator"] = {}  # all there are, by name; `engine.calls.operator.define` adds them
COMPOSITES: dict[str, Callable[..., Any] | None] = {}
"""What derivative rules call besides kernels of operators, on arrays: `function(xp, *arrays)`; see `composite`."""
_ON_TENSORS: dict[str, Callable[..., Any]] = {}


def composite(
    name: str, on_arrays: Callable[..., Any] | None = None, on_tensors: Callable[..., Any] | None = None
) -> None:
    """Adds `nd.name`: `on_arrays(xp, *arrays)`, by default the function of that name in NumPy and CuPy, and
    `on_tensors(*tensors)`, by default the one in `engine.ops`.
    """
    COMPOSITES[name] = on_arrays
    if on_tensors is not None:
        _ON_TENSORS[name] = on_tensors


def kernel_of(name: str, xp: ModuleType) -> Callable[..., Any]:
    """The kernel of an operator on arrays of this module, with attributes in canonical form."""
    operator = OPERATORS[name]
    return partial(operator.kernels.get("cpu" if xp is np else "cuda", operator.forward), xp)


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
            on_arrays = COMPOSITES[name]
            function = getattr(self.xp, name) if on_arrays is None else partial(on_arrays, self.xp)
            setattr(self, name, function)
            return function
        if operator is None:
            raise AttributeError(
                f"derivative rules may use operators only, and {name!r} is none; known are "
                f"{', '.join(sorted(OPERATORS))}"
            )
        function = kernel_of(name, self.xp)
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
    """The same functions on Tensors, for create_graph: the public functions of `engine.ops`."""

    records = True
    public: ModuleType  # set by `publish`

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = _ON_TENSORS.get(name) or getattr(type(self).public, name)
        setattr(self, name, function)
        return function


tensor_namespace = TensorNamespace()


def publish(functions: ModuleType) -> None:
    """`engine.ops` says that its functions are those on Tensors: what is below it does not import it."""
    TensorNamespace.public = functions


def conjugate(x: Any, nd: Any) -> Any:
    """The complex conjugate; real numbers as they are."""
    return nd.conjugate(x)


composite(
    "conjugate",
    lambda xp, x: xp.conj(x) if x.dtype.kind == "c" else x,
    lambda x: x.conj_physical() if x.is_complex() else x,
)
