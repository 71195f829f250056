"""Activation checkpointing: what forward would keep is dropped and computed again when backward asks for it.

`checkpoint(function, *args, use_reentrant=False)` runs `function` under hooks on saved tensors: packing keeps a place
holder only, and the first unpacking in a backward runs `function` again, up to the last tensor that is needed. With
`use_reentrant=True` it is one node whose backward runs `function` again with recording on and calls backward in it;
then `grad()` and `inputs=` cannot be used.

Checkpoints nest: the inputs of an inner one are saved tensors of the outer one, so they are dropped, too.
Source of the behaviour: PyTorch's torch/utils/checkpoint.py.
"""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from engine.amp.autocasting import as_now
from engine.autograd import api
from engine.autograd.function import Function
from engine.autograd.graph import saved_tensors_hooks
from engine.autograd.modes import enable_grad, is_grad_enabled, no_grad, state
from engine.autograd.node import Node
from engine.autograd.saved import SavedTensor, save
from engine.autograd.task import is_checkpoint_valid
from engine.random import States, all_states
from engine.tensor import Tensor
from engine.utils.selective import (
    CheckpointPolicy as CheckpointPolicy,
)
from engine.utils.selective import (
    SelectiveCheckpointContext as SelectiveCheckpointContext,
)
from engine.utils.selective import (
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
)

ContextFn = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


class CheckpointError(RuntimeError):
    """The function did something else when it ran again."""


def noop_context_fn() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """No context around forward, none around the second run."""
    return contextlib.nullcontext(), contextlib.nullcontext()


_early_stop: bool | None = None  # None: as each call of checkpoint says


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Context manager: whether checkpoints made inside stop running again as soon as every saved tensor is there
    (default: yes).
    """
    global _early_stop
    before, _early_stop = _early_stop, enable
    try:
        yield
    finally:
        _early_stop = before


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: ContextFn = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)`, whose intermediate values are computed again in backward.

    Args: context_fn: gives two context managers, for the run now and the run in backward. determinism_check: "default"
    compares shapes, dtypes and
        devices of what is computed again, "none" does not. preserve_rng_state: the second run draws the same random
        numbers.
    Raises: CheckpointError in backward when the second run saves other tensors; ValueError for options the variant does
    not have;
        NotImplementedError for `debug`.
    """
    if use_reentrant is None:
        warnings.warn(
            "checkpoint: the use_reentrant parameter should be passed explicitly. use_reentrant=False is recommended, "
            "but "
            "if you need to preserve the current default behavior, you can pass use_reentrant=True.",
            stacklevel=2,
        )
        use_reentrant = True
    if debug:
        raise NotImplementedError("checkpoint: debug=True (a trace of both runs in the error) is not implemented")
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ['default', 'none'] but got {determinism_check}")
    forward_context, recompute_context = context_fn()
    if not is_grad_enabled():
        return function(*args, **kwargs)
    stops = early_stop if _early_stop is None else _early_stop
    frame = _Frame(function, args, kwargs, recompute_context, preserve_rng_state, stops, determinism_check == "default")
    with saved_tensors_hooks(frame.pack, frame.unpack), forward_context:
        return function(*args, **kwargs)


# --- without re-entrant backward --------------------------------------------------------------------------------------


class _Place:
    """What the graph keeps instead of a tensor: the number of the tensor among those the function saved."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


class _Enough(Exception):
    """Ends the second run early."""


class _Caller(Node):
    """Stands for the checkpoint where an error message names who saved a tensor."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((), (), ())

    def name(self) -> str:
        return "checkpoint"


_caller = _Caller()


class _Frame:
    """One call of `checkpoint`: how to run the function again, and which of its saved tensors are still wanted."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recompute_context: AbstractContextManager[Any],
        preserve_rng_state: bool,
        early_stop: bool,
        check: bool,
    ) -> None:
        self.function = function
        # Inputs are saved tensors like any other, for an outer checkpoint or the user's hooks.
        self.args = [save(arg) if isinstance(arg, Tensor) else arg for arg in args]
        self.kwargs = kwargs
        self.recompute_context = recompute_context
        self.rng_state = all_states() if preserve_rng_state else None
        self.autocast = as_now()
        self.early_stop = early_stop
        self.check = check
        self.places: list[weakref.ref[_Place]] = []
        self.looks: list[tuple[Any, ...]] = []

    def pack(self, tensor: Tensor) -> _Place:
        place = _Place(len(self.places))
        self.places.append(weakref.ref(place))
        self.looks.append(_look(tensor))
        return place

    def unpack(self, place: _Place) -> Tensor:
        found = self._found(again=False)
        if place.number not in found:
            found = self._found(again=True)
        if place.number not in found:
            raise CheckpointError(
                "checkpoint: A different number of tensors was saved during the original forward and recomputation.\n"
                f"Number of tensors saved during forward: {len(self.places)}\n"
                f"Number of tensors saved during recomputation: {len(found)}."
            )
        return found.pop(place.number)

    def _found(self, again: bool) -> dict[int, Tensor]:
        """The tensors computed again for the backward that is running (each is given away once), or for this one
        question outside of it.
        """
        if not state.tasks:
            return self._run_again()
        scratch = state.tasks[-1].scratch
        if again or self not in scratch:
            scratch[self] = self._run_again()
        return scratch[self]

    def _run_again(self) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        numbers = count()
        expected = len(self.places)

        def pack(tensor: Tensor) -> Tensor:
            number = next(numbers)
            if number < expected:
                if self.check and _look(tensor) != self.looks[number]:
                    raise CheckpointError(
                        "checkpoint: Recomputed values for the following tensors have different metadata than during "
                        f"the forward pass.\ntensor at position {number}:\nsaved metadata: "
                        f"{_describe(self.looks[number])}\n"
                        f"recomputed metadata: {_describe(_look(tensor))}"
                    )
                if self.places[number]() is not None:
                    found[number] = tensor.detach()
                if self.early_stop and number == expected - 1:
                    raise _Enough
            return tensor

        args = [entry.tensor(_caller) if isinstance(entry, SavedTensor) else entry for entry in self.args]
        with (
            enable_grad(),
            _random_state(self.rng_state),
            self.autocast,
            self.recompute_context,
            contextlib.suppress(_Enough),
            saved_tensors_hooks(pack, _same),
        ):
            self.function(*args, **self.kwargs)
        return found


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return (tuple(tensor.shape), tensor.dtype, tensor.device)


def _describe(look: tuple[Any, ...]) -> str:
    shape, dtype, device = look
    return f"shape {list(shape)}, dtype {dtype}, device {device}"


@contextlib.contextmanager
def _random_state(wanted: States | None) -> Iterator[None]:
    """The default generators in the given states inside, and as they were afterwards."""
    if wanted is None:
        yield
        return
    before = all_states()
    wanted.restore()
    try:
        yield
    finally:
        before.restore()


# --- with re-entrant backward -----------------------------------------------------------------------------------------


class CheckpointFunction(Function):
    """The whole function as one node."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=4)
        ctx.run_function = run_function
        ctx.rng_state = all_states() if preserve_rng_state else None
        ctx.autocast = as_now()
        ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
        ctx.places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        ctx.save_for_backward(*[args[place] for place in ctx.places])
        with no_grad():
            return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if not is_checkpoint_valid():
            raise RuntimeError(
                "When use_reentrant=True, checkpoint is incompatible with .grad() or passing an `inputs` parameter to "
                ".backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() "
                "without "
                "passing the `inputs` argument."
            )
        inputs = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        with enable_grad(), _random_state(ctx.rng_state), ctx.autocast:
            outputs = ctx.run_function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        api.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        return (None, None, *[each.grad if isinstance(each, Tensor) else None for each in inputs])


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Any:
    """Runs functions (a Sequential, or a list of modules or functions) one after the other, in `segments` parts, all
    but the last as checkpoints.

    Raises: as `checkpoint`.
    """
    if use_reentrant is None:
        warnings.warn(
            "checkpoint_sequential: the use_reentrant parameter should be passed explicitly. use_reentrant=False is "
            "recommended, but if you need to preserve the current default behavior, you can pass use_reentrant=True.",
            stacklevel=2,
        )
        use_reentrant = True
    steps = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(
            _in_turn(steps[start : start + size]),
            input,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return _in_turn(steps[size * (segments - 1) :])(input)


def _in_turn(steps: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run
