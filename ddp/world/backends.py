"""What there is to communicate with, as PyTorch's scripts ask for it: MPI, whatever it is called."""

import importlib.util
import os
from enum import Enum

import engine
from ddp.transport import TRANSPORTS
from engine.memory.backend import find_nccl

# Scripts name PyTorch's libraries; MPI does their work here.
_BACKENDS = ("mpi", "gloo", "nccl", *TRANSPORTS)


def check_backend(name: str, backend: str | None) -> None:
    """Raises ValueError, of function `name`, unless all parts of `backend` ("cpu:gloo,cuda:nccl") mean MPI here."""
    asked = () if backend is None else [part.rpartition(":")[2] for part in backend.lower().split(",")]
    if any(part not in _BACKENDS for part in asked):
        raise ValueError(
            f"{name}: unknown backend {backend!r}; "
            "this package communicates over MPI: leave it out or pass 'mpi' ('gloo' and 'nccl' mean the same)"
        )


def is_available() -> bool:
    """Always true: without MPI there is a world of one."""
    return True


def is_backend_available(backend: str) -> bool:
    """Whether `init_process_group` takes this name."""
    return backend.lower() in _BACKENDS


def is_mpi_available() -> bool:
    """Whether mpi4py is installed, without which there is a world of one."""
    return importlib.util.find_spec("mpi4py") is not None


def is_gloo_available() -> bool:
    """Always true: MPI does, under that name, what gloo does for tensors in host memory."""
    return True


def is_nccl_available() -> bool:
    """Whether gradients on GPUs can travel by NCCL (`ddp.transport.cuda`); the name "nccl" is accepted anyway."""
    try:
        return find_nccl() is not None
    except RuntimeError:  # no CuPy, or no GPU
        return False


def is_torchelastic_launched() -> bool:
    """Always false: `ddprun` or another launcher of MPI has started this process, or nobody."""
    return False


class Backend(str):
    """PyTorch's names of backends; `Backend("GLOO")` is "gloo". Whichever is asked for, MPI does its work here."""

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"

    def __new__(cls, name: str) -> "Backend":
        if not isinstance(name, str):
            raise ValueError(f"Backend: expected a name, got {type(name).__name__}")
        return super().__new__(cls, name.lower())


def get_default_backend_for_device(device: "str | engine.device") -> str:
    """ "gloo" for "cpu", "nccl" for "cuda", as scripts pass them on to `init_process_group`.

    Raises ValueError for another device.
    """
    kind = engine.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"Default backend not registered for device : {device}; expected 'cpu' or 'cuda'")
    return Backend.GLOO if kind == "cpu" else Backend.NCCL


class DebugLevel(Enum):
    """How much PyTorch checks and tells; here the checks of DETAIL are always on."""

    OFF = 0
    INFO = 1
    DETAIL = 2


def get_debug_level() -> DebugLevel:
    """What TORCH_DISTRIBUTED_DEBUG asks for: OFF where it is not set. Raises ValueError for another word."""
    asked = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if asked not in DebugLevel.__members__:
        raise ValueError(
            f"The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL, got {asked!r}; unset it or pick one"
        )
    return DebugLevel[asked]
