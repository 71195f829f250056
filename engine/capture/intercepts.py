"""Where the recorder listens (`engine.calls.listening`): kernels, nodes that run, and functions in a table.

What reads a tensor's value into Python, or writes memory in a way that is not listed here, is refused; nothing passes
unseen: an array that no recorded call made counts as external memory, and must be the same in a second recording.
"""

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from engine.autograd import accumulate, api, executor, gradients, task
from engine.autograd.modes import state
from engine.calls.effects import EFFECTS, UNREPLAYABLE
from engine.calls.listening import BACKWARD, FUNCTION, KERNEL, Handler, Listener
from engine.calls.plan import Plan
from engine.calls.recording import OperatorNode
from engine.capture import backward
from engine.capture.recorder import Constant, Group, Known, Recorder, Shell
from engine.memory import backend
from engine.nn import hooks as module_hooks
from engine.nn.module import Module
from engine.nn.utils import clip_grad
from engine.ops.creation import factories, from_data
from engine.ops.index import along_axis
from engine.ops.index import operator as index
from engine.ops.pointwise import queries
from engine.ops.random import tensors as random
from engine.ops.random.dropout import keep_mask
from engine.ops.writing import inplace
from engine.optim.lr_scheduler import LRScheduler
from engine.optim.optimizer import Optimizer
from engine.random import Generator
from engine.tensor import Tensor

_EMPTY = object()


def listener(recorder: Recorder) -> Listener:
    """Who is told of what this thread does to tensors, and has it recorded."""
    table = dict(_table())

    def listening(key: str, target: Any) -> Handler | None:
        if key is KERNEL:
            return None if recorder.depth else partial(_run_kernel, recorder, target)
        if key is BACKWARD:
            if isinstance(target, OperatorNode):
                handler: Any = backward.on_node
            else:
                handler = backward.on_accumulate if isinstance(target, accumulate.AccumulateGrad) else None
            return None if recorder.depth or handler is None else partial(handler, recorder, target)
        handler = table.get(target) if key is FUNCTION else None
        if handler is None or (recorder.depth and handler not in _ALWAYS):
            return None
        return partial(_handle, recorder, handler, target)

    return listening


def _handle(
    recorder: Recorder, handler: Callable[..., Any], target: Any, proceed: Any, /, *args: Any, **kwargs: Any
) -> Any:
    proceed.__wrapped__ = target
    return handler(recorder, proceed, *args, **kwargs)


def _run_kernel(recorder: Recorder, plan: Plan, proceed: Callable[..., Any], /, *arrays: Any) -> Any:
    _check_modes(recorder)
    places = {spec.device for spec in (*plan.input_specs, *plan.outs) if spec is not None and spec.number is None}
    recorder.devices |= places
    if len(places) > 1:
        recorder.check_devices()
    if any(where.type == "meta" for where in places):
        recorder.refuse(f"{plan.operator.name} runs on device 'meta', where there is nothing to compute")
        return proceed(*arrays)
    arguments = [recorder.atom(array) for array in arrays]
    result = recorder.inside(proceed, *arrays)
    results = (result,) if plan.operator.single else tuple(result)
    slots = recorder.results(results, len(results) - len(plan.outs))
    recorder.add("operator", plan, arguments, slots)
    return result


def _check_modes(recorder: Recorder) -> None:
    if state.saved_tensor_hooks:
        recorder.refuse("saved_tensors_hooks (or a checkpoint) are active, whose Python a replay would not run")
    if state.anomaly:
        recorder.refuse("anomaly detection is on")
    if state.inference:
        recorder.refuse("inference mode is on")


# --- functions --------------------------------------------------------------------------------------------------------


def _table() -> list[tuple[Any, Callable[..., Any]]]:
    """(function, handler) of everything that is listened to."""
    readers = (Tensor._readable, Tensor.numpy, Tensor.__dlpack__, queries.equal, queries.allclose)
    sources = ("empty", "empty_strided", "full", "empty_like", "full_like", "arange", "linspace", "logspace", "eye")
    draws = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like")
    fills = ("uniform_", "normal_", "bernoulli_", "random_", "exponential_")
    clips = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm")
    generators = (Generator.manual_seed, Generator.set_state)
    grad, requires = Tensor.grad, Tensor.requires_grad_
    assert isinstance(grad, property)
    assert isinstance(Tensor.data, property)
    table: list[tuple[Any, Callable[..., Any]]] = [(reader, _refuse_reading) for reader in readers]
    table += [(function, _refuse_call) for function in UNREPLAYABLE]
    table += [(getattr(factories, name), _source) for name in (*sources, "zeros", "ones")]
    table += [(getattr(random, name), _source) for name in draws] + [(keep_mask, _source), (from_data.tensor, _source)]
    table += [(getattr(random, name), _fill) for name in fills]
    table += [(getattr(clip_grad, name), _effect) for name in clips]
    table += [(function, _effect) for function in (*generators, Optimizer.zero_grad, Module.zero_grad, *EFFECTS)]
    table += [(step, _effect) for kind in (Optimizer, LRScheduler) for step in own_methods(kind, "step")]
    table += [
        (inplace.write, _write),
        (inplace._overwrite, _overwrite),
        (inplace.become, _become),
        (index._write_at, _write_at),
        (index.index_put_, _index_put),
        (index._checked_indices, _checked_indices),
        (along_axis.check_index, _check_index),
        (task.queue_callback, _queue_callback),
        (api._root_gradient, backward.on_root_gradient),
        (executor.run_backward, backward.on_run_backward),
        (gradients.fit, backward.on_fit),
        (gradients.add_into, backward.on_add_into),
        (grad.fget, backward.on_read_grad),
        (grad.fset, backward.on_set_grad),
        (Tensor.data.fset, _set_data),
        (requires, _requires_grad),
        (Tensor._bump_version, _bump_version),
        (Module.__call__, _call_module),
        (Module.__setattr__, _set_attribute),
    ]
    return table


def own_methods(kind: type, name: str) -> list[Any]:
    """The functions that a class and those below it define under this name."""
    found, todo = [], [kind]
    while todo:
        each = todo.pop()
        todo.extend(each.__subclasses__())
        if isinstance(each.__dict__.get(name), types.FunctionType):
            found.append(each.__dict__[name])
    return list(dict.fromkeys(found))


def _refuse_reading(recorder: Recorder, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    recorder.refuse("the step reads the value of a tensor into Python, which a replay would not do again")
    return original(*args, **kwargs)


def _refuse_call(recorder: Recorder, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    function = _function(original)
    recorder.refuse(f"the step calls {function.__name__}() of {function.__module__}, which a replay would not do again")
    return original(*args, **kwargs)


# --- tensors from nothing ---------------------------------------------------------------------------------------------


def _source(recorder: Recorder, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A factory or a random draw: called again with the same arguments."""
    name = _function(original).__name__
    like = name.endswith("_like")
    if kwargs.get("out") is not None:
        return original(*args, **kwargs)
    arguments = recorder.structure(
        [args, kwargs], lambda tensor: Shell(tensor._spec) if like else recorder.tensor(tensor)
    )
    if not like and _tensors_in(arguments):
        if name == "tensor":  # a copy, which the operators it is made of record
            return original(*args, **kwargs)
        recorder.refuse(f"{name}() reads the value of a tensor")
    made = recorder.inside(original, *args, **kwargs)
    recorder.devices.add(made._spec.device)
    if made._spec.device.index is not None and name == "tensor":
        recorder.refuse("tensor() copies Python data to the GPU, which a CUDA graph would not do; pass it as argument")
    if made._spec.device.type != "meta":
        recorder.add("source", _function(original), [arguments], recorder.results([made._array]))
    return made


def _tensors_in(atom: Any) -> bool:
    if isinstance(atom, Group):
        return any(map(_tensors_in, atom.items))
    return not isinstance(atom, Constant)


def _fill(recorder: Recorder, original: Callable[..., Any], tensor: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    arguments = recorder.structure([(tensor, *args), kwargs])
    recorder.add("effect", _function(original), [arguments, Constant(state.grad_enabled)])
    return recorder.inside(original, tensor, *args, **kwargs)


def _function(proceed: Any) -> Any:
    """The function of which a handler was told, given the way on to it."""
    return proceed.__wrapped__


# --- effects ----------------------------------------------------------------------------------------------------------


def _effect(recorder: Recorder, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    args = tuple(list(each) if isinstance(each, types.GeneratorType) else each for each in args)
    kwargs = {name: list(each) if isinstance(each, types.GeneratorType) else each for name, each in kwargs.items()}
    arguments = recorder.structure([args, kwargs])
    recorded = Constant(state.grad_enabled)
    recorder.check_options()
    result = recorder.inside(original, *args, **kwargs)
    recorder.options.settle()
    if isinstance(result, Tensor):
        slots = recorder.results([result._array])
    else:
        slots = ()
        if result is not None and not any(result is each for each in args):
            recorder.refuse(f"{_function(original).__name__}() returns a Python object, {type(result).__name__}")
    recorder.add("effect", _function(original), [arguments, recorded], slots)
    return result


def _queue_callback(
    recorder: Recorder, original: Callable[..., Any], callback: Callable[[], None], *rest: Any, **options: Any
) -> None:
    """What leaves queue for the end of backward, they queue in a replay, too."""
    if not recorder.depth:
        recorder.refuse("a callback is queued for the end of backward")
    original(lambda: recorder.inside(callback), *rest, **options)


# --- writing in place -------------------------------------------------------------------------------------------------


def _write(recorder: Recorder, original: Callable[..., Any], plan: Any, target: Tensor, arrays: list[Any]) -> None:
    arguments = [recorder.atom(target._array), *map(recorder.atom, arrays)]
    recorder.explained.add(id(target._array))
    recorder.add("write", (plan, target._spec.dtype), arguments)
    recorder.inside(original, plan, target, arrays)


def _overwrite(
    recorder: Recorder, original: Callable[..., Any], target: Tensor, array: Any, name: str, source: Any
) -> Tensor:
    recorder.explained.add(id(target._array))
    recorder.add("copy", None, [recorder.atom(target._array), recorder.atom(array)])
    return original(target, array, name, source)


def _become(recorder: Recorder, original: Callable[..., Any], target: Tensor, written: Tensor, name: str) -> Tensor:
    recorder.explained.add(id(target._array))
    recorder.add("copy", None, [recorder.atom(target._array), recorder.atom(written._array)])
    return original(target, written, name)


def _write_at(
    recorder: Recorder,
    original: Callable[..., Any],
    view: Tensor,
    key: tuple[Any, ...],
    value: Tensor,
    accumulate: bool,
) -> None:
    recorder.explained.add(id(view._array))
    places = Group(tuple, (), tuple(map(recorder.atom, key)))
    atoms = [recorder.atom(view._array), places, recorder.atom(value._array), Constant(accumulate)]
    recorder.add("write_at", None, atoms)
    original(view, key, value, accumulate)


def _index_put(recorder: Recorder, original: Callable[..., Any], view: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    value = args[2] if len(args) > 2 else kwargs.get("value")
    needs = view.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
    if state.grad_enabled and needs:
        recorder.refuse("writing at index tensors is part of the graph; use engine.where or index_add")
    return original(view, *args, **kwargs)


def _checked_indices(recorder: Recorder, original: Callable[..., Any], view: Tensor, indices: list[Any]) -> Any:
    places, given = original(view, indices)
    wanted = [indices[place] for place in places]
    for place, before, after in zip(places, wanted, given, strict=True):
        atom = recorder.atom(before._array)
        size = view.shape[place]
        if not backend.is_on_gpu(before._array):
            fresh = recorder.inside(wrapped_index, before._array, size, place)
            after._array = fresh if after is not before else after._array
        recorder.add(
            "function", wrapped_index, [atom, Constant(size), Constant(place)], recorder.results([after._array])
        )
    return places, given


def wrapped_index(index: np.ndarray, size: int, dim: int) -> np.ndarray:
    """Integers that count from the end where they are negative, as such that count from the start.

    Raises: IndexError out of range.
    """
    if index.size:
        low, high = int(index.min()), int(index.max())
        if low < -size or high >= size:
            wrong = high if high >= size else low
            raise IndexError(f"index {wrong} is out of bounds for dimension {dim} with size {size}")
        if low < 0:
            return (index % size).astype(np.int64, copy=False)
    return index


def _check_index(recorder: Recorder, original: Callable[..., Any], name: str, tensor: Tensor, *rest: Any) -> None:
    recorder.inside(original, name, tensor, *rest)
    arguments = recorder.structure([(name, tensor, *rest), {}])
    recorder.add("effect", _function(original), [arguments, Constant(state.grad_enabled)])


def _bump_version(recorder: Recorder, original: Callable[..., Any], tensor: Tensor, writer: str = "") -> None:
    original(tensor, writer)
    if id(tensor._array) in recorder.explained:
        recorder.explained.discard(id(tensor._array))
    elif writer != "batch_norm" and not tensor.is_cuda:  # whose kernel writes its inputs; a CUDA graph has all kernels
        recorder.refuse(f"{writer or 'something'} writes into memory in a way that is not recorded")
    # an argument, which is another tensor in each replay, by its number
    recorder.add("bump", recorder.counters.get(id(tensor._counter), tensor._counter), [Constant(writer)])


# --- modules and flags ------------------------------------------------------------------------------------------------


def _set_data(recorder: Recorder, original: Callable[..., Any], tensor: Tensor, value: Tensor) -> None:
    recorder.refuse("the step assigns .data; use copy_() inside no_grad()")
    original(tensor, value)


def _requires_grad(
    recorder: Recorder, original: Callable[..., Any], tensor: Tensor, requires_grad: bool = True
) -> Tensor:
    if tensor._requires_grad is not bool(requires_grad):
        recorder.add("requires_grad", None, [Known(tensor), Constant(bool(requires_grad))])
    return original(tensor, requires_grad)


def _call_module(recorder: Recorder, original: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
    recorder.modules[module] = None
    if module._hooked and has_hooks(module):
        recorder.refuse(f"{type(module).__name__} has hooks, whose Python a replay would not run")
    return original(module, *args, **kwargs)


def has_hooks(module: Module) -> bool:
    """Whether a call of this module runs hooks."""
    own = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    everywhere = (
        module_hooks.global_forward_pre_hooks,
        module_hooks.global_forward_hooks,
        module_hooks.global_backward_pre_hooks,
        module_hooks.global_backward_hooks,
    )
    return any(own) or any(everywhere)


def _set_attribute(recorder: Recorder, original: Callable[..., Any], module: Module, name: str, value: Any) -> None:
    if recorder.depth:
        recorder.passing.add((id(module), name))
    elif getattr(module, name, _EMPTY) is not value:
        recorder.refuse(f"the step sets attribute {name!r} of {type(module).__name__}; return the value instead")
    original(module, name, value)


_ALWAYS = (_set_attribute, _queue_callback)  # these listen inside effects, too
