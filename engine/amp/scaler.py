"""`GradScaler`: losses are multiplied by a scale so that float16 gradients do not vanish; steps whose gradients
overflowed are left out, and the scale follows.

The scale, its counter and the verdict of a step are device arrays: with optimizers whose kernels read them
(`_step_supports_amp_scaling`) nothing waits for the GPU; with others `step` waits once, to learn whether to step.

The verdict must be the same on all ranks, or their parameters part. After DistributedDataParallel has averaged them all
ranks hold the same gradients, infinities and NaN included, and so agree. An optimizer that sees other gradients than
its peers (a shard of them, say) has a function `agree_on_found_inf(found_inf)` that sums the verdict over its ranks in
place; `ddp.agree_on_overflow` gives it one.
"""

import enum
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from engine.amp import gradients as kernels
from engine.calls.effects import effect
from engine.memory import backend
from engine.ops.creation.factories import full
from engine.optim.optimizer import Optimizer
from engine.rules.device import device as as_device
from engine.rules.dtypes import float16, float32, int32
from engine.tensor import Tensor


class OptState(enum.Enum):
    """How far an optimizer is since the last `update`."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _fresh() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class GradScaler:
    """Scales losses, unscales gradients, leaves steps out that would write infinities or NaN.

    Args: device: "cuda" or "cpu"; init_scale: the first factor; growth_factor: what it is multiplied by after
    growth_interval steps in a row without overflow; backoff_factor: and after one with; enabled: False passes
    everything through. On "cuda" without a GPU it warns and is switched off.
    Raises: ValueError for factors on the wrong side of 1.

    scaler = engine.amp.GradScaler("cuda")
    with engine.autocast("cuda", dtype=engine.float16):
        loss = loss_function(model(x), target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # only where gradients are looked at, by clip_grad_norm_ for instance
    scaler.step(optimizer)
    scaler.update()
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = as_device(device)
        self._enabled = enabled
        if enabled and self._device.type == "cuda":
            try:
                backend.require_cupy()
            except RuntimeError as cause:
                warnings.warn(f"GradScaler is enabled, but CUDA is not available. Disabling: {cause}", stacklevel=2)
                self._enabled = False
        if not self._enabled:
            return
        if growth_factor <= 1.0:
            raise ValueError(f"The growth factor must be > 1.0, got {growth_factor}")
        if backoff_factor >= 1.0:
            raise ValueError(f"The backoff factor must be < 1.0, got {backoff_factor}")
        self._init_scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._scale: Tensor | None = None  # made at the first `scale`
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_fresh)
        self._told: WeakKeyDictionary[Any, tuple[Any, bool]] = WeakKeyDictionary()

    # --- the scale ----------------------------------------------------------------------------------------------------

    def _started(self, where: as_device) -> Tensor:
        if self._scale is None:
            self._scale = full((), self._init_scale, dtype=float32, device=where)
            self._growth_tracker = full((), self._init_growth_tracker, dtype=int32, device=where)
        return self._scale

    def _checked(self, call: str) -> tuple[Tensor, Tensor]:
        if self._scale is None or self._growth_tracker is None:
            raise AssertionError(
                f"Attempted {call} but _scale is None.  This may indicate your script did not use scaler.scale(loss or "
                "outputs) earlier in the iteration."
            )
        return self._scale, self._growth_tracker

    def scale(self, outputs: Any) -> Any:
        """A tensor, or nested iterables of tensors, multiplied by the scale.

        Raises: ValueError for anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._started(outputs.device).to(outputs.device)
        if isinstance(outputs, Iterable):
            scaled = [self.scale(each) for each in outputs]
            if isinstance(outputs, list | tuple):
                return type(outputs)(*scaled) if hasattr(outputs, "_fields") else type(outputs)(scaled)
            return iter(scaled)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def get_scale(self) -> float:
        """The scale, 1 when switched off. On a GPU this waits for it."""
        if not self._enabled:
            return 1.0
        return float(self._init_scale if self._scale is None else self._scale.item())

    # --- one step -----------------------------------------------------------------------------------------------------

    @effect
    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, in place, and notes whether all are finite.

        Raises: RuntimeError when it was called already since `update`, or after `step`; ValueError for float16
        gradients.
        """
        if not self._enabled:
            return
        scale, _ = self._checked("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        state["found_inf_per_device"] = self._look(optimizer, scale, unscale=True)
        state["stage"] = OptState.UNSCALED

    def _look(self, optimizer: Any, scale: Tensor, unscale: bool) -> dict[as_device, Tensor]:
        """The verdict a device: 1 where some gradient is not finite, else 0. With `unscale` divides by the scale."""
        gradients: dict[as_device, list[Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if unscale and gradient.dtype is float16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                gradients.setdefault(gradient.device, []).append(gradient)
        agree: Callable[[Tensor], None] | None = getattr(optimizer, "agree_on_found_inf", None)
        if agree is not None and not gradients:
            gradients[scale.device] = []  # the peers wait for this rank's word
        found = {}
        for where, each in gradients.items():
            found[where] = full((), 0.0, dtype=float32, device=where)
            kernels.check(each, scale.to(where)._array if unscale else None, found[where]._array)
            for one in each if unscale else ():
                one._bump_version("unscale_")
            if agree is not None:
                agree(found[where])
        return found

    def _check_inf_per_device(self, optimizer: Any) -> dict[as_device, Tensor]:
        scale, _ = self._checked("_check_inf_per_device")
        found = self._look(optimizer, scale, unscale=False)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found

    def _found_inf_per_device(self, optimizer: Any) -> dict[as_device, Tensor]:
        found: dict[as_device, Tensor] = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return found

    @effect
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)` on unscaled gradients, unless one of them is not finite; then None.

        Raises: RuntimeError for a closure, or a second step since `update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        scale, _ = self._checked("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if self._is_told_on_device(optimizer):
            result = self._step_on_device(optimizer, state, scale, args, kwargs)
        else:
            if state["stage"] is OptState.READY:
                self.unscale_(optimizer)
            self._require_checks(state)
            # The one wait of a step, for optimizers that cannot be told on the device.
            overflowed = any(found.item() for found in state["found_inf_per_device"].values())
            result = None if overflowed else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _is_told_on_device(self, optimizer: Any) -> bool:
        """Whether the optimizer's kernels read `grad_scale` and `found_inf`; asked again when its parameters change."""
        told = getattr(optimizer, "_step_supports_amp_scaling", None)
        if told is not None:
            return bool(told)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        key = (len(parameters), parameters[0]._spec.device) if parameters else None
        known = self._told.get(optimizer)
        if known is None or known[0] != key:
            known = self._told[optimizer] = (key, _served_by_kernels(optimizer, parameters))
        return known[1]

    def _step_on_device(self, optimizer: Any, state: dict[str, Any], scale: Tensor, args: Any, kwargs: Any) -> Any:
        """The kernels divide by the scale and leave everything as it is after an overflow."""
        unscaled = state["stage"] is OptState.UNSCALED
        if not unscaled:
            self._check_inf_per_device(optimizer)
        self._require_checks(state)
        given = getattr(optimizer, "grad_scale", None)
        (found, *others) = state["found_inf_per_device"].values()
        for other in others:
            found = found + other.to(found.device)
        if unscaled:
            optimizer.grad_scale = given
        else:
            optimizer.grad_scale = scale.to(found.device) if given is None else scale.to(found.device) * given
        optimizer.found_inf = found
        try:
            return optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    @staticmethod
    def _require_checks(state: dict[str, Any]) -> None:
        if not state["found_inf_per_device"]:
            raise AssertionError("No inf checks were recorded for this optimizer.")

    @effect
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapts the scale to what was found since the last call, or sets it."""
        if not self._enabled:
            return
        scale, tracker = self._checked("update")
        if new_scale is not None:
            if isinstance(new_scale, Tensor):
                if new_scale.numel() != 1 or new_scale.requires_grad:
                    raise ValueError("new_scale should be a float or a 1-element float32 tensor without requires_grad")
                scale.copy_(new_scale)
            else:
                scale.fill_(new_scale)
        else:
            verdicts = [
                found.to(scale.device)
                for state in self._per_optimizer_states.values()
                for found in state["found_inf_per_device"].values()
            ]
            if not verdicts:
                raise AssertionError("No inf checks were recorded prior to update.")
            found = verdicts[0]
            for verdict in verdicts[1:]:
                found = found + verdict
            kernels.update_scale(
                scale._array,
                tracker._array,
                found._array,
                self._growth_factor,
                self._backoff_factor,
                self._growth_interval,
            )
        self._per_optimizer_states.clear()

    # --- settings and state -------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after `growth_interval` good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets it."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets it."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Good steps in a row before the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets it."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return int(self._init_growth_tracker if self._growth_tracker is None else self._growth_tracker.item())

    def state_dict(self) -> dict[str, Any]:
        """scale, growth_factor, backoff_factor, growth_interval and _growth_tracker; empty when switched off."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave. Raises: RuntimeError for the empty one of a scaler that was switched off."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._init_scale = state_dict["scale"]
        if self._scale is not None:
            self._scale.fill_(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        if self._growth_tracker is not None:
            self._growth_tracker.fill_(state_dict["_growth_tracker"])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._enabled:
            if self._per_optimizer_states:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                    "scaler.update()."
                )
            state["_init_scale"], state["_init_growth_tracker"] = self.get_scale(), self._get_growth_tracker()
            state["_scale"] = state["_growth_tracker"] = None
            del state["_told"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._enabled:
            self._told = WeakKeyDictionary()


def _served_by_kernels(optimizer: Any, parameters: list[Tensor]) -> bool:
    if not all(parameter.is_cuda for parameter in parameters) or type(optimizer).step is not Optimizer.step:
        return False
    from engine.optim.tables import is_served

    return all(is_served(optimizer, parameter) for parameter in parameters)
