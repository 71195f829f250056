"""Simulated device memory: pools, pointers, and what another process may do with it."""

import gc
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import cuda_simulator as simulator

ROOT = Path(__file__).parents[2]


def test_the_pool_counts_and_has_a_limit(xp: Any) -> None:
    gc.collect()
    pool = xp.cuda.MemoryPool()
    with xp.cuda.using_allocator(pool.malloc):
        array = xp.empty(1000, np.uint8)
        assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (1024, 1024, 0)
        assert np.isnan(xp.empty(3).get()).all()
        del array
        assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (0, 1536, 2)
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
        pool.set_limit(size=2048)
        with pytest.raises(xp.cuda.memory.OutOfMemoryError, match="limit set to: 2,048"):
            xp.empty(4096, np.uint8)
        pool.set_limit(size=0)
        with pytest.raises(xp.cuda.memory.OutOfMemoryError):
            xp.empty(65 << 20, np.uint8)


def test_memory_that_an_earlier_program_gives_back_is_not_counted_twice(xp: Any) -> None:
    kept = xp.cuda.Memory(48 << 20)
    _, total = simulator._memory.info(0)
    simulator._memory.reset(total)
    del kept
    assert simulator._memory.info(0) == (total, total)


def test_writes_past_the_end_are_found(xp: Any) -> None:
    memory = xp.cuda.Memory(100)
    from tests.cuda_simulator import execution

    execution.host_bytes(memory.ptr + 100, 1)[:] = 0
    with pytest.raises(simulator.RaceError, match="past their end"):
        simulator._memory.free(memory.block)


def test_memory_by_pointers(xp: Any) -> None:
    runtime = xp.cuda.runtime
    pointer = runtime.malloc(64)
    owner = object()
    memory = xp.cuda.UnownedMemory(pointer, 64, owner)
    array = xp.ndarray((8,), np.float64, xp.cuda.MemoryPointer(memory, 0))
    array[...] = 3
    host = np.zeros(8)
    runtime.memcpy(host.ctypes.data, pointer, 64, runtime.memcpyDeviceToHost)
    assert host.tolist() == [3.0] * 8
    runtime.memsetAsync(pointer, 0, 8, 0)
    assert array[0].item() == 0
    with pytest.raises(runtime.CUDARuntimeError, match="invalid argument"):
        runtime.memcpy(host.ctypes.data, pointer, 64, runtime.memcpyHostToDevice)
    with pytest.raises(runtime.CUDARuntimeError, match="invalid argument"):
        runtime.memcpy(host.ctypes.data, pointer, 128, runtime.memcpyDeviceToHost)
    runtime.free(pointer)
    with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
        array += 1
    with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
        runtime.free(pointer)


def test_mpi_gets_no_memory_that_a_stream_still_writes(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Buffer:
        """mpi4py's, as far as needed: importing that would start MPI here."""

        @staticmethod
        def fromaddress(address: int, nbytes: int, readonly: bool = False) -> tuple[int, int]:
            return address, nbytes

    module = types.SimpleNamespace(buffer=Buffer)
    simulator._mpi.take_away()
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)  # type: ignore[arg-type]
    simulator._mpi.put_in_place()
    try:
        array = xp.zeros(4)
        with pytest.raises(simulator.RaceError, match="may still be writing"):
            module.buffer.fromaddress(array.data.ptr, array.nbytes)
        xp.cuda.Device().synchronize()
        assert module.buffer.fromaddress(array.data.ptr, array.nbytes) == (array.data.ptr, 32)
    finally:
        simulator._mpi.take_away()
    assert module.buffer is Buffer


CHILD = """
import sys
import numpy as np
import tests.cuda_simulator as simulator
simulator.install()
import cupy
runtime = cupy.cuda.runtime
handle = bytes.fromhex(sys.stdin.readline())
event = runtime.ipcOpenEventHandle(bytes.fromhex(sys.stdin.readline()))
pointer = runtime.ipcOpenMemHandle(handle)
assert runtime.ipcOpenMemHandle(handle) == pointer
array = cupy.ndarray((8,), np.float64, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, 64, None), 0))
for line in sys.stdin:
    try:
        eval(line, globals())
    except (RuntimeError, AssertionError) as error:
        print(error, flush=True)
    else:
        print(array.get().tolist() if array is not None else "closed", flush=True)
simulator.races.found.clear()
"""


@contextmanager
def child(xp: Any, handle: bytes, event: bytes) -> Iterator[Any]:
    """`ask(expression)` of another process that has opened an array's memory, and an event, gives the values."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{handle.hex()}\n{event.hex()}\n")

        def ask(expression: str) -> str:
            process.stdin.write(expression + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
        assert process.wait(30) == 0


def test_memory_in_another_process(xp: Any) -> None:
    runtime = xp.cuda.runtime
    memory = xp.cuda.Memory(64)
    array = xp.ndarray((8,), np.float64, xp.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    handle = runtime.ipcGetMemHandle(memory.ptr)
    assert len(handle) == 64
    assert runtime.ipcGetMemHandle(memory.ptr + 8) == handle
    with pytest.raises(runtime.CUDARuntimeError, match="invalid device context"):
        runtime.ipcOpenMemHandle(handle)
    event = xp.cuda.Event(disable_timing=True, interprocess=True)
    with pytest.raises(runtime.CUDARuntimeError, match="invalid resource handle"):
        runtime.ipcGetEventHandle(xp.cuda.Event(disable_timing=True).ptr)
    null = "cupy.cuda.Stream.null"
    with child(xp, handle, runtime.ipcGetEventHandle(event.ptr)) as ask:
        assert "no event orders them" in ask("array.__iadd__(1)")
        event.record()
        assert "no event orders them" in ask("array.__iadd__(1)")
        assert ask("runtime.streamWaitEvent(0, event)") == str([1.0] * 8)
        assert ask("array.__iadd__(1)") == str([2.0] * 8)  # whose host has waited for it, reading the answer
        array += 1
        xp.cuda.Device().synchronize()
        assert ask(f"[array.__iadd__(1), runtime.eventRecord(event, 0), {null}.synchronize()]") == str([4.0] * 8)
        assert array.get().tolist() == [4.0] * 8
        for _ in range(2):
            ask("runtime.ipcCloseMemHandle(pointer)")
        assert "illegal memory access" in ask("array.__iadd__(1)")
        del array, memory
        assert "cudaErrorMapBufferObjectFailed" in ask("runtime.ipcOpenMemHandle(handle)")
