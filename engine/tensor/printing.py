"""`repr` of tensors, character for character as PyTorch prints them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from engine.rules.dtypes import bool_, complex64, complex128, float64, get_default_dtype, int64
from engine.tensor.tensor import Tensor

_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}
_options: dict[str, Any] = _PROFILES["default"] | {"sci_mode": None}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Digits after the point; the number of elements above which only `edgeitems` at each end of an axis are shown;
    columns of a line; scientific notation always, never, or (None) where numbers differ much. A profile ("default",
    "short", "full") sets the first four.

    Raises: ValueError for an unknown profile.
    """
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"set_printoptions: expected profile {', '.join(_PROFILES)}, got {profile!r}")
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _options.update(_PROFILES.get(profile or "", {}))
    _options.update({name: value for name, value in given.items() if value is not None})
    _options["sci_mode"] = sci_mode


def get_printoptions() -> dict[str, Any]:
    """The options as keywords of `set_printoptions`."""
    return dict(_options)


@contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """Other options inside a `with` block."""
    before = get_printoptions()
    set_printoptions(**options)
    try:
        yield
    finally:
        set_printoptions(**before)


class _Column(NamedTuple):
    """How all elements are written: right-aligned, in one format."""

    width: int
    format: str  # of a finite number; "" for integers and booleans
    point: bool  # whole numbers, which get a bare point

    def write(self, value: Any) -> str:
        text = format(value, self.format) if self.format else str(value)
        if self.point and math.isfinite(value):
            text += "."
        return text.rjust(self.width)


def _column(values: np.ndarray) -> _Column:
    """Fits the elements that are shown. Zeros, infinities and NaN have no say in it."""
    if values.dtype.kind in "bui":
        return _Column(max(map(len, map(str, values.ravel().tolist())), default=1), "", False)
    telling = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    if not telling.size:
        return _Column(1, ".0f", True)
    size = np.abs(telling)
    whole = bool((telling == np.ceil(telling)).all())
    scientific = _options["sci_mode"]
    if scientific is None:
        scientific = size.max() / size.min() > 1000 or size.max() > 1e8 or size.min() < 1e-4
    style = f".{_options['precision']}e" if scientific else ".0f" if whole else f".{_options['precision']}f"
    point = whole and not scientific
    return _Column(max(len(format(value, style)) for value in telling.tolist()) + point, style, point)


def _complex(real: _Column, imaginary: _Column, value: complex) -> str:
    second = imaginary.write(value.imag).lstrip() + "j"
    return real.write(value.real) + ("" if second[0] in "+-" else "+") + second


def _edges(array: np.ndarray) -> np.ndarray:
    """The elements that a summary shows."""
    edge = _options["edgeitems"]
    for axis, size in enumerate(array.shape):
        if size > 2 * edge:
            array = array.take([*range(edge), *range(size - edge, size)], axis)
    return array


class _Body:
    """Writes the elements between brackets, wrapped and, where there are many, summarised."""

    def __init__(self, array: np.ndarray) -> None:
        self.summarise = array.size > _options["threshold"]
        shown = _edges(array) if self.summarise else array
        if array.dtype.kind == "c":
            real, imaginary = _column(shown.real), _column(shown.imag)
            self.write = lambda value: _complex(real, imaginary, value)
            self.width = real.width + imaginary.width + 1
        else:
            column = _column(shown)
            self.write, self.width = column.write, column.width

    def _parts(self, array: np.ndarray, indent: int, gap: str) -> list[str]:
        edge = _options["edgeitems"]
        cut = self.summarise and len(array) > 2 * edge
        chosen = [*range(edge), *range(len(array) - edge, len(array))] if cut else range(len(array))
        parts = [self.text(array[i], indent) for i in chosen]
        return [*parts[:edge], gap, *parts[edge:]] if cut else parts

    def text(self, array: np.ndarray, indent: int) -> str:
        """The text of an array whose first bracket stands in column `indent`."""
        if not array.ndim:
            return self.write(array.item())
        if array.ndim > 1:
            lines, gap = self._parts(array, indent + 1, "..."), "\n" * (array.ndim - 1)
        else:
            items = self._parts(array, indent, " ...")
            per_line = max(1, (_options["linewidth"] - indent) // (self.width + 2))
            lines, gap = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)], "\n"
        return "[" + ("," + gap + " " * (indent + 1)).join(lines) + "]"


def _values(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().cpu()._array
    return array.astype(np.float32) if tensor.dtype.name == "bfloat16" else array


def tensor_repr(tensor: Tensor) -> str:
    """The text of `repr(tensor)`."""
    spec = tensor._spec
    plain = type(tensor) is Tensor or type(tensor).__name__ == "Parameter"
    prefix = "tensor(" if plain else f"{type(tensor).__name__}("
    default = get_default_dtype()
    implied = [default]  # dtypes that a reader of the elements expects
    suffixes = []
    if spec.device.type != "cpu":
        suffixes.append(f"device='{spec.device}'")
    if spec.device.type == "meta":
        suffixes.append(f"size={tuple(spec.shape)}")
        body = "..."
    elif not spec.numel:
        body = "[]"
        if spec.ndim != 1:
            suffixes.append(f"size={tuple(spec.shape)}")
    else:
        implied += [int64, bool_, complex128 if default is float64 else complex64]
        values = _values(tensor)
        body = _Body(values).text(values, len(prefix))
    if spec.dtype not in implied:
        suffixes.append(f"dtype={spec.dtype}")
    if tensor.grad_fn is not None:
        suffixes.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    return prefix + _with_suffixes(body, suffixes, len(prefix)) + ")"


def _with_suffixes(body: str, suffixes: list[str], indent: int) -> str:
    """Each on the last line where it fits, else on one of its own."""
    # PyTorch counts two columns more than the last line has.
    end = len(body) + indent + 2 if "\n" not in body else len(body) - body.rfind("\n") + 1
    for suffix in suffixes:
        if end + len(suffix) + 2 > _options["linewidth"]:
            body += ",\n" + " " * indent + suffix
            end = indent + len(suffix)
        else:
            body += ", " + suffix
            end += len(suffix) + 2
    return body
