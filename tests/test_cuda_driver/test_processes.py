"""Device memory in other processes, and in MPI's hands: what nothing orders is found."""

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cuda_driver import control, mpi

ROOT = Path(__file__).parents[2]
CHILD = """
import sys
import numpy as np
from tests import cuda_driver
cuda_driver.load()
import cupy
runtime = cupy.cuda.runtime
handle = bytes.fromhex(sys.stdin.readline())
event = runtime.ipcOpenEventHandle(bytes.fromhex(sys.stdin.readline()))
pointer = runtime.ipcOpenMemHandle(handle)
assert runtime.ipcOpenMemHandle(handle) == pointer
array = cupy.ndarray((8,), np.float64, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, 64, None), 0))
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except RuntimeError as error:
        print(error, flush=True)
"""


@contextmanager
def _child(*handles: bytes) -> Iterator[Callable[[str], str]]:
    """`ask(expression)` of another process that has opened memory and an event: the value, or the error."""
    command = [sys.executable, "-c", CHILD]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{each.hex()}\n" for each in handles))

        def ask(expression: str) -> str:
            process.stdin.write(expression + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
        assert process.wait(30) == 0


def _array(cupy: ModuleType) -> tuple[Any, Any]:
    memory = cupy.cuda.Memory(64)
    array = cupy.ndarray((8,), np.float64, cupy.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    return memory, array


def test_memory_in_another_process(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    memory, array = _array(cupy)
    handle = runtime.ipcGetMemHandle(memory.ptr)
    assert runtime.ipcGetMemHandle(memory.ptr + 8) == handle
    with pytest.raises(runtime.CUDARuntimeError, match="invalid device context"):
        runtime.ipcOpenMemHandle(handle)
    event = cupy.cuda.Event(disable_timing=True, interprocess=True)
    with pytest.raises(runtime.CUDARuntimeError, match="invalid resource handle"):
        runtime.ipcGetEventHandle(cupy.cuda.Event(disable_timing=True).ptr)
    control.take_problems()
    exported = runtime.ipcGetEventHandle(event.ptr)
    add = "array.__iadd__(1)"  # its value is read by the host, which waits for it
    with _child(handle, exported) as ask:
        assert "no event orders them" in ask(add)
        event.record()
        assert "no event orders them" in ask(add)
        assert ask("runtime.streamWaitEvent(0, event)") == "None"
        assert ask(add) == str(np.full(8, 2.0))
        array += 1
        cupy.cuda.Device().synchronize()
        assert ask(add) == str(np.full(8, 4.0))
        for _ in range(2):
            assert ask("runtime.ipcCloseMemHandle(pointer)") == "None"
        assert "outside all allocations" in ask(add)
        del event
        assert "invalid resource handle" in ask(f"runtime.ipcOpenEventHandle(bytes.fromhex('{exported.hex()}'))")
        del array, memory
        assert "cudaErrorMapBufferObjectFailed" in ask("runtime.ipcOpenMemHandle(handle)")


def test_work_of_another_process_is_waited_for(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    memory, array = _array(cupy)
    event = cupy.cuda.Event(disable_timing=True, interprocess=True)
    cupy.cuda.Device().synchronize()
    with _child(runtime.ipcGetMemHandle(memory.ptr), runtime.ipcGetEventHandle(event.ptr)) as ask:
        ask("cupy.cuda.Stream(non_blocking=True).use()")
        ask("[array.__iadd__(1), None][1]")
        with pytest.raises(RuntimeError):
            array += 1
        (found,) = control.take_problems()
        assert "work of process" in found
        ask("runtime.eventRecord(event, cupy.cuda.get_current_stream().ptr)")
        cupy.cuda.get_current_stream().wait_event(event)
        array += 1
        assert array.get().tolist() == [3.0] * 8


def test_mpi_gets_no_memory_that_a_stream_still_writes(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Buffer:
        """mpi4py's, as far as needed: importing that would start MPI here."""

        @staticmethod
        def fromaddress(address: int, nbytes: int, readonly: bool = False) -> tuple[int, int]:
            return address, nbytes

    module = types.SimpleNamespace(buffer=Buffer)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)  # type: ignore[arg-type]
    with mpi.watched():
        array = cupy.zeros(4)
        with pytest.raises(RuntimeError, match="handed to MPI"):
            module.buffer.fromaddress(array.data.ptr, array.nbytes)
        assert "may still be writing" in control.take_problems()[0]
        cupy.cuda.Device().synchronize()
        assert module.buffer.fromaddress(array.data.ptr, array.nbytes) == (array.data.ptr, 32)
    assert module.buffer is Buffer


def test_faults_that_a_test_asks_for(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    with control.full():
        assert runtime.memGetInfo()[0] == 0
        with pytest.raises(runtime.CUDARuntimeError, match="out of memory"):
            runtime.malloc(64)
    runtime.free(runtime.malloc(64))
    with control.without_mapping(), pytest.raises(runtime.CUDARuntimeError, match="cudaErrorMapBufferObjectFailed"):
        runtime.ipcOpenMemHandle(bytes(64))
