"""Modules whose forward runs under `checkpoint`: PyTorch's torch.distributed.algorithms._checkpoint.checkpoint_wrapper.

Keys of state dicts are those of the module without it.
"""

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.utils.checkpoint import checkpoint

_PREFIX = "_checkpoint_wrapped_module."


class CheckpointImpl(enum.Enum):
    """Which variant of `checkpoint`."""

    REENTRANT = enum.auto()
    NO_REENTRANT = enum.auto()


class CheckpointWrapper(Module):
    """Computes what its module does, again in backward. Attributes and items that it has not are the module's."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., Any] | None = None,
        **checkpoint_fn_kwargs: Any,
    ) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self.checkpoint_impl = checkpoint_impl
        if checkpoint_fn is None:
            checkpoint_fn, use_reentrant = checkpoint, checkpoint_impl is CheckpointImpl.REENTRANT
            checkpoint_fn_kwargs = {"use_reentrant": use_reentrant} | checkpoint_fn_kwargs
        self.checkpoint_fn = functools.partial(checkpoint_fn, **checkpoint_fn_kwargs)
        self.register_state_dict_post_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        module, names = self._checkpoint_wrapped_module, tuple(kwargs)

        def run(*given: Any) -> Any:  # the reentrant variant takes no keywords
            place = len(given) - len(names)
            return module(*given[:place], **dict(zip(names, given[place:], strict=True)))

        return self.checkpoint_fn(run, *args, *kwargs.values())

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
        """By the module's own names."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(_PREFIX, ""), parameter

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(_PREFIX[:-1]), name)

    def __getitem__(self, key: Any) -> Any:
        module: Any = self._checkpoint_wrapped_module
        return module[key]


def _renamed(state: dict[str, Any], before: str, after: str) -> None:
    for key in [each for each in state if each.startswith(before)]:
        state[after + key.removeprefix(before)] = state.pop(key)


def _without_prefix(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _renamed(state, prefix + _PREFIX, prefix)


def _with_prefix(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _renamed(state, prefix, prefix + _PREFIX)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., Any] | None = None,
    **checkpoint_fn_kwargs: Any,
) -> CheckpointWrapper:
    """The module under `checkpoint`, or under a function of one's own that takes the same arguments."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def _every(module: Module) -> bool:
    return True


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = _every,
) -> None:
    """Puts a wrapper, in place, around each module below `model` that `check_fn` says yes to."""
    for name, child in list(model.named_children()):
        apply_activation_checkpointing(child, checkpoint_wrapper_fn, check_fn)
        if check_fn(child):
            setattr(model, name, checkpoint_wrapper_fn(child))
