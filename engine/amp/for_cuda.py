"""What `engine.cuda.amp` holds: the older spelling of `engine.amp`, where the device is not said."""

import functools
from collections.abc import Callable
from typing import Any

from engine import amp
from engine.rules.dtypes import dtype as Kind
from engine.rules.dtypes import float16


class autocast(amp.autocast):
    """`engine.amp.autocast("cuda", ...)`."""

    def __init__(self, enabled: bool = True, dtype: Kind = float16, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`engine.amp.GradScaler("cuda", ...)`."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: Kind | None = None) -> Callable[..., Any]:
    """`engine.amp.custom_fwd(device_type="cuda")`."""
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


custom_bwd = functools.partial(amp.custom_bwd, device_type="cuda")
