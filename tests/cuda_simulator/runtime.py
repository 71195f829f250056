"""`cupy.cuda.runtime`: the calls of the CUDA runtime."""

import ctypes
from typing import Any

import numpy as np

from tests.cuda_simulator import execution, ipc, memory, pinned, streams
from tests.cuda_simulator.errors import CUDARuntimeError as CUDARuntimeError

ATTRIBUTES_BY_NAME = {
    "MaxThreadsPerBlock": 1024,
    "MaxBlockDimX": 1024,
    "MaxBlockDimY": 1024,
    "MaxBlockDimZ": 64,
    "MaxGridDimX": 2**31 - 1,
    "MaxGridDimY": 65535,
    "MaxGridDimZ": 65535,
    "MaxSharedMemoryPerBlock": 49152,
    "MaxSharedMemoryPerBlockOptin": 232448,
    "MaxSharedMemoryPerMultiprocessor": 233472,
    "WarpSize": 32,
    "MultiProcessorCount": 132,
    "ComputeCapabilityMajor": 9,
    "ComputeCapabilityMinor": 0,
    "MaxThreadsPerMultiProcessor": 2048,
    "L2CacheSize": 50 * 2**20,
    "ConcurrentKernels": 1,
    "UnifiedAddressing": 1,
    "CanMapHostMemory": 1,
    "CooperativeLaunch": 1,
    "AsyncEngineCount": 3,
    "Integrated": 0,
    "ComputeMode": 0,
    "MemoryPoolsSupported": 1,
    "ManagedMemory": 1,
    "HostRegisterSupported": 1,
    "PciBusId": 1,
    "MaxRegistersPerBlock": 65536,
}
_peers: set[tuple[int, int]] = set()


def reset() -> None:
    _peers.clear()


def getDeviceCount() -> int:
    return streams.device_count()


def getDevice() -> int:
    return streams.current_device()


def setDevice(device: int) -> None:
    streams.set_device(device)


def _known(device: int) -> None:
    if not 0 <= device < streams.device_count():
        raise CUDARuntimeError("cudaErrorInvalidDevice")


def getDeviceProperties(device: int) -> dict[str, Any]:
    _known(device)
    named = {name[0].lower() + name[1:]: value for name, value in ATTRIBUTES_BY_NAME.items()}
    return {
        **named,
        "name": b"Simulated device",
        "totalGlobalMem": memory.info(device)[1],
        "sharedMemPerBlock": 49152,
        "sharedMemPerBlockOptin": 232448,
        "sharedMemPerMultiprocessor": 233472,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiProcessor": 2048,
        "maxThreadsDim": (1024, 1024, 64),
        "maxGridSize": (2**31 - 1, 65535, 65535),
        "l2CacheSize": 50 * 2**20,
        "pciBusID": device + 1,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "uuid": bytes([0x51, device]) + bytes(14),
        "integrated": 0,
        "canMapHostMemory": 1,
        "computeMode": 0,
        "concurrentKernels": 1,
        "asyncEngineCount": 3,
        "unifiedAddressing": 1,
        "cooperativeLaunch": 1,
        "isMultiGpuBoard": 0,
        "clockRate": 1_000_000,
        "memoryClockRate": 1_000_000,
        "memoryBusWidth": 5120,
    }


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    _known(device)
    _known(peerDevice)
    return int(device != peerDevice)


def driverGetVersion() -> int:
    return 12090


def runtimeGetVersion() -> int:
    return 12090


def memGetInfo() -> tuple[int, int]:
    return memory.info(streams.current_device())


# Memory.


def malloc(size: int) -> int:
    return memory.malloc(size).start if size else 0


def free(ptr: int) -> None:
    if not ptr:
        return
    block = memory.find(ptr)
    if block is None or block.start != ptr:
        raise CUDARuntimeError("cudaErrorInvalidDevicePointer")
    streams.forbid_in_capture()
    memory.free(block)


_host: dict[int, Any] = {}


def hostRegister(ptr: int, size: int, flags: int) -> None:
    pinned.pin(ptr, size)


def hostUnregister(ptr: int) -> None:
    pinned.unpin(ptr)


def _check_kind(dst: int, src: int, kind: int) -> None:
    device = (memory.find(src) is not None, memory.find(dst) is not None)
    wanted = {0: (False, False), 1: (False, True), 2: (True, False), 3: (True, True)}.get(kind, device)
    if device != wanted:
        raise CUDARuntimeError("cudaErrorInvalidValue")


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    _check_kind(dst, src, kind)
    execution.copy_bytes(dst, src, size, None)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    _check_kind(dst, src, kind)
    execution.copy_bytes(dst, src, size, streams.queue_of(stream))


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    _check_kind(dst, src, kind)
    for row in range(height):
        execution.copy_bytes(dst + row * dpitch, src + row * spitch, width, streams.queue_of(stream))


def memset(ptr: int, value: int, size: int) -> None:
    execution.set_bytes(ptr, value, size, streams.queue_of(0))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    execution.set_bytes(ptr, value, size, streams.queue_of(stream))


# Streams and events.


def streamSynchronize(stream: int) -> None:
    streams.synchronize_queue(streams.queue_of(stream))


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    streams.wait(streams.queue_of(stream), streams.moment_of(event))


def eventDestroy(event: int) -> None:
    streams.destroy_moment(event)


def eventRecord(event: int, stream: int) -> None:
    streams.record(streams.moment_of(event), streams.queue_of(stream))


def eventSynchronize(event: int) -> None:
    streams.synchronize_moment(streams.moment_of(event))


def eventQuery(event: int) -> int:
    """A status, whatever it is: CuPy leaves it to its caller."""
    try:
        moment = streams.moment_of(event)
    except CUDARuntimeError as error:
        return error.status
    return 0 if streams.query_moment(moment) else 600


# Other processes.


def ipcGetMemHandle(devPtr: int) -> bytes:
    return ipc.get_memory(devPtr)


def ipcOpenMemHandle(handle: bytes, flags: int = 1) -> int:
    return ipc.open_memory(handle)


def ipcCloseMemHandle(devPtr: int) -> None:
    ipc.close_memory(devPtr)


def ipcGetEventHandle(event: int) -> bytes:
    return ipc.get_event(event)


def ipcOpenEventHandle(handle: bytes) -> int:
    return ipc.open_event(handle)


def pinned_array(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """`cupyx.empty_pinned`: a NumPy array in page-locked memory."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    held = pinned.alloc_pinned_memory(max(count * kind.itemsize, 1))
    flat = np.frombuffer(held, np.uint8, count * kind.itemsize).view(kind)
    assert ctypes.sizeof(held) >= flat.nbytes
    return flat.reshape(shape, order=order)  # type: ignore[call-overload]
