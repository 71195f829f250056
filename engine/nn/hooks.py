"""Module hooks: calling a module that has some, and full backward hooks on top of an identity function."""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import engine
from engine.autograd.function import Function
from engine.autograd.node import RemovableHandle
from engine.tensor import Tensor

if TYPE_CHECKING:
    from engine.nn.module import Module

Gradients = tuple[Tensor | None, ...]
Hooks = OrderedDict[int, Callable[..., Any]]

# Hooks on every module, registered by `register_module_forward_hook` and its three siblings.
global_forward_pre_hooks: Hooks = OrderedDict()
global_forward_hooks: Hooks = OrderedDict()
global_backward_pre_hooks: Hooks = OrderedDict()
global_backward_hooks: Hooks = OrderedDict()
# Options of forward hooks by handle id: (with_kwargs, always_call). Hooks without options have no entry.
global_options: dict[int, tuple[bool, bool]] = {}
NO_OPTIONS = (False, False)


def add(
    hooks: Hooks,
    hook: Callable[..., Any],
    *,
    prepend: bool = False,
    options: dict[int, tuple[bool, bool]] | None = None,
    with_kwargs: bool = False,
    always_call: bool = False,
) -> RemovableHandle:
    """Puts `hook` into `hooks` (first if `prepend`) and returns its handle."""
    handle = RemovableHandle(hooks, hook, prepend)
    if options is not None and (with_kwargs or always_call):
        options[handle.id] = (with_kwargs, always_call)
    return handle


def call_with_hooks(module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module(*args, **kwargs)` for a module that may have hooks.

    Order: global forward-pre, forward-pre, forward, global forward, forward; forward hooks with `always_call` also run
    when anything before them raised.
    """
    called: set[int] = set()
    result: Any = None
    try:
        args, kwargs = _run_pre_hooks(module, args, kwargs)
        pre_hooks = [*global_backward_pre_hooks.values(), *module._backward_pre_hooks.values()]
        full_hooks = [*global_backward_hooks.values(), *module._backward_hooks.values()]
        if not (pre_hooks or full_hooks):
            result = module.forward(*args, **kwargs)
            return _run_forward_hooks(module, args, kwargs, result, called)
        backward = BackwardHooks(module, full_hooks, pre_hooks)
        args = backward.watch_inputs(args)
        result = module.forward(*args, **kwargs)
        result = _run_forward_hooks(module, args, kwargs, result, called)
        return backward.watch_outputs(result)
    except Exception:
        _run_always_called(module, args, kwargs, result, called)
        raise


def _run_pre_hooks(
    module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    for options, hooks in (
        (global_options, global_forward_pre_hooks),
        (module._hook_options, module._forward_pre_hooks),
    ):
        for key, hook in list(hooks.items()):
            if options.get(key, NO_OPTIONS)[0]:
                replaced = hook(module, args, kwargs)
                if replaced is not None:
                    if not (isinstance(replaced, tuple) and len(replaced) == 2):
                        raise RuntimeError(
                            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                            f"{replaced}."
                        )
                    args, kwargs = replaced
            else:
                replaced = hook(module, args)
                if replaced is not None:
                    args = replaced if isinstance(replaced, tuple) else (replaced,)
    return args, kwargs


def _run_forward_hooks(
    module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, called: set[int]
) -> Any:
    for options, hooks in ((global_options, global_forward_hooks), (module._hook_options, module._forward_hooks)):
        for key, hook in list(hooks.items()):
            called.add(key)
            with_kwargs = options.get(key, NO_OPTIONS)[0]
            replaced = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            if replaced is not None:
                result = replaced
    return result


def _run_always_called(
    module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, called: set[int]
) -> None:
    """Runs the `always_call` hooks that have not run yet, while an error is on its way; their errors are warnings."""
    for options, hooks in ((global_options, global_forward_hooks), (module._hook_options, module._forward_hooks)):
        for key, hook in list(hooks.items()):
            with_kwargs, always_call = options.get(key, NO_OPTIONS)
            if not always_call or key in called:
                continue
            try:
                hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            except Exception as error:  # noqa: BLE001 - the first error must reach the user, this one is reported beside it
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
                    f"another error was raised in forward: {error}",
                    stacklevel=2,
                )


class _Identity(Function):
    """Passes tensors on unchanged; its node is where the gradients of a whole module can be seen and replaced."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*[tensor for tensor in tensors if not tensor.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        return gradients


class BackwardHooks:
    """Full backward hooks of one call of a module.

    One identity node stands behind the outputs and one before the inputs. The first to run in backward is the output's:
    it hands the gradients to the pre-hooks and keeps them; when the input's has run, both sides are known and the full
    hooks get `(module, grad_input, grad_output)`. Entries of non-tensor arguments are None.
    """

    def __init__(self, module: "Module", hooks: list[Callable[..., Any]], pre_hooks: list[Callable[..., Any]]) -> None:
        self.module = module
        self.hooks = hooks
        self.pre_hooks = pre_hooks
        self.input_places: list[int] | None = None
        self.input_count = 0
        self.output_places: list[int] | None = None
        self.output_count = 0
        self.grad_outputs: Gradients | None = None

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """`args` with every tensor passed through the identity, if one of them requires a gradient."""
        self.input_count = len(args)
        args, self.input_places, node = _through_identity(args)
        if node is not None:
            node.register_hook(self._after_input_node)
        return args

    def watch_outputs(self, result: Any) -> Any:
        """`result` (a tensor or tuple) with every tensor passed through the identity."""
        if not isinstance(result, Tensor | tuple):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=4,
            )
            return result
        outputs = result if isinstance(result, tuple) else (result,)
        self.output_count = len(outputs)
        watched, self.output_places, node = _through_identity(outputs)
        if node is not None:
            node.register_hook(self._after_output_node)
        return watched if isinstance(result, tuple) else watched[0]

    def _after_output_node(self, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
        # The identity's grad_inputs equal its grad_outputs; what is returned here flows into the module's own nodes.
        assert self.output_places is not None
        seen = _spread(self.output_places, grad_outputs, self.output_count)
        for hook in self.pre_hooks:
            seen = _replaced(seen, hook(self.module, seen), "Backward pre hook", "grad_output")
        if self.input_places is None:
            self._run_without_inputs(seen)
        else:
            self.grad_outputs = seen
        return tuple(seen[place] for place in self.output_places)

    def _run_without_inputs(self, grad_outputs: Gradients) -> None:
        nothing = (None,) * self.input_count
        for hook in self.hooks:
            replaced = hook(self.module, nothing, grad_outputs)
            if replaced is not None and not (isinstance(replaced, tuple) and all(each is None for each in replaced)):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or None "
                    "for all gradients."
                )

    def _after_input_node(self, grad_inputs: Gradients, _: Gradients) -> Gradients | None:
        if self.grad_outputs is None:
            return None  # this gradient reached the inputs without passing the outputs (double backward)
        assert self.input_places is not None
        seen = _spread(self.input_places, grad_inputs, self.input_count)
        for hook in self.hooks:
            seen = _replaced(seen, hook(self.module, seen, self.grad_outputs), "Backward hook", "grad_input")
        self.grad_outputs = None
        return tuple(seen[place] for place in self.input_places)


def _replaced(seen: Gradients, found: Any, hook: str, what: str) -> Gradients:
    """What a hook returned in place of the gradients it saw; these if it returned None."""
    if found is None:
        return seen
    found = found if isinstance(found, tuple | list) else (found,)
    if len(found) != len(seen):
        raise RuntimeError(f"{hook} returned an invalid number of {what}, got {len(found)}, but expected {len(seen)}")
    return tuple(found)


def _spread(places: list[int], values: Gradients, size: int) -> Gradients:
    """A tuple of `size` entries with `values` at `places` and None elsewhere."""
    spread: list[Tensor | None] = [None] * size
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return tuple(spread)


def _through_identity(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int] | None, Any]:
    """(values with tensors replaced, the places of the tensors, the identity's node); unchanged without a gradient."""
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]
    if not (engine.is_grad_enabled() and any(values[place].requires_grad for place in places)):
        return values, None, None
    passed = _Identity.apply(*[values[place] for place in places])
    replaced = list(values)
    for place, tensor in zip(places, passed, strict=True):
        replaced[place] = tensor
    node = next(tensor.grad_fn for tensor in passed if tensor.grad_fn is not None)
    out = tuple(replaced) if type(values) is tuple else type(values)(*replaced)  # a namedtuple stays one
    return out, places, node
