"""CUDA graphs: work that is recorded once and launched as a whole from then on, as torch.cuda.graphs.

What is recorded reads and writes the same memory at every replay. So a graph has a pool of its own: what was allocated
while it was recorded is given to nobody else as long as the graph lives. Inputs are changed by writing into the tensors
that were there at the recording, results are read from those that it made; they hold until the next replay.
"""

import gc
from typing import Any

from engine.cuda import streams
from engine.cuda.devices import current_device, synchronize
from engine.cuda.memory import empty_cache
from engine.memory import backend, blocks, cublas
from engine.memory.blocks import PrivatePool
from engine.ops.random.cuda.fills import set_captured
from engine.random import DeviceGenerator, device_generator

_capture_streams: dict[int, streams.Stream] = {}


def graph_pool_handle() -> PrivatePool:
    """Memory that several graphs may share: those of them that are never replayed at the same time."""
    return PrivatePool()


def capture_stream(index: int | None = None) -> streams.Stream:
    """The stream on which graphs of a GPU (the one in use) are recorded where none is given."""
    if index is None:
        index = current_device()
    if index not in _capture_streams:
        _capture_streams[index] = streams.Stream(index)
    return _capture_streams[index]


backend.when_found.append(lambda cupy: _capture_streams.clear())


class CUDAGraph:
    """Work of a GPU recorded from a stream. `engine.cuda.graph` is the usual way to record one.

    weight = engine.ones(4, device="cuda")
    x = engine.zeros(4, device="cuda")
    recorded = engine.cuda.CUDAGraph()
    with engine.cuda.graph(recorded):
        y = x * weight
    x.copy_(engine.arange(4.0, device="cuda"))
    recorded.replay()  # y is arange(4) now
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph: Any = None
        self._pool: PrivatePool | None = None
        self._stream: Any = None
        self._products = 0  # the number of the recording, to cuBLAS's workspaces
        self._generators: list[DeviceGenerator] = []
        self._drawn_from: Any = None  # an event: their memory may be written
        self._draws: list[tuple[DeviceGenerator, Any, int]] = []  # where the replays of each draw from, and how much

    def register_generator_state(self, generator: "DeviceGenerator") -> None:
        """Random numbers that are drawn from this generator while the graph is recorded go on from replay to replay, as
        those of the default generator do. Before the recording.
        """
        self._generators.append(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "relaxed") -> None:
        """Records what the current stream is given from now on. pool: `graph_pool_handle()`, another graph's `pool()`.

        Raises: RuntimeError on the default stream, for a graph that has been recorded, and while another is;
        ValueError for a mode that would forbid to allocate memory, which recording does.
        """
        if capture_error_mode != "relaxed":
            raise ValueError(
                f"capture_begin: expected capture_error_mode 'relaxed', got {capture_error_mode!r}: tensors made while "
                "a graph is recorded may need memory from the GPU, which the other modes forbid"
            )
        if self._graph is not None or self._stream is not None:
            raise RuntimeError("CUDAGraph: this graph has been recorded; reset() it, or make another")
        raw = backend.require_cupy().cuda.get_current_stream()
        if raw.ptr <= 2:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream; use engine.cuda.graph(...)")
        if pool is None:
            pool = graph_pool_handle()
        elif not isinstance(pool, PrivatePool):
            raise TypeError(f"capture_begin: expected a pool handle or None as pool, got {type(pool).__name__}")
        default = device_generator(current_device())
        if default not in self._generators:
            self._generators.append(default)
        for generator in self._generators:
            generator.begin_capture()
        self._drawn_from = raw.record()
        try:
            raw.begin_capture()
        except BaseException:
            self._end_draws()
            raise
        self._pool, self._stream = pool, raw
        blocks.capturing[raw.ptr] = pool
        self._products = cublas.begin_capture()

    def _end_draws(self) -> None:
        self._draws = [(generator, *generator.end_capture()) for generator in self._generators]

    def capture_end(self) -> None:
        """Ends the recording.

        Raises: RuntimeError when none is going on, or when something was done that cannot be recorded.
        """
        if self._stream is None:
            raise RuntimeError("CUDAGraph: capture_end() without capture_begin()")
        raw, self._stream = self._stream, None
        blocks.capturing.pop(raw.ptr, None)
        assert self._pool is not None
        self._pool.kept += cublas.end_capture(self._products)
        self._end_draws()
        try:
            self._graph = raw.end_capture()
        except backend.require_cupy().cuda.runtime.CUDARuntimeError as error:
            raise RuntimeError(
                "CUDAGraph: the recording is not valid; something in it waits for the GPU or for another stream "
                "that does not come back (wait_stream), or an operation cannot be recorded"
            ) from error

    def abandon(self) -> None:
        """Ends a recording in which an exception was raised, and forgets it."""
        raw, self._stream = self._stream, None
        if raw is None:
            return
        blocks.capturing.pop(raw.ptr, None)
        assert self._pool is not None
        self._pool.kept += cublas.end_capture(self._products)
        self._end_draws()
        try:
            raw.end_capture()
        except backend.require_cupy().cuda.runtime.CUDARuntimeError:
            pass  # an invalid recording ends with an error; the exception that made it so is on its way to the user
        self.reset()

    def replay(self) -> None:
        """Gives the recorded work to the current stream.

        Raises: RuntimeError for a graph that has not been recorded.
        """
        if self._graph is None:
            raise RuntimeError("CUDAGraph: replay() of a graph that has not been recorded")
        for generator, captured, calls in self._draws:
            if calls:
                backend.require_cupy().cuda.get_current_stream().wait_event(self._drawn_from)
                set_captured(generator, captured, calls)
        self._graph.launch()

    def reset(self) -> None:
        """Forgets the recording and lets go of its memory."""
        self._graph = self._pool = None
        self._draws = []

    def pool(self) -> PrivatePool:
        """The memory of this graph, for `capture_begin` of another one.

        Raises: RuntimeError before the recording.
        """
        if self._pool is None:
            raise RuntimeError("CUDAGraph: pool() of a graph that has not been recorded")
        return self._pool

    def debug_dump(self, debug_path: str) -> None:
        """Writes the recorded work as a graph of Graphviz."""
        if self._graph is None:
            raise RuntimeError("CUDAGraph: debug_dump() of a graph that has not been recorded")
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write(self._graph.debug_dot_str())


class graph:
    """Context manager: what is done inside is recorded in `cuda_graph` and not executed.

    Args: pool: memory to share with other graphs; stream: the one to record on (one of its own).
    """

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "relaxed"
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self.capture_stream = capture_stream() if stream is None else stream
        self._context = streams.stream(self.capture_stream)

    def __enter__(self) -> None:
        synchronize()  # what was recorded before must not be waited for inside
        gc.collect()  # memory that is freed inside would be taken for the graph's own
        empty_cache()
        self._context.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.abandon()
        finally:
            self._context.__exit__()
