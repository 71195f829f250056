"""Graphs: work recorded on captured streams, and replayed on the same memory.

Nothing recorded runs: what it would write keeps its old bytes (new memory: 0xFF) until the first launch.
"""

from collections.abc import Callable
from typing import Any

from tests.cuda_simulator import counters, races, streams
from tests.cuda_simulator.errors import CUDARuntimeError

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


class Capture:
    """A graph while it is recorded: the streams that take part, and the work in the order it was queued."""

    def __init__(self, origin: streams.Queue, mode: int) -> None:
        self.origin = origin
        self.mode = mode
        self.open = True
        self.invalid = False
        self.start: races.Clock = dict(origin.clock)
        self.queues: list[streams.Queue] = []
        self.work: list[tuple[str, Callable[[], Any], list[Any], list[Any]]] = []
        self.histories: dict[int, races.History] = {}
        self.enter(origin)

    def enter(self, queue: streams.Queue) -> None:
        queue.capture = self
        self.queues.append(queue)

    def add(
        self, queue: streams.Queue, label: str, run: Callable[[], Any], reads: list[Any], writes: list[Any]
    ) -> None:
        """Records one piece of work; races are looked for among the work of the graph."""
        for ranges, write in ((reads, False), (writes, True)):
            for block, start, stop in ranges:
                history = self.histories.setdefault(block.start, races.History())
                history.access(start, stop, write, queue.clock, queue.timeline, label)
        self.work.append((label, run, reads, writes))


class Graph:
    """`cupy.cuda.Graph`: made by `Stream.end_capture`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("currently this class can only be instantiated from stream capture")

    _work: list[tuple[str, Callable[[], Any], list[Any], list[Any]]]
    _device: int
    graph: int
    graphExec: int

    def launch(self, stream: Any = None) -> None:
        """Queues the whole graph on a stream (default: the current one).

        Raises: RaceError for memory that nothing orders after its last use, or that the pool gave to somebody else
        after the capture; CUDARuntimeError for memory that was freed.
        """
        from tests.cuda_simulator import execution

        with streams.LOCK:
            queue = streams.current_queue() if stream is None else stream._queue()
            if queue.capture is not None:
                raise NotImplementedError("the simulated device launches no graph inside a capture")
            streams.begin(queue)
            counters.count("graph_launches")
            label = f"graph launched at {races.place()} on {queue.describe()}"
            for what, run, reads, writes in self._work:
                for block, _, _ in (*reads, *writes):
                    if block.handed_out > self._handed_out[id(block)]:
                        races.report(f"{label}: the memory of {what} was handed out again after the capture")
                execution.check(queue, label, reads, writes)
                with streams.launching(queue):
                    run()

    _handed_out: dict[int, int]

    def debug_dot_str(self, flags: int = 0) -> str:
        lines = "".join(f'  "{number}: {each[0]}";\n' for number, each in enumerate(self._work))
        return "digraph {\n" + lines + "}\n"


def begin(queue: streams.Queue, mode: int) -> None:
    """cudaStreamBeginCapture.

    Raises: RuntimeError for the null stream, CUDARuntimeError for a stream that is captured already.
    """
    if queue.null:
        raise RuntimeError("cannot capture on the default (legacy) stream")
    if queue.capture is not None:
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
    with streams.LOCK:
        streams.begin(queue)
        Capture(queue, mode)


def end(queue: streams.Queue) -> Graph:
    """cudaStreamEndCapture and cudaGraphInstantiate.

    Raises: CUDARuntimeError where the capture was invalidated, another stream began it, or a stream that took part was
    not joined.
    """
    capture = queue.capture
    if capture is None or capture.origin is not queue:
        raise CUDARuntimeError("cudaErrorInvalidValue" if capture is None else "cudaErrorStreamCaptureUnsupported")
    with streams.LOCK:
        joined = all(
            races.reached(queue.clock, {each.timeline: each.clock[each.timeline]})
            for each in capture.queues
            if each.clock.get(each.timeline, 0) > capture.start.get(each.timeline, 0)
        )
        for each in capture.queues:
            each.capture = None
        capture.open = False
        if capture.invalid:
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated")
        if not joined:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined")
        graph = Graph.__new__(Graph)
        graph._work = capture.work
        graph._device = queue.device
        graph.graph = graph.graphExec = id(graph)
        blocks = [block for _, _, reads, writes in capture.work for block, _, _ in (*reads, *writes)]
        graph._handed_out = {id(block): block.handed_out for block in blocks}
        return graph


def forbid_unsafe() -> None:
    """Raises: CUDARuntimeError for cudaMalloc and the like while a stream is captured in a mode other than relaxed."""
    queue = streams.current_queue()
    if queue.capture is not None and queue.capture.mode != RELAXED:
        queue.capture.invalid = True
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
