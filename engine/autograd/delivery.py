"""Gradients on their way from a node to the next ones, where streams of GPUs take part (`engine.autograd.workers`)."""

from typing import TYPE_CHECKING, Any

from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.gradients import add_into
from engine.autograd.node import Node
from engine.autograd.places import Place, at, current_place, event_after, used_on
from engine.rules.spec import Spec

if TYPE_CHECKING:
    from engine.autograd.workers import Run


def show(run: "Run", leaf: AccumulateGrad, place: Place | None) -> None:
    """The gradient of a leaf will be used on the caller's stream."""
    if place is not None and place is not run.callers[place.index]:
        variable = leaf.variable
        if variable is not None and variable._meta is not None and variable._meta.grad is not None:
            used_on(variable._meta.grad, run.callers[place.index])


class Crossing:
    """The gradients of one node on their way to nodes that may run on other streams (`engine.autograd.walk.send`, with
    the run's lock held).
    """

    def __init__(self, run: "Run", place: Place | None) -> None:
        self._run = run
        self._place = place
        self._source: Place | None = None  # where the gradient that is on its way was computed, and where it goes
        self._target: Place | None = None
        self._event: Any = None  # after what the node computed; made when another stream needs it

    def meet(self, following: Node, gradient: Any, spec: Spec, fitted: bool) -> None:
        """The stream of `following` waits for the one on which a gradient for it was computed. `fitted`: just now."""
        run, source, index = self._run, self._place, spec.device.index
        if fitted:
            self._event = None  # the work of that comes after it
        if source is None and gradient is not None and index is not None:
            source = current_place(index)  # a copy to the GPU in a node of the CPU
        target = following.place
        if source is not None and index is not None and type(following) is AccumulateGrad:
            target = run.places.setdefault(following, source if source.index == index else run.callers[index])
        if gradient is not None and source is not None and target is not None and source is not target:
            if self._event is None or source is not self._place:
                self._event = event_after(source)
            run.waits.setdefault(following, []).append(self._event)
            used_on(gradient, target)
        self._source, self._target = source, target

    def add(self, following: Node, waiting: list[Any], slot: int, gradient: Any, recorded: bool) -> None:
        """Adds a gradient to the one that waits for `following`, on the stream of that node."""
        run, target = self._run, self._target
        if target is None or (target is self._source and following not in run.waits):
            add_into(waiting, slot, gradient, recorded)
            return
        with at(target):
            for event in run.waits.pop(following, ()):
                target.raw.wait_event(event)
            add_into(waiting, slot, gradient, recorded)
