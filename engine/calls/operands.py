"""What may stand beside tensors in the inputs of an operator: Python numbers (`Scalar`) and absent optional tensors
(`UNDEFINED`).

Both answer to the few attributes that `engine.calls.dispatch` reads of a tensor, so that no call has to ask what it was
given.
"""

from typing import Any, cast

from engine.rules import promotion
from engine.rules.device import CPU
from engine.rules.dtypes import dtype, get_default_dtype
from engine.rules.spec import Size, Spec


class _Absent:
    """An operand that is no tensor: no history, no version, and it is its own saved form."""

    __slots__ = ("_array", "_spec")
    requires_grad = _requires_grad = False
    _grad_fn = None
    _base = None
    _counter = None

    def __init__(self, array: Any, spec: Spec | None) -> None:
        self._array = array
        self._spec = spec

    def _save(self) -> "_Absent":
        return self

    def array(self, node: object) -> Any:
        """The value itself, where a saved tensor would give its array."""
        return self._array

    tensor = array


_KINDS = (int, float, complex, bool)


class Scalar(_Absent):
    """A Python number as an operand: it takes part in promotion by its type, and its value is no part of a plan."""

    __slots__ = ()

    def __init__(self, value: bool | int | float | complex) -> None:
        kind = type(value)
        if kind not in _KINDS:  # a subclass, as of an IntEnum, is no Python number to NumPy's promotion
            kind = next(known for known in _KINDS if isinstance(value, known))
            value = cast("Any", kind)(value)
        self._array = value
        self._spec = number_spec(kind)


UNDEFINED = _Absent(None, None)  # an optional tensor that was not given

_number_specs: dict[tuple[type, dtype], Spec] = {}


def number_spec(kind: type) -> Spec:
    """The Spec under which a Python number of type `kind` is promoted (it depends on the default dtype)."""
    key = (kind, get_default_dtype())
    spec = _number_specs.get(key)
    if spec is None:
        spec = Spec(Size(), (), promotion.number_dtype(kind), CPU)
        spec.category, spec.number = promotion.NUMBER, kind
        _number_specs[key] = spec
    return spec
