"""What the comparisons with the CPU share: twins of tensors on the device, equality, one test for many cases."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import engine


def twin(tensor: engine.Tensor, device: engine.device) -> engine.Tensor:
    """The same values on the device, in the same strides, gaps included."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = engine.zeros(max(extent, 1) if tensor.numel() else 0, dtype=tensor.dtype, device=device)
    copy = memory.as_strided(tensor.shape, tensor.stride())
    if tensor.numel():
        copy.copy_(tensor.detach().contiguous().to(device))
    return copy.detach().requires_grad_(tensor.requires_grad)


def described(tensor: engine.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def assert_values(
    found: engine.Tensor | None, expected: engine.Tensor | None, what: str, tolerance: float = 1e-8
) -> None:
    """Equal dtypes, shapes and, but for rounding, values; or both None."""
    assert (found is None) == (expected is None), what
    if found is None or expected is None:
        return
    assert found.is_cuda, what
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    values, wanted = (each.float() if each.dtype.name == "bfloat16" else each for each in (found, expected))
    values, wanted = values.detach().cpu().numpy(), wanted.detach().numpy()
    if expected.dtype.is_complex:  # (1 + 1j) / 0 is infinite: that a device calls its parts NaN is no other number
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(values), finite, err_msg=what)
        values, wanted = values[finite], wanted[finite]
    np.testing.assert_allclose(values, wanted, rtol=tolerance, atol=tolerance / 10, err_msg=what)


def assert_same(
    found: engine.Tensor | None, expected: engine.Tensor | None, what: str, tolerance: float = 1e-8
) -> None:
    """`assert_values`, and equal strides."""
    assert_values(found, expected, what, tolerance)
    if found is not None and expected is not None:
        assert described(found) == described(expected), what


def weights(outs: Iterable[engine.Tensor], seed: int) -> list[engine.Tensor]:
    """Random directions, one an output."""
    rng = np.random.default_rng(seed)
    return [engine.from_numpy(np.asarray(rng.standard_normal(tuple(out.shape)))).to(out.dtype) for out in outs]


def flattened(result: Any) -> list[engine.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(result, engine.Tensor):
        return [result]
    return [tensor for part in result for tensor in flattened(part)] if isinstance(result, tuple | list) else []


def all_of(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Runs every case. Raises: ExceptionGroup of what differed, each with the case's name."""
    errors = []
    for name, case in cases:
        try:
            case()
        except Exception as error:  # noqa: BLE001 - all are reported at once
            error.add_note(name)
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} cases differ on the device", errors)


def layout_of(tensor):
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
