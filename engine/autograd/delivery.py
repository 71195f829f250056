"""Gradients on their way from a node to the next ones, where streams of GPUs take part (`engine.autograd.workers`)."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.gradients import UNSHARED, add_into, fit, owns_memory
from engine.autograd.node import Node
from engine.autograd.places import Place, at, current_place, event_after, used_on
from engine.autograd.task import GraphTask
from engine.memory import backend

if TYPE_CHECKING:
    from engine.autograd.workers import Run


def show(run: "Run", leaf: AccumulateGrad, place: Place | None) -> None:
    """The gradient of a leaf will be used on the caller's stream."""
    if place is not None and place is not run.callers[place.index]:
        variable = leaf.variable
        if variable is not None and variable._meta is not None and variable._meta.grad is not None:
            used_on(variable._meta.grad, run.callers[place.index])


def distribute(run: "Run", task: GraphTask, node: Node, results: list[Any], place: Place | None) -> None:
    """Sends the gradients on; nodes for which they were the last are queued."""
    dependencies, not_ready, recorded = task.dependencies, task.not_ready, task.recorded
    task.producer = node
    event: Any = None  # after what this node computed; made when another stream needs it
    ready: list[tuple[Node, list[Any]]] = []
    for number, (edge, spec) in enumerate(zip(node.next_edges, node.input_specs, strict=False)):
        if edge is None or edge[0] not in dependencies:
            continue
        gradient, results[number] = results[number], None
        following, slot = edge
        if gradient is not None:
            fitted = fit(node, number, gradient, spec, recorded)
            if fitted is not gradient:
                event = None  # the work of that comes after it
            gradient, fitted = fitted, None
        source = place
        index = spec.device.index
        if source is None and gradient is not None and index is not None:
            source = current_place(index)  # a copy to the GPU in a node of the CPU
        with run.lock:
            target = following.place
            if source is not None and index is not None and type(following) is AccumulateGrad:
                target = run.places.setdefault(following, source if source.index == index else run.callers[index])
            if gradient is not None and source is not None and target is not None and source is not target:
                if event is None or source is not place:
                    event = event_after(source)
                run.waits.setdefault(following, []).append(event)
                used_on(gradient, target)
            waiting = not_ready.get(following)
            if waiting is None:
                waiting = not_ready[following] = [None] * len(following.output_specs)
            if gradient is not None:
                if waiting[slot] is None:
                    waiting[slot] = gradient
                else:
                    _add(run, following, target, source, waiting, slot, gradient, recorded)
            gradient = None
            remaining = dependencies[following] - 1
            dependencies[following] = remaining
            if remaining == 0:
                ready.append((following, not_ready.pop(following)))
            waiting = None
    del results
    with run.lock:
        for following, waiting in ready:
            run.push(following, waiting)


def _add(
    run: "Run",
    node: Node,
    target: Place | None,
    source: Place | None,
    buffer: list[Any],
    slot: int,
    gradient: Any,
    recorded: bool,
) -> None:
    """Adds a gradient to the one that waits for `node`, on the stream of that node."""
    if target is None or (target is source and node not in run.waits):
        _sum(buffer, slot, gradient, recorded)
        return
    with at(target):
        for event in run.waits.pop(node, ()):
            target.raw.wait_event(event)
        _sum(buffer, slot, gradient, recorded)


def _sum(buffer: list[Any], slot: int, gradient: Any, recorded: bool) -> None:
    held = buffer[slot]
    on_gpu = not recorded and not isinstance(held, np.ndarray | backend.SCALAR)
    if on_gpu and sys.getrefcount(held) <= UNSHARED and owns_memory(held):
        held += gradient
        return
    held = None
    add_into(buffer, slot, gradient, recorded)
