"""CUDA's error codes as CuPy raises them."""

CODES = {
    "cudaErrorInvalidValue": (1, "invalid argument"),
    "cudaErrorMemoryAllocation": (2, "out of memory"),
    "cudaErrorInvalidDevicePointer": (17, "invalid device pointer"),
    "cudaErrorInvalidDevice": (101, "invalid device ordinal"),
    "cudaErrorMapBufferObjectFailed": (205, "mapping of buffer object failed"),
    "cudaErrorDeviceUninitialized": (201, "invalid device context"),
    "cudaErrorInvalidResourceHandle": (400, "invalid resource handle"),
    "cudaErrorNotReady": (600, "device not ready"),
    "cudaErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "cudaErrorPeerAccessAlreadyEnabled": (704, "peer access is already enabled"),
    "cudaErrorHostMemoryAlreadyRegistered": (712, "part or all of the requested memory range is already mapped"),
    "cudaErrorHostMemoryNotRegistered": (
        713,
        "pointer does not correspond to a registered memory region",
    ),
    "cudaErrorStreamCaptureUnsupported": (900, "operation not permitted when stream is capturing"),
    "cudaErrorStreamCaptureInvalidated": (901, "operation failed due to a previous error during capture"),
    "cudaErrorStreamCaptureUnjoined": (904, "capturing stream has unjoined work"),
    "cudaErrorStreamCaptureIsolation": (905, "dependency created on uncaptured work in another stream"),
    "cudaErrorCapturedEvent": (907, "operation not permitted on an event last recorded in a capturing stream"),
    "cudaErrorStreamCaptureImplicit": (906, "the legacy stream would depend on a capturing blocking stream"),
}
_NAMES = {code: name for name, (code, _) in CODES.items()}


class CUDARuntimeError(RuntimeError):
    """`cupy.cuda.runtime.CUDARuntimeError(status)`; the text is "cudaErrorX: what it means"."""

    def __init__(self, status: int | str) -> None:
        name = status if isinstance(status, str) else _NAMES.get(status, "cudaErrorUnknown")
        self.status, text = CODES.get(name, (int(status) if isinstance(status, int) else 999, "unknown error"))
        super().__init__(f"{name}: {text}")


class CUDADriverError(RuntimeError):
    """`cupy.cuda.driver.CUDADriverError`: what a launch raises."""
