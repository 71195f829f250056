"""What is recorded of a backward pass: each call of a derivative rule, each sum, each gradient that reaches a leaf.

The handlers are called by `engine.capture.intercepts` with the function that each stands for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.autograd import accumulate
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.calls.derivative import CONSTANT
from engine.calls.recording import OperatorNode
from engine.capture.recorder import Constant, Known, Offer, Recorder
from engine.tensor import Tensor


def on_root_gradient(
    recorder: Recorder, original: Callable[..., Any], position: int, output: Any, gradient: Any, create_graph: bool
) -> Tensor:
    made = original(position, output, gradient, create_graph)
    if gradient is None:
        recorder.add("one", made._spec, [], recorder.results([made._array]))
    return made


def on_run_backward(
    recorder: Recorder,
    original: Callable[..., Any],
    roots: Sequence[Any],
    given: Sequence[Any],
    keep_graph: bool,
    create_graph: bool,
    inputs: Any,
    accumulating: bool,
) -> Any:
    if create_graph:
        recorder.refuse("backward is itself recorded (create_graph)")
    if recorder.in_backward:
        recorder.refuse("backward inside backward")
    leaves: dict[Node, int] = {}
    todo: list[Node] = [edge[0] for edge in roots]
    seen = set(map(id, todo))
    while todo:
        node = todo.pop()
        extras = node.extras
        if extras is not None and (extras.tensor_hooks or extras.pre_hooks or extras.post_hooks):
            recorder.refuse(f"{node.name()} has hooks, whose Python a replay would not run")
        for edge in node.next_edges:
            if edge is not None:
                if isinstance(edge[0], accumulate.AccumulateGrad):
                    leaves[edge[0]] = leaves.get(edge[0], 0) + 1
                if id(edge[0]) not in seen:
                    seen.add(id(edge[0]))
                    todo.append(edge[0])
    recorder.consumed |= seen
    recorder.in_backward = True
    reached = [Constant(item) for item in leaves.items()] if inputs is None or accumulating else []
    recorder.add("begin_backward", None, reached)
    try:
        return original(roots, given, keep_graph, create_graph, inputs, accumulating)
    finally:
        recorder.in_backward = False
        recorder.add("end_backward", None, [])


def on_node(
    recorder: Recorder,
    node: OperatorNode,
    original: Callable[..., Any],
    given: list[Any],
    recorded: bool,
    edges: Any = None,
) -> Sequence[Any]:
    """`OperatorNode.apply`, with each call of a derivative rule recorded."""
    if recorded or node.saved is None or all(each is None for each in given):
        return original(given, recorded, edges)
    edges = node.next_edges if edges is None else edges

    def call(number: int, bound: Any, arguments: tuple[Any, ...]) -> Any:
        atoms = [
            Constant(value)
            if place.startswith(CONSTANT)
            else recorder.atom(value, residual=place.startswith("residuals"))
            if place != "into"
            else Constant(None)
            if number < 0
            else _offer(edges[number])
            for place, value in zip(bound.places, arguments, strict=True)
        ]
        result = recorder.inside(bound.rule, *arguments)
        recorder.add("rule", (node.plan, bound), atoms, recorder.results(tuple(result) if number < 0 else (result,)))
        return result

    slopes = node.apply_through(given, edges, call)
    if not state.tasks[-1].keep_graph:
        for residual in node.residuals:
            recorder.drop(residual)
    return slopes


def _offer(edge: Any) -> Any:
    """Where a replay may write a gradient: none is offered where the leaf had nothing to offer when it was recorded."""
    leaf = edge[0]
    variable = leaf.variable if type(leaf) is accumulate.AccumulateGrad else None
    given = variable is not None and variable._meta is not None and variable._meta.destination is not None
    return Offer(leaf) if given else Constant(None)


def on_fit(
    recorder: Recorder,
    original: Callable[..., Any],
    node: Node,
    results: Sequence[Any],
    edge: Edge,
    gradient: Any,
    spec: Any,
    recorded: bool,
) -> Any:
    if recorded:
        return original(node, results, edge, gradient, spec, recorded)
    atom = recorder.atom(gradient)
    fitted = recorder.inside(original, node, results, edge, gradient, spec, recorded)
    if fitted is not gradient:
        recorder.add("fit", spec, [atom], recorder.results([fitted]))
    return fitted


def on_add_into(
    recorder: Recorder, original: Callable[..., Any], buffer: list[Any], slot: int, gradient: Any, recorded: bool
) -> None:
    atoms = [] if recorded else [recorder.atom(buffer[slot]), recorder.atom(gradient)]
    recorder.inside(original, buffer, slot, gradient, recorded)
    if not recorded:
        recorder.add("add_into", None, atoms, recorder.results([buffer[slot]]))


def on_accumulate(
    recorder: Recorder,
    leaf: accumulate.AccumulateGrad,
    original: Callable[..., Any],
    given: list[Any],
    recorded: bool,
    edges: Any = None,
) -> Any:
    recorder.leaves[leaf] = None
    recorder.add("accumulate", leaf, [recorder.atom(given[0]), Constant(_obedient(given[0], leaf.variable))])
    return recorder.inside(original, given, recorded, edges)


def _obedient(gradient: Any, variable: Tensor | None) -> bool:
    """Whether a gradient is memory of its own that lies as the layout contract wants it."""
    if variable is None or type(gradient) is not np.ndarray or gradient.base is not None:
        return False
    spec = variable._spec
    return gradient.strides == spec.byte_strides and gradient.shape == spec.shape and spec.steady


def on_read_grad(recorder: Recorder, original: Callable[..., Any], tensor: Tensor) -> Any:
    gradient = original(tensor)
    results = () if gradient is None else recorder.results([gradient._array])
    recorder.add("read_grad", None, [Known(tensor)], results)
    return gradient


def on_set_grad(recorder: Recorder, original: Callable[..., Any], tensor: Tensor, value: Tensor | None) -> None:
    recorder.add("set_grad", None, [Known(tensor), recorder.structure(value)])
    original(tensor, value)
