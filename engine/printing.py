"""`repr` of tensors, as PyTorch prints them: four digits, summarised above 1000 elements."""

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.dtypes import bool_, get_default_dtype, int64

if TYPE_CHECKING:
    from engine.tensor import Tensor

_options: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}


def set_printoptions(**options: Any) -> None:
    """precision, threshold, edgeitems, linewidth, sci_mode.

    Raises: TypeError for an unknown option.
    """
    unknown = set(options) - set(_options) - {"profile"}
    if unknown:
        raise TypeError(f"set_printoptions: unknown option {min(unknown)!r}; known are {', '.join(_options)}")
    _options.update({name: value for name, value in options.items() if value is not None or name == "sci_mode"})


def _formatter(values: np.ndarray) -> Any:
    """How PyTorch writes the elements: integers bare, whole floats as `1.`, others with four digits, very uneven ones
    in scientific notation.
    """
    if values.dtype.kind in "bui":
        texts = [str(value) for value in values.ravel().tolist()]
        width = max(map(len, texts), default=0)
        return lambda value: str(value).rjust(width)
    if values.dtype.kind == "c":
        return lambda value: f"{value.real:.4f}{value.imag:+.4f}j"
    finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    precision = _options["precision"]
    size = np.abs(finite)
    scientific = bool(finite.size) and (size.max() / size.min() > 1000 or size.max() > 1e8 or size.min() < 1e-4)
    whole = bool((finite == np.ceil(finite)).all())
    if whole:
        scientific = (
            bool(finite.size) and (size.max() / size.min() > 1000 or size.max() > 1e8) and bool(size.max() >= 1e8)
        )
    if _options["sci_mode"] is not None:
        scientific = _options["sci_mode"]

    def text(value: float) -> str:
        if not np.isfinite(value):
            return str(float(value))
        if scientific:
            return f"{value:.{precision}e}"
        return f"{value:.0f}." if whole else f"{value:.{precision}f}"

    width = max((len(text(value)) for value in values.ravel().astype(np.float64)), default=0)
    return lambda value: text(value).rjust(width)


def _body(array: np.ndarray, write: Any, indent: int, summarise: bool) -> str:
    if array.ndim == 0:
        return write(array.item())
    edge = _options["edgeitems"]
    count = len(array)
    cut = summarise and count > 2 * edge
    chosen = [*range(edge), None, *range(count - edge, count)] if cut else list(range(count))
    parts = [
        "..."
        if i is None
        else _body(array[i], write, indent + 1, summarise)
        if array.ndim > 1
        else write(array[i].item())
        for i in chosen
    ]
    if array.ndim > 1:
        return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    per_line = max(1, (_options["linewidth"] - indent) // (max(map(len, parts), default=1) + 2))
    lines = [", ".join(parts[i : i + per_line]) for i in range(0, len(parts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def tensor_repr(tensor: "Tensor") -> str:
    """The text of `repr(tensor)`."""
    spec = tensor._spec
    prefix = "tensor("
    suffixes = []
    if spec.device.type != "cpu":
        suffixes.append(f"device='{spec.device}'")
    if spec.device.type == "meta":
        suffixes.append(f"size={tuple(spec.shape)}")
        body = "..."
    else:
        array = tensor.detach().cpu()._array
        values = array.astype(np.float32) if spec.dtype.name == "bfloat16" else array
        summarise = values.size > _options["threshold"]
        shown = values
        if summarise:
            edge = _options["edgeitems"]
            for axis, size in enumerate(values.shape):
                if size > 2 * edge:
                    shown = np.concatenate(
                        [shown.take(range(edge), axis), shown.take(range(size - edge, size), axis)], axis
                    )
        body = _body(values, _formatter(shown), len(prefix), summarise) if values.size else "[]"
        if not values.size and values.ndim != 1:
            suffixes.append(f"size={tuple(spec.shape)}")
    if spec.dtype not in (get_default_dtype(), int64, bool_) or (
        not spec.numel and spec.dtype is not get_default_dtype()
    ):
        suffixes.append(f"dtype={spec.dtype}")
    if tensor.grad_fn is not None:
        suffixes.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    return prefix + ", ".join([body, *suffixes]) + ")"
