"""`engine.cuda.make_graphed_callables`: functions and modules whose forward and backward are CUDA graphs.

Everything outside them stays eager, so that a network may be graphed in parts. Inputs are copied into the memory that
was recorded with; results hold until the next call.
"""

from collections.abc import Callable, Sequence
from typing import Any

from engine.autograd import grad
from engine.autograd.function import Function
from engine.autograd.modes import state
from engine.calls.arguments import tensors_in, with_tensors
from engine.cuda import streams
from engine.cuda.devices import synchronize
from engine.cuda.graphs import CUDAGraph, capture_stream, graph, graph_pool_handle
from engine.ops.creation.factories import empty_like, ones_like
from engine.tensor import Tensor


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
) -> Any:
    """Functions or modules whose forward and backward are a graph each. Functions are recorded in order, backwards in
    reverse.

    Raises: TypeError for arguments that are no tensors; RuntimeError for a module with hooks, or buffers that require
    grad.
    """
    several = isinstance(callables, tuple | list)
    functions: Sequence[Any] = tuple(callables) if several else (callables,)
    samples: Sequence[Any] = tuple(sample_args) if several else (sample_args,)
    made = _make(functions, samples, num_warmup_iters, allow_unused_input, pool)
    return made if several else made[0]


def _make(
    functions: Sequence[Any], samples: Sequence[Any], warmups: int, allow_unused: bool, pool: Any
) -> tuple[Any, ...]:
    given = [tuple(each) if isinstance(each, tuple | list) else (each,) for each in samples]
    for function, args in zip(functions, given, strict=True):
        if not all(isinstance(arg, Tensor) for arg in args):
            raise TypeError("make_graphed_callables: expected tensors as sample_args; bind other arguments beforehand")
        if _is_module(function) and (function._forward_hooks or function._forward_pre_hooks):
            raise RuntimeError("make_graphed_callables: the module has hooks; register them after it was graphed")
    parameters = [_parameters(function) for function in functions]
    inputs = [(*args, *own) for args, own in zip(given, parameters, strict=True)]
    side = capture_stream()
    side.wait_stream(streams.current_stream())
    with streams.stream(side):
        for function, args, every in zip(functions, given, inputs, strict=True):
            for _ in range(warmups):
                _gradients(tensors_in(function(*args)), every, None, allow_unused)
    streams.current_stream().wait_stream(side)
    synchronize()
    pool = graph_pool_handle() if pool is None else pool
    forwards, results = [], []
    for function, args in zip(functions, given, strict=True):
        forward = CUDAGraph()
        with graph(forward, pool=pool):
            results.append(function(*args))
        forwards.append(forward)
    made = []
    for number in reversed(range(len(functions))):
        outputs = tensors_in(results[number])
        incoming = [empty_like(output) if output.requires_grad else None for output in outputs]
        backward = CUDAGraph()
        with graph(backward, pool=pool):
            outgoing = _gradients(outputs, inputs[number], incoming, allow_unused)
        plain = [output.detach() for output in outputs]
        graphed = _graphed(forwards[number], backward, inputs[number], len(given[number]), plain, incoming, outgoing)
        made.append(_like(functions[number], _call(graphed, parameters[number], results[number])))
    return tuple(reversed(made))


def _is_module(function: Any) -> bool:
    """Whether it is an nn.Module: a class of a room above this one."""
    return hasattr(function, "named_parameters")


def _parameters(function: Any) -> tuple[Tensor, ...]:
    if not _is_module(function):
        return ()
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError("make_graphed_callables: buffers of a graphed module must not require grad")
    return tuple(function.parameters())


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], incoming: Sequence[Any] | None, allow_unused: bool
) -> list[Tensor | None]:
    """One entry an input: its gradient, None where there is none."""
    wanted = [each for each in inputs if each.requires_grad]
    roots = [output for output in outputs if output.requires_grad]
    if not roots or not wanted:
        return [None] * len(inputs)
    given = [ones_like(root) for root in roots] if incoming is None else [each for each in incoming if each is not None]
    found = iter(grad(roots, wanted, given, only_inputs=True, allow_unused=allow_unused))
    return [next(found) if each.requires_grad else None for each in inputs]


def _graphed(
    forward: CUDAGraph,
    backward: CUDAGraph,
    inputs: Sequence[Tensor],
    arguments: int,
    outputs: Sequence[Tensor],
    incoming: Sequence[Tensor | None],
    outgoing: Sequence[Tensor | None],
) -> type[Function]:
    class Graphed(Function):
        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> Any:
            for static, value in zip(inputs[:arguments], given, strict=False):
                if static.data_ptr() != value.data_ptr():
                    static.detach().copy_(value)
            forward.replay()
            return tuple(output.detach() for output in outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            for static, value in zip(incoming, gradients, strict=True):
                if static is not None and static.data_ptr() != value.data_ptr():
                    static.copy_(value)
            backward.replay()
            # what backward stores must not be memory that the next replay writes: nobody holds these but the graph
            return tuple(None if gradient is None else gradient.detach() for gradient in outgoing)

    return Graphed


def _call(graphed: type[Function], parameters: Sequence[Tensor], result: Any) -> Callable[..., Any]:
    def call(*args: Tensor) -> Any:
        outputs = graphed.apply(*args, *parameters)
        return with_tensors(result, iter(outputs))

    return call


def _like(function: Any, call: Callable[..., Any]) -> Any:
    """A function as it is; a module keeps its class, and is graphed in the mode (training or not) of the recording."""
    if not _is_module(function):
        return call
    eager, training = function.forward, function.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        if function.training is training and not kwargs and (state.grad_enabled or not training):
            return call(*args)
        return eager(*args, **kwargs)

    object.__setattr__(function, "forward", forward)
    return function
