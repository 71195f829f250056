"""`autocast`, the switches it sets, and what custom autograd functions do inside it."""

import functools
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, Self

from engine.amp.listening import listen, stop_listening
from engine.amp.modes import DEVICE_TYPES, eligible, modes
from engine.memory import backend
from engine.rules.dtypes import bfloat16, dtype, float16
from engine.tensor import Tensor


def is_autocast_available(device_type: str) -> bool:
    """Whether there is autocast for a device type: "cpu" and "cuda"."""
    return device_type in DEVICE_TYPES


def _known(device_type: str) -> str:
    if device_type not in DEVICE_TYPES:
        raise RuntimeError(
            f"unsupported device type for autocast: {device_type!r}; known are {', '.join(DEVICE_TYPES)}"
        )
    return device_type


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether this thread is in an autocast block of the device type that is switched on."""
    return modes.enabled[_known(device_type)]


def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:
    """Switches autocast on or off on this thread: `set_autocast_enabled(device_type, enabled)`; the device type may be
    left out for "cuda". `autocast` is the better way.
    """
    if enabled is None:
        device_type, enabled = "cuda", device_type
    modes.enabled[_known(device_type)] = bool(enabled)
    active = any(modes.enabled.values())
    if active != modes.active:
        modes.active = active
        listen() if active else stop_listening()


def get_autocast_dtype(device_type: str) -> dtype:
    """The dtype that products are computed in: bfloat16 on the CPU and float16 on GPUs unless it was set."""
    return modes.dtypes[_known(device_type)]


def set_autocast_dtype(device_type: str, dtype: dtype) -> None:
    """Sets what `get_autocast_dtype` returns, on this thread."""
    modes.dtypes[_known(device_type)] = dtype


def is_autocast_cache_enabled() -> bool:
    """Whether casts of weights are kept within a block."""
    return modes.cache_enabled


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Sets it, on this thread."""
    modes.cache_enabled = bool(enabled)


def clear_autocast_cache() -> None:
    """Forgets the casts of weights."""
    modes.casts.clear()


def autocast_increment_nesting() -> int:
    """One more block is open on this thread; returns how many."""
    modes.nesting += 1
    return modes.nesting


def autocast_decrement_nesting() -> int:
    """One block less is open; returns how many."""
    modes.nesting -= 1
    return modes.nesting


# The older spellings, one a device.
get_autocast_cpu_dtype = functools.partial(get_autocast_dtype, "cpu")
get_autocast_gpu_dtype = functools.partial(get_autocast_dtype, "cuda")
set_autocast_cpu_dtype = functools.partial(set_autocast_dtype, "cpu")
set_autocast_gpu_dtype = functools.partial(set_autocast_dtype, "cuda")
is_autocast_cpu_enabled = functools.partial(is_autocast_enabled, "cpu")
set_autocast_cpu_enabled = functools.partial(set_autocast_enabled, "cpu")


class autocast(ContextDecorator):
    """Inside the block, or the function it decorates, operators choose their dtype.

    Products (matmul, linear, convolutions, attention, recurrent layers) run in the low precision dtype; losses and what
    else needs range (on GPUs also softmax, norms, sums, exp, log, pow) in float32; some in the widest dtype of their
    inputs; all others in the dtype they are given (engine/amp/policies.py has the lists). Parameters stay in float32,
    and so do their gradients: casts are recorded. float64 tensors, in-place calls and `out=` are left alone. Leave the
    block before `backward()`.

    Args: device_type: "cpu" or "cuda"; dtype: float16 or bfloat16 (default: `get_autocast_dtype`); enabled: False for a
    part in full precision inside an outer block; cache_enabled: whether a weight is cast once a block.
    Raises: ValueError and RuntimeError for another device type. On "cuda" without a GPU, and for another dtype on
    "cpu", it warns and switches itself off.

    with engine.autocast("cpu", dtype=engine.bfloat16):
        loss = loss_function(model(x), target)
    loss.backward()
    """

    def __init__(
        self,
        device_type: str,
        dtype: dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._enabled = bool(enabled) and self._possible()
        self._before: list[tuple[bool, Any, bool]] = []

    def _possible(self) -> bool:
        if self.device == "cpu":
            if self.fast_dtype in (bfloat16, float16):
                return True
            warnings.warn(
                "In CPU autocast, but the target dtype is not supported. Disabling autocast.\nCPU Autocast only "
                f"supports dtype of engine.bfloat16, engine.float16 currently, got {self.fast_dtype}.",
                stacklevel=3,
            )
            return False
        try:
            backend.require_cupy()
        except RuntimeError as cause:
            warnings.warn(
                f"User provided device_type of 'cuda', but CUDA is not available. Disabling autocast: {cause}",
                stacklevel=3,
            )
            return False
        if self.fast_dtype is bfloat16:
            from engine.cuda.devices import is_bf16_supported

            if not is_bf16_supported():
                raise RuntimeError("Current CUDA Device does not support bfloat16. Please switch dtype to float16.")
        return True

    def __enter__(self) -> Self:
        self._before.append((modes.enabled[self.device], modes.dtypes[self.device], modes.cache_enabled))
        modes.dtypes[self.device] = self.fast_dtype
        modes.cache_enabled = self._cache_enabled
        autocast_increment_nesting()
        set_autocast_enabled(self.device, self._enabled)
        return self

    def __exit__(self, *_: object) -> None:
        enabled, modes.dtypes[self.device], modes.cache_enabled = self._before.pop()
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        set_autocast_enabled(self.device, enabled)


_Switches = tuple[dict[str, bool], dict[str, dtype], bool]


def _switches() -> _Switches:
    return dict(modes.enabled), dict(modes.dtypes), modes.cache_enabled


class as_now:
    """A context manager with the switches as they are when it is made: what `checkpoint` runs a function again in."""

    def __init__(self) -> None:
        self._then = _switches()
        self._before: list[_Switches] = []

    def __enter__(self) -> None:
        self._before.append(_switches())
        autocast_increment_nesting()
        self._set(*self._then)

    def __exit__(self, *_: object) -> None:
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        self._set(*self._before.pop())

    def _set(self, enabled: dict[str, bool], dtypes: dict[str, dtype], cache_enabled: bool) -> None:
        modes.dtypes.update(dtypes)
        modes.cache_enabled = cache_enabled
        for device_type, flag in enabled.items():
            set_autocast_enabled(device_type, flag)


# --- custom autograd functions ----------------------------------------------------------------------------------------


def _cast(value: Any, device_type: str, kind: dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(kind) if eligible(value, device_type) else value
    if isinstance(value, dict):
        return {_cast(key, device_type, kind): _cast(item, device_type, kind) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_cast(item, device_type, kind) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: dtype | None = None
) -> Callable[..., Any]:
    """Decorates `forward` of an `autograd.Function`, so that backward runs in the autocast mode of forward.

    cast_inputs: floating point tensors on the device (but float64) are cast to this dtype, and forward runs with
    autocast switched off, where it was on. Outside autocast it does nothing.
    Raises: ValueError for a device type that is no string.
    """
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    forward = fwd

    @functools.wraps(forward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        context._dtype = get_autocast_dtype(device_type)
        context._fwd_used_autocast = is_autocast_enabled(device_type)
        if cast_inputs is None or not context._fwd_used_autocast:
            return forward(*args, **kwargs)
        context._fwd_used_autocast = False
        with autocast(device_type, enabled=False):
            return forward(
                *(_cast(value, device_type, cast_inputs) for value in args),
                **{name: _cast(value, device_type, cast_inputs) for name, value in kwargs.items()},
            )

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorates `backward` of an `autograd.Function` whose `forward` has `custom_fwd`: the same autocast mode again.

    Raises: ValueError for a device type that is no string.
    """
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    backward = bwd

    @functools.wraps(backward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        with autocast(device_type, enabled=context._fwd_used_autocast, dtype=context._dtype):
            return backward(*args, **kwargs)

    return decorated
