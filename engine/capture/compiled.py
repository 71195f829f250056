"""`engine.compile`: a training step that is recorded once it repeats itself, and from then on replayed."""

import threading
import types
import warnings
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from engine.amp.modes import modes, own_casts
from engine.autograd.modes import set_multithreading_enabled, state
from engine.calls.arguments import alias_of, exchanged, signature, tensors_in, with_tensors
from engine.calls.listening import listening
from engine.capture.device import DeviceProgram, NotCapturedError
from engine.capture.intercepts import listener
from engine.capture.program import Program, Recording, check_leaks, disagreement, program, without_history
from engine.capture.recorder import Recorder
from engine.errors.callers import stack_level
from engine.nn.module import Module
from engine.reports.trace import trace
from engine.tensor import Tensor

RECORDINGS = 8  # of one step at most, for different shapes, modes and the like
_recording = threading.Lock()  # one at a time in a process
_recorder: Recorder | None = None
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CaptureWarning(UserWarning):
    """A step that `engine.compile` was given is not, or no longer, replayed."""


class _Entry:
    """What is known of calls with one signature."""

    def __init__(self) -> None:
        self.programs: list[Program | DeviceProgram] = []
        self.recorded_once: list[Recording] = []


class CompiledStep:
    """What `compile` makes of a function; call it like the function."""

    def __init__(self, step: Callable[..., Any], fullgraph: bool) -> None:
        self._step = step
        self._fullgraph = fullgraph
        self._running = threading.Lock()
        self._entries: dict[Any, _Entry] = {}
        self._called = False
        self._recordings = 0
        self._given_up = False
        self._changing: set[int] = set()  # optimizers (by id) whose options change from call to call
        update_wrapper(self, step)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._given_up or (_recorder is not None and _recorder.thread == threading.get_ident()):
            return self._step(*args, **kwargs)
        if not self._running.acquire(blocking=False):
            raise RuntimeError(
                f"{self._title()}: a captured step cannot be called while it runs, from another thread or from itself; "
                "give each thread a compiled step of its own"
            )
        try:
            tensors: list[Tensor] = []
            precision = modes.signature() if modes.active else None
            named = signature(kwargs, tensors) if kwargs else None
            key = (signature(args, tensors), named, state.grad_enabled, precision)
            entry = self._entries.get(key)
            if entry is not None and entry.programs and not trace.is_active():
                for known in entry.programs:
                    if known.holds() and _usual_modes():
                        try:
                            return known.replay(*tensors)
                        except NotCapturedError as error:
                            self._give_up(f"a CUDA graph cannot be made of it: {error.__cause__}")
                            return self._step(*args, **kwargs)
            return self._unprepared(key, tensors, args, kwargs)
        finally:
            self._running.release()

    # --- when there is nothing to replay ------------------------------------------------------------------------------

    def _unprepared(self, key: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first_call, self._called = not self._called, True
        if first_call:  # optimizers make their state, kernels are compiled
            return self._step(*args, **kwargs)
        if trace.is_active() or not _usual_modes():
            reason = "inference, anomaly or saved-tensor modes are on, and inside a backward"
            self._warn(f"runs eagerly while {'engine.trace is active' if trace.is_active() else reason}")
            return self._step(*args, **kwargs)
        entry = self._entries.setdefault(key, _Entry())
        first = next((recording for recording in entry.recorded_once if recording.holds()), None)
        if first is None:
            others = [known.guard.broken() for known in entry.programs]
            others += [recording.guard.broken() for recording in entry.recorded_once]
            if self._recordings >= RECORDINGS:
                self._give_up(
                    f"it was recorded {RECORDINGS} times already, the last time because "
                    f"{others[-1] if others else 'arguments had other shapes'}; pad batches to a few shapes, and pass "
                    "numbers that change as tensors"
                )
                return self._step(*args, **kwargs)
            if entry.programs:
                self._warn(f"is recorded again: {others[len(entry.programs) - 1]}")
                entry.programs = [known for known in entry.programs if not known.expired]
            self._recordings += 1
        if any(tensor.requires_grad for tensor in tensors):
            self._give_up("an argument requires grad, and a gradient has to go to one and the same tensor")
            return self._step(*args, **kwargs)
        if any(tensor.is_meta for tensor in tensors):
            self._give_up("an argument is on device 'meta', where there is nothing to compute")
            return self._step(*args, **kwargs)
        if not _recording.acquire(blocking=False):
            return self._step(*args, **kwargs)  # another thread is recording; next time
        try:
            return self._record(entry, first, tensors, args, kwargs)
        finally:
            _recording.release()

    def _record(
        self,
        entry: _Entry,
        first: Recording | None,
        tensors: list[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        global _recorder
        recorder = Recorder([tensor._version_counter() for tensor in tensors])
        # Aliases: a global that is the same tensor as an argument must not be taken for it.
        aliases = [alias_of(tensor) for tensor in tensors]
        for alias in aliases:
            recorder.new_slot(alias._array)
        waiting = iter(aliases)
        given = with_tensors(args, waiting), with_tensors(kwargs, waiting)
        _recorder = recorder
        try:
            with listening(listener(recorder)), own_casts(), set_multithreading_enabled(False):
                result = self._step(*given[0], **given[1])
        except BaseException:
            recorder.close()
            raise
        finally:
            _recorder = None
        recorder.check_options()
        recorder.check_devices()
        if recorder.reason is None:
            _check_result(recorder, result)
        if recorder.reason is None:
            recording = Recording(recorder, result)
            found = None if first is None else disagreement(first, recording)
            if first is None:
                recording.watch(self._step, given)
                entry.recorded_once.append(recording)
            elif found is not None:
                recorder.refuse(found)
            else:
                entry.recorded_once.remove(first)
                result = without_history(recorder, result, aliases)
                made: Any
                if recorder.gpu is not None:
                    check_leaks(recorder, first, recording, result, aliases)
                    made = DeviceProgram(recorder.gpu, first, self._step, given, self._changing)
                else:
                    made = program(recorder, first, recording, result, aliases)
                entry.programs.append(made)
        recorder.close()
        if recorder.reason is not None:
            self._give_up(recorder.reason)
        return exchanged(result, aliases, tensors)

    # --- telling ------------------------------------------------------------------------------------------------------

    def _title(self) -> str:
        return f"engine.compile({getattr(self._step, '__qualname__', type(self._step).__name__)})"

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self._title()} {message}", CaptureWarning, stacklevel=stack_level())

    def _give_up(self, reason: str) -> None:
        if self._fullgraph:
            raise RuntimeError(f"{self._title()} cannot be captured, and fullgraph=True asks for it: {reason}")
        self._given_up = True
        self._entries.clear()
        warnings.warn(
            f"{self._title()} is not captured, and runs eagerly from now on: {reason}",
            CaptureWarning,
            stacklevel=stack_level(),
        )


def _check_result(recorder: Recorder, result: Any) -> None:
    """A result whose graph nobody has walked means that backward comes later: nothing to capture here."""
    if not recorder.consumed and any(tensor.requires_grad for tensor in tensors_in(result)):
        recorder.refuse(
            "the step returns a tensor that requires grad and calls no backward(); a captured step has its backward "
            "inside"
        )


def _usual_modes() -> bool:
    return not (state.inference or state.anomaly or state.saved_tensor_hooks or state.tasks)


# --- the public call --------------------------------------------------------------------------------------------------


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """A training step that is recorded and then replayed without building a graph; the numbers stay the same.

    The step is a function of tensors that does all of it: zero_grad, forward, backward, optimizer step.

    @engine.compile
    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    The first call runs eagerly, the next two are recorded while they do, and where both did the same, further calls
    with arguments of the same shapes replay it: kernels on raw arrays in straight-line code, and real calls of
    optimizer.step(), zero_grad(), clip_grad_norm_(), LR schedulers and what DistributedDataParallel does. On a GPU they
    launch CUDA graphs (`engine.capture.device`): one for all of it where nothing has to be done by the host in the
    middle; what the step returns and the gradients it leaves are written anew by the next call. Other shapes
    and modes get recordings of their own, 8 at most. A step that cannot be replayed runs eagerly after one
    CaptureWarning that says why and where: it reads a value (`loss.item()`), keeps tensors in lists or attributes, has
    hooks on modules or tensors, uses create_graph. Python that is not about tensors (prints, counters) does not run in
    a replay. Returned tensors have no history. A step is not to be called by two threads at once.

    A Module is returned as it is, with a warning: modules run eagerly, it is the step that is captured.

    Args: as torch.compile. `fullgraph`: raise instead of falling back. `dynamic`, `backend` ("inductor" or "eager")
    and `mode` change nothing but for "eager", which like `disable` switches everything off.
    Raises: TypeError unless `model` can be called; ValueError for other backends, modes or options; RuntimeError with
    `fullgraph` when a step cannot be captured, and when a step is called while it runs.
    """
    if backend not in ("inductor", "eager"):
        raise ValueError(f"compile: expected backend 'inductor' or 'eager', got {backend!r}; leave it out")
    if mode not in _MODES:
        raise ValueError(f"compile: expected one of {', '.join(map(repr, _MODES))} as mode, got {mode!r}")
    if options:
        raise ValueError(f"compile: there are no options of backends here, got {sorted(options)}; leave them out")
    if model is None:
        return lambda function: compile(
            function, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, disable=disable
        )
    if not callable(model):
        raise TypeError(f"compile: expected a function or a Module, got {type(model).__name__}")
    if disable or backend == "eager":
        return model
    if isinstance(model, Module):
        warnings.warn(
            f"engine.compile({type(model).__name__}): a module runs eagerly; to have a training step captured, pass "
            "the function that makes the whole step",
            CaptureWarning,
            stacklevel=2,
        )
        return model
    return CompiledStep(model, fullgraph)
