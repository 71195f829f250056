"""Backward over graphs with nodes on several streams or GPUs: a thread for each GPU, a queue of ready nodes for each.

Nodes of the CPU run on the thread that called backward, those of a GPU on its worker, each on the stream its forward
ran on. Where a gradient goes to a node on another stream, that stream waits for an event of the one it comes from; the
caller's current streams wait for those on which leaves got their gradients. The CPU never waits for a GPU.

A backward inside a node is driven by the thread that runs the node, from the same queue, deeper runs first. Graphs
without a node on a GPU, and those that lie on the caller's stream as a whole, do not come here
(`engine.autograd.executor`): with threads a step of 10 linear layers of 16 takes the host 3.7 ms, without 2.5.
"""

import copy
import os
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.delivery import Crossing, show
from engine.autograd.hooks import name_the_node
from engine.autograd.modes import carried, state
from engine.autograd.node import Node
from engine.autograd.places import Place, current_place, event_after, used_on
from engine.autograd.task import GraphTask
from engine.autograd.walk import run_node, send
from engine.memory import backend
from engine.tensor import Tensor

_tie = count().__next__
_Item = tuple[int, int, int, "Run | None", Any, Any]  # -depth, -sequence, tie, run, node, buffer


class ReadyQueue:
    """Nodes that may run, those of deeper runs first, then those recorded last."""

    def __init__(self) -> None:
        self._heap: list[_Item] = []
        self._filled = threading.Condition()

    def push(self, depth: int, sequence: int, run: "Run | None", node: Any = None, buffer: Any = None) -> None:
        """Adds a node; without one, whoever waits looks whether its run has ended."""
        with self._filled:
            heappush(self._heap, (-depth, -sequence, _tie(), run, node, buffer))
            self._filled.notify()

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._heap

    def pop(self) -> _Item:
        """The first one; waits for it."""
        with self._filled:
            while not self._heap:
                self._filled.wait()
            return heappop(self._heap)


class _Thread(threading.local):
    """What a thread is doing: `run`: whose modes are in force on it."""

    queue: ReadyQueue | None = None
    run: "Run | None" = None
    device: int = -1  # of a worker
    place: Place | None = None  # whose stream was made current last: CuPy need not keep it
    drains: int = 0  # calls of `drain` it is inside of


_thread = _Thread()
_queues: dict[int, ReadyQueue] = {}  # of the workers, by GPU
_starting = threading.Lock()


def _forget_workers() -> None:
    """Threads do not live on in a child process."""
    global _thread
    _queues.clear()
    _thread = _Thread()


os.register_at_fork(after_in_child=_forget_workers)


def _queue_of(index: int) -> ReadyQueue:
    queue = _queues.get(index)
    if queue is None:
        with _starting:
            queue = _queues.get(index)
            if queue is None:
                queue = ReadyQueue()
                threading.Thread(
                    target=_work, args=(index, queue), name=f"engine-backward-{index}", daemon=True
                ).start()
                _queues[index] = queue
    return queue


def _work(index: int, queue: ReadyQueue) -> None:
    backend.require_cupy().cuda.runtime.setDevice(index)
    _thread.queue, _thread.device = queue, index
    while True:
        _process(queue.pop())


class Run:
    """One backward, as its threads share it."""

    def __init__(self, task: GraphTask, home: ReadyQueue) -> None:
        self.task = task
        self.home = home
        self.depth = len(state.tasks)
        self.lock = threading.Lock()  # of the task's dictionaries and what follows
        self.outstanding = 0  # nodes that are queued or running
        self.error: BaseException | None = None
        self.waits: dict[Node, list[Any]] = {}  # events that the stream of a node must wait for before it runs
        self.places: dict[Node, Place] = {}  # of leaves: where the first gradient for them was computed
        self.ends: set[Place] = set()  # where leaves got their gradients and requested gradients were captured
        self.threaded = state.multithreading
        self.outer = tuple(state.tasks[:-1])
        self.modes = carried()
        self.views: dict[int, GraphTask] = {}  # thread -> the task, with that thread's own notes on what is running
        self.device = backend.require_cupy().cuda.runtime.getDevice()
        self.callers: dict[int, Place] = {}  # the streams that were current where backward was called

    def use_callers_streams(self) -> None:
        """The thread that called backward has the GPU in use, and the streams, that it had then."""
        runtime = backend.require_cupy().cuda.runtime
        for index, place in self.callers.items():
            runtime.setDevice(index)
            place.raw.use()
        runtime.setDevice(self.device)

    def place_of(self, node: Node) -> Place | None:
        """Where a node runs; None: on the CPU."""
        return self.places.get(node) if type(node) is AccumulateGrad else node.place

    def push(self, node: Node, buffer: list[Any]) -> None:
        """Queues a node whose gradients are complete. The caller holds the lock."""
        self.outstanding += 1
        place = self.place_of(node)
        queue = self.home if place is None or not self.threaded else _queue_of(place.index)
        queue.push(self.depth, node.sequence, self, node, buffer)

    def done(self) -> None:
        """One node less; the last one wakes the thread that called backward."""
        with self.lock:
            self.outstanding -= 1
            ended = self.outstanding == 0
        if ended:
            self.home.push(self.depth, 0, None)

    def view(self) -> GraphTask:
        """The task as this thread sees it."""
        thread = threading.get_ident()
        found = self.views.get(thread)
        if found is None:
            found = self.views[thread] = copy.copy(self.task)
        return found


def takeover() -> Callable[[], None]:
    """What a thread calls that goes on in place of this one, which waits for it."""
    queue, run, device = _thread.queue, _thread.run, _thread.device
    cuda = backend.require_cupy().cuda
    index, raw = cuda.runtime.getDevice(), cuda.get_current_stream()

    def adopt() -> None:
        _thread.queue, _thread.run, _thread.device = queue, run, device
        cuda.runtime.setDevice(index)
        raw.use()

    return adopt


def runs_here(task: GraphTask) -> bool:
    """Whether the thread that calls backward runs all of it: no node is on a GPU, or all that are ran their forward on
    the stream that is current now, on the GPU that is in use.
    """
    found = {node.place for node in (*task.roots, *task.dependencies)} - {None}
    if not found:
        return True
    place = found.pop()
    here = current_place(backend.require_cupy().cuda.runtime.getDevice())
    if found or place is not here or _gpus(task) != {here.index}:
        return False
    task.place = here
    return True


def drain(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """Runs a task to its end, as `engine.autograd.executor` does where no GPU takes part.

    Raises: what a node raised, on whatever thread.
    """
    if _thread.queue is None:
        _thread.queue = ReadyQueue()
    home = _thread.queue
    run = Run(task, home)
    before = _thread.run, dict(state.__dict__)
    _thread.run = run
    _thread.drains += 1
    run.views[threading.get_ident()] = task
    run.callers = {index: current_place(index) for index in _gpus(task)}
    try:
        with run.lock:
            _start(run, buffers)
        while run.outstanding:
            _process(home.pop())
    except BaseException as error:  # Ctrl-C: the workers drop what is left
        run.error = error
        raise
    finally:
        _thread.drains -= 1
        _thread.run = before[0]
        state.__dict__.clear()
        state.__dict__.update(before[1])
        if _thread.device >= 0 or not run.threaded:
            run.use_callers_streams()
        run.views.clear()
    if run.error is not None:
        raise run.error
    assert not task.not_ready, f"could not compute gradients for some functions: {[n.name() for n in task.not_ready]}"
    _join(run)


def _gpus(task: GraphTask) -> set[int]:
    """The GPUs that nodes of a task and its leaves are on."""
    found = set()
    for node in (*task.roots, *task.dependencies):
        index = node.output_specs[0].device.index if type(node) is AccumulateGrad else None
        if node.place is not None:
            index = node.place.index
        if index is not None:
            found.add(index)
    return found


def _start(run: Run, buffers: dict[Node, list[Any]]) -> None:
    task = run.task
    for node in list(task.roots):
        buffer = buffers.pop(node)
        place = node.place
        if place is not None:
            caller = run.callers[place.index]
            if caller is not place:  # gradients of roots come from the caller's stream
                run.waits[node] = [event_after(caller)]
                for gradient in buffer:
                    used_on(gradient, place)
        elif type(node) is AccumulateGrad:
            index = node.output_specs[0].device.index
            if index is not None:
                run.places[node] = run.callers[index]
        if node in task.dependencies:
            task.not_ready[node] = buffer
        else:
            run.push(node, buffer)
        del buffer


def _join(run: Run) -> None:
    """The caller's current streams wait for what backward stored."""
    for place in run.ends:
        caller = current_place(place.index)
        if caller is not place:
            caller.raw.wait_event(event_after(place))
            for gradient in run.task.captured.values():
                array = gradient._array if isinstance(gradient, Tensor) else gradient
                if backend.is_on_gpu(array) and array.device.id == place.index:
                    used_on(array, caller)


# --- one node ---------------------------------------------------------------------------------------------------------


def _process(item: _Item) -> None:
    """Runs a node that is ready, unless its run has failed."""
    run, node, buffer = item[3:]
    del item
    if run is None:
        return
    try:
        if run.error is None:
            _enter(run)
            place = run.place_of(node)
            if place is not None:
                if not run.threaded:
                    backend.require_cupy().cuda.runtime.setDevice(place.index)
                place.raw.use()
                _thread.place = place
            elif _thread.device in run.callers:  # a node of the CPU in a backward that a worker called
                run.callers[_thread.device].raw.use()
            elif not run.threaded:
                run.use_callers_streams()
            _run_node(run, run.view(), node, buffer, place)
    except BaseException as error:  # noqa: BLE001 - it is raised where backward was called
        if isinstance(error, Exception):
            name_the_node(error, node)
        if run.error is None:
            run.error = error
    finally:
        node = buffer = None
        if not _thread.drains and _thread.queue is not None and _thread.queue.is_empty():
            _leave()
        run.done()


def _leave() -> None:
    """A worker without work holds on to nothing of what it has done."""
    _thread.run = None
    state.tasks = []


def _enter(run: Run) -> None:
    """Puts the modes in force that were where backward was called."""
    if _thread.run is not run:
        run.modes.install()
        state.tasks = [*run.outer, run.view()]
        _thread.run = run


def _run_node(run: Run, task: GraphTask, node: Node, buffer: list[Any], place: Place | None) -> None:
    if place is not None:
        for event in run.waits.pop(node, ()):
            place.raw.wait_event(event)
        if type(node) is AccumulateGrad or node in task.captures:
            with run.lock:
                run.ends.add(place)
    results = run_node(task, node, buffer)
    if results is not None and type(node) is AccumulateGrad:
        show(run, node, place)
    if results:
        task.producer = node
        ready: list[tuple[Node, list[Any]]] = []
        with run.lock:
            send(task, node, results, ready, Crossing(run, place))
        results = None  # AccumulateGrad looks at reference counts
        with run.lock:
            for following, waiting in ready:
                run.push(following, waiting)
