"""The cases of `ddp.bench --device cuda`: transports of device memory, NCCL's own all-reduce, a copy on the device."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import engine
from ddp.bench.figures import COPY, NCCL_LIBRARY
from ddp.bench.sums import Case
from ddp.transport import CUDA_ONLY
from ddp.transport.cuda import CUDA_TRANSPORTS
from engine.memory.backend import find_nccl, require_cupy


def usable(comm: Any) -> list[str]:
    """Collective: what can be measured with these ranks; of the rest rank 0 says why not."""
    found = []
    for name in CUDA_ONLY:
        problem = ""
        try:
            CUDA_TRANSPORTS[name](comm, _gpu(), None).close()
        except RuntimeError as error:
            problem = str(error)
        problems = [text for text in comm.allgather(problem) if text]
        if not problems:
            found.append(name)
        elif comm.rank == 0:
            print(f"not measured: {problems[0]}", file=sys.stderr)
    return [*found, *([NCCL_LIBRARY] if "nccl" in found else []), COPY]


def cases(names: list[str], comm: Any) -> Callable[[str, int], Case]:
    """Collective: `make(name, count)`, collective too, for float32 arrays of so many elements."""
    transports: dict[str, Any] = {
        name: CUDA_TRANSPORTS[name](comm, _gpu(), None) for name in names if name in CUDA_TRANSPORTS
    }
    library = _library(comm) if NCCL_LIBRARY in names else None

    def make(name: str, count: int) -> Case:
        if name == COPY:
            return _copy_case(count)
        if name == NCCL_LIBRARY:
            return _library_case(library, comm.rank, count)
        return _transport_case(transports[name], count)

    return make


def _gpu() -> engine.device:
    return engine.device("cuda", engine.cuda.current_device())


def _waited_for() -> None:
    require_cupy().cuda.get_current_stream().synchronize()


def _transport_case(transport: Any, count: int) -> Case:
    buffer = transport.allocate(count, np.float32)

    def prepare(round_: int) -> None:
        buffer.array.fill(round_ + transport.rank)
        _waited_for()

    def run() -> None:
        transport.start(buffer)
        transport.wait(buffer)
        _waited_for()

    return Case(transport.name, prepare, run, buffer.array)


def _copy_case(count: int) -> Case:
    cupy = require_cupy()
    source, target = cupy.zeros(count, np.float32), cupy.zeros(count, np.float32)

    def prepare(round_: int) -> None:
        source.fill(round_)
        _waited_for()

    def run() -> None:
        target.data.copy_from_device_async(source.data, source.nbytes)
        _waited_for()

    return Case(COPY, prepare, run, target)


def _library(comm: Any) -> Any:
    nccl: Any = find_nccl()
    identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
    return nccl, nccl.NcclCommunicator(comm.size, identity, comm.rank)


def _library_case(library: Any, rank: int, count: int) -> Case:
    nccl, communicator = library
    cupy = require_cupy()
    array = cupy.zeros(count, np.float32)

    def prepare(round_: int) -> None:
        array.fill(round_ + rank)
        _waited_for()

    def run() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        communicator.allReduce(array.data.ptr, array.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
        _waited_for()

    return Case(NCCL_LIBRARY, prepare, run, array)
