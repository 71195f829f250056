"""`engine.amp`: `autocast` and `GradScaler` as far as training scripts need them in full precision.

Mixed precision is not here yet: switched off, both pass everything through; switched on, they raise. On "cuda" without
a GPU they switch themselves off with a warning, as in PyTorch.
"""

import warnings
from contextlib import ContextDecorator
from typing import Any

from engine import backend
from engine.device import device as _device


def _refuse_enabled(call: str, where: str, advice: str) -> None:
    if _device(where).type == "cuda":
        try:
            backend.require_cupy()
        except RuntimeError as cause:
            warnings.warn(f"{call} is disabled: {cause}", UserWarning, stacklevel=3)
            return
    raise NotImplementedError(f"{call}: mixed precision is not available on {where!r}; {advice}, or pass enabled=False")


class autocast(ContextDecorator):
    """Switched off: nothing.

    Raises: NotImplementedError when switched on where the device exists.
    """

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if enabled:
            _refuse_enabled("autocast", device_type, "train in float32 or convert the model to bfloat16")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class GradScaler:
    """Switched off: losses and steps as they are.

    Raises: NotImplementedError when switched on where the device exists.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled:
            _refuse_enabled("GradScaler", device, "train in float32 or bfloat16, which need no scaling")

    def is_enabled(self) -> bool:
        """False."""
        return False

    def scale(self, outputs: Any) -> Any:
        """The outputs as they are."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: no gradient was scaled."""

    def step(self, optimizer: Any, *args: Any, **keywords: Any) -> Any:
        """The optimizer's own step."""
        return optimizer.step(*args, **keywords)

    def update(self, new_scale: float | None = None) -> None:
        """Nothing: there is no scale."""

    def get_scale(self) -> float:
        """1."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Empty, as PyTorch's is when switched off."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
