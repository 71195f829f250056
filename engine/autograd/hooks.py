"""What runs around a node when somebody asked for it: hooks before and after, notes on errors, the NaN check of anomaly
mode.

Order of one node: tensor hooks in order of registration, retain_grad, node pre-hooks, the node, node post-hooks.
"""

from collections.abc import Callable, Sequence
from typing import Any

from engine.autograd.gradients import as_tensor
from engine.autograd.node import Node, NodeExtras
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


def run_pre_hooks(extras: NodeExtras, node: Node, buffer: list[Any], recorded: bool, node_runs: bool) -> list[Any]:
    """The buffer as the hooks leave it. Tensor hooks always run, the node's own only if the node does."""
    gradients = [as_tensor(value, spec) for value, spec in zip(buffer, node.output_specs, strict=True)]
    for slot, hooks in tuple(extras.tensor_hooks.items()):
        for hook in tuple(hooks.hooks.values()):
            replaced = hook(gradients[slot])
            if replaced is not None:
                gradients[slot] = _checked(hook, replaced, gradients[slot])
        if hooks.retain is not None and gradients[slot] is not None:
            hooks.retain(gradients[slot])
    if node_runs:
        for hook in tuple(extras.pre_hooks.values()):
            replaced = hook(tuple(gradients))
            if replaced is not None:
                gradients = _checked_tuple(hook, replaced, gradients)
    return gradients if recorded else [None if tensor is None else raw(tensor) for tensor in gradients]


def run_post_hooks(
    extras: NodeExtras, node: Node, results: Sequence[Any], kept: Sequence[Any], recorded: bool
) -> Sequence[Any]:
    """The results as the hooks leave them. `kept` are the gradients the node was given (empty where the hook came too
    late).
    """
    outputs = tuple(as_tensor(value, spec) for value, spec in zip(kept, node.output_specs, strict=False))
    inputs: Sequence[Any] = [as_tensor(value, spec) for value, spec in zip(results, node.input_specs, strict=False)]
    for hook in tuple(extras.post_hooks.values()):
        replaced = hook(tuple(inputs), outputs)
        if replaced is not None:
            inputs = _checked_tuple(hook, replaced, inputs)
    return inputs if recorded else [None if tensor is None else raw(tensor) for tensor in inputs]


def raw(tensor: Tensor | SparseTensor) -> Any:
    """The array with the very strides the Tensor shows (they may differ on axes of size 1, which a stolen gradient
    keeps); a sparse tensor is its own.
    """
    if tensor.__class__ is SparseTensor:
        return tensor
    array, spec = tensor._array, tensor._spec
    if array.strides != spec.byte_strides and spec.numel:
        from engine.memory import backend

        return backend.strided_view(array, spec, 0)
    return array


def _label(hook: Callable[..., Any]) -> str:
    return repr(getattr(hook, "__name__", type(hook).__name__))


def _checked_tuple(hook: Callable[..., Any], new: Any, old: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What a node's hook returned: a tuple, one entry a gradient, None where there is none."""
    if not isinstance(new, tuple):
        raise TypeError(f"expected tuple, but hook {_label(hook)} returned {type(new).__name__!r}")
    if len(new) != len(old):
        raise RuntimeError(
            f"hook {_label(hook)} has returned an incorrect number of values (got {len(new)}, but expected {len(old)})"
        )
    return [None if given is None else _checked(hook, given, had) for given, had in zip(new, old, strict=True)]


def _checked(hook: Callable[..., Any], new: Any, old: Any) -> Any:
    """What a hook returned, if it may replace the gradient it was given."""
    if not isinstance(new, Tensor | SparseTensor):
        raise TypeError(f"expected Tensor, but hook {_label(hook)} returned {type(new).__name__!r}")
    if old is None:
        raise RuntimeError(f"can't replace a None gradient with a non-None value (hook {_label(hook)})")
    if new.shape != old.shape:
        raise RuntimeError(
            f"hook {_label(hook)} has changed the size of value (was {list(old.shape)} got {list(new.shape)})"
        )
    if new.dtype is not old.dtype:
        raise RuntimeError(f"hook {_label(hook)} has changed the type of value (was {old.dtype} got {new.dtype})")
    if new.device is not old.device:
        raise RuntimeError(f"hook {_label(hook)} has changed the device of value (was {old.device} got {new.device})")
    return new


def name_the_node(error: BaseException, node: Node | None) -> None:
    """Notes on an exception which node raised it and, in anomaly mode, where forward made that node; type and text
    stay.
    """
    if node is None or getattr(error, "_engine_named", False):
        return
    error.add_note(f"Error detected in {node.name()} during backward.")
    call = None if node.extras is None else node.extras.forward_call
    if call is not None:
        error.add_note(call.report())
    else:
        error.add_note(
            "No forward pass information available. Enable anomaly detection during forward pass for more information: "
            "engine.autograd.set_detect_anomaly(True)."
        )
    error._engine_named = True  # type: ignore[attr-defined]


def check_nan(node: Node, results: Sequence[Any]) -> None:
    """Raises RuntimeError naming the node and the first of its results that contains NaN."""
    for position, value in enumerate(results):
        array = value._array if isinstance(value, Tensor) else value
        if array is not None and array.dtype.kind in "fcV" and bool((array != array).any()):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {position}th output.")
