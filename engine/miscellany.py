"""Small public functions that belong to no family: old switches, questions, and conversions."""

from typing import Any

import numpy as np

from engine.autograd.modes import set_detect_anomaly
from engine.ops.creation.from_data import from_numpy
from engine.ops.random import sampling
from engine.random import Generator
from engine.rules import layout
from engine.rules.dtypes import dtype, set_default_dtype
from engine.tensor import Tensor


def typename(obj: Any) -> str:
    """The name of a class with its module; for tensors that of `Tensor.type()`."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    name = getattr(obj, "__qualname__", kind.__qualname__)
    module = getattr(obj, "__module__", kind.__module__)
    return name if module in (None, "builtins") else f"{module}.{name}"


def set_default_tensor_type(t: Any) -> None:
    """`set_default_dtype` by the name of a tensor class, as in "torch.DoubleTensor", or by the class itself.

    Raises: TypeError for unknown names and GPU classes, which set a device as well: use `set_default_device`.
    """
    from engine.ops.creation.constructors import TYPES

    if not isinstance(t, str):
        set_default_dtype(t.dtype)
        return
    package, _, name = t.rpartition(".")
    if name not in TYPES or package not in ("torch", "engine"):
        raise TypeError(
            f"set_default_tensor_type: expected one of {', '.join(TYPES)}, got {t!r}; for a device use "
            "engine.set_default_device"
        )
    set_default_dtype(TYPES[name].dtype)


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """`autograd.set_detect_anomaly` as a plain function."""
    set_detect_anomaly(mode, check_nan)


def set_flush_denormal(mode: bool) -> bool:
    """False: whatever is asked, denormal numbers are computed with on the CPU, and are zeros in float32 on a GPU."""
    return False


def get_device(input: Tensor) -> int:
    """Index of the GPU of a tensor, -1 for host memory."""
    return input.get_device()


def is_inference(input: Tensor) -> bool:
    """Whether the tensor was made in inference mode."""
    return input.is_inference()


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule that other libraries read; `from_dlpack` takes the tensor itself as well."""
    return tensor.__dlpack__()


def frombuffer(buffer: Any, *, dtype: dtype, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A 1-D tensor on the memory of an object with the buffer protocol, from byte `offset` on.

    Raises: ValueError for a buffer that is too small or empty; a buffer that must not be written is copied.
    """
    array = np.frombuffer(buffer, dtype.numpy, count, offset)
    made = from_numpy(array if array.flags.writeable else array.copy())
    return made.requires_grad_() if requires_grad else made


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws from Poisson distributions with the elements as rates, in their dtype.

    Raises: RuntimeError below 0; on a GPU, where looking would wait for it, such a draw is NaN.
    """
    if input.is_cpu and (input.detach() < 0).any():
        raise RuntimeError(f"poisson: expected rates that are not negative, got {input.min().item()}")
    return sampling.poisson(input, input.shape, generator).to(input.dtype)


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws of how many of `count` trials succeed, each with probability `prob`, in their dtype.

    Raises: ValueError for negative counts or probabilities outside [0, 1]; on a GPU such a draw is NaN.
    """
    shape = layout.broadcast_shapes(tuple(count.shape), tuple(prob.shape))
    return sampling.binomial(count, prob, shape, generator).to(count.dtype)


__all__ = [
    "binomial",
    "frombuffer",
    "get_device",
    "is_inference",
    "poisson",
    "set_anomaly_enabled",
    "set_default_tensor_type",
    "set_flush_denormal",
    "to_dlpack",
    "typename",
]
