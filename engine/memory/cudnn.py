"""cuDNN by NVIDIA's frontend for Python, where that is installed (`pip install 'allstride[cudnn12]'`, or cudnn13): one
handle a thread and GPU, and graphs of one operation that are built once for each layout.

`engine.backends.cudnn.enabled` is the switch. Only what gives the same bits from run to run is taken, and what it has
no such plan for is left to the kernels of this package.

Sources: cuDNN's "Graph API" and the frontend's "Attention" and "Convolutions".
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from engine.compat import cudnn as switches
from engine.memory import backend

Array = Any

_NAMES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
_VERSIONS = (1, 18), (1, 27)  # of the frontend: from, and before; as in pyproject.toml
_OLDEST = 91900  # of the library: replayed graphs with 9.14's attention accessed memory that was not theirs (H200)
ALIGNMENT = 16  # bytes, of the arrays that an operation is given

attends = True  # whether attention may be cuDNN's: `engine.nn.attention.sdpa_kernel` changes it
_local = threading.local()  # .handles: GPU -> [handle, address of its stream]


class Operation:
    """A graph that is built: a call with its arrays, in the order in which they were described, queues it on the
    current stream.
    """

    def __init__(self, graph: Any, count: int) -> None:
        self._execute = graph.execute
        self._uids = range(1, count + 1)
        self._workspace = int(graph.get_workspace_size())

    def __call__(self, *arrays: Array) -> None:
        workspace = backend.device_empty((self._workspace,), np.dtype(np.uint8))
        addresses = {uid: array.data.ptr for uid, array in zip(self._uids, arrays, strict=True)}
        self._execute(addresses, workspace.data.ptr, handle=handle())


@cache
def frontend() -> Any:
    """The module; None where it, or the library that it loads, is not installed, and for versions nobody has tried."""
    module, library = _installed()
    return module if module is not None and _tried(module.__version__, library) else None


def not_tried() -> str:
    """The versions that are installed and not used, since nobody has tried them here; empty where there are none."""
    module, library = _installed()
    if module is None or _tried(module.__version__, library):
        return ""
    return f"cuDNN {library} with frontend {module.__version__}"


def _installed() -> tuple[Any, int]:
    try:
        import cudnn

        return cudnn, int(cudnn.backend_version())
    except (ImportError, RuntimeError, AttributeError):  # the last: a folder of that name
        return None, 0


def _tried(version: str, library: int) -> bool:
    return _VERSIONS[0] <= tuple(map(int, version.split(".")[:2])) < _VERSIONS[1] and library >= _OLDEST


def is_available() -> bool:
    """Whether cuDNN and its frontend are installed, and a GPU is there."""
    try:
        backend.require_cupy()
    except RuntimeError:
        return False
    return frontend() is not None


def serves() -> bool:
    """Whether it is installed and switched on."""
    return switches.enabled and frontend() is not None


def is_acceptable(tensor: Any) -> bool:
    """Whether it may serve a tensor: it is there and switched on, and the tensor on a GPU."""
    return bool(tensor.is_cuda and serves())


def version() -> int | None:
    """cuDNN's version, 90100 for 9.1.0; None where it is not installed."""
    module = frontend()
    return None if module is None else int(module.backend_version())


def handle() -> Any:
    """This thread's handle for the GPU in use, on its current stream."""
    cuda = backend.require_cupy().cuda
    gpu, stream = cuda.runtime.getDevice(), cuda.get_current_stream().ptr
    handles = _local.__dict__.setdefault("handles", {})
    if gpu not in handles:
        handles[gpu] = [frontend().create_handle(), -1]
    found = handles[gpu]
    if found[1] != stream:
        frontend().set_stream(handle=found[0], stream=stream)
        found[1] = stream
    return found[0]


def data_type(dtype: np.dtype) -> Any:
    """The frontend's name of a dtype; None for one that is left to other kernels."""
    name = _NAMES.get(dtype.name)
    return None if name is None else getattr(frontend().data_type, name)


def build(describe: Callable[[Any, Any], Sequence[Any]], dtype: np.dtype, exact: bool) -> Operation | None:
    """The operation that `describe` adds to a graph of the frontend, given that and the module; it returns the tensors
    in and out in the order of `Operation`'s arguments. exact: products of float32 are not rounded to TF32. None where
    cuDNN has no plan for it that gives the same bits in every run.
    """
    module = frontend()
    single = module.data_type.FLOAT
    graph = module.pygraph(
        io_data_type=data_type(dtype), intermediate_data_type=single, compute_data_type=single, handle=handle()
    )
    tensors = describe(module, graph)
    for uid, tensor in enumerate(tensors, 1):
        tensor.set_uid(uid)
    notes = module.numerical_note
    unwanted = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
    if exact:
        unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    try:
        graph.validate()
        graph.build_operation_graph()
    except module.cudnnGraphNotSupportedError:
        return None
    except RuntimeError as error:  # the frontend was made for a later cuDNN than the one it found
        _warn_of_versions(str(error))
        return None
    try:
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(unwanted)
        graph.check_support()
        graph.build_plans()
    except (module.cudnnGraphNotSupportedError, RuntimeError):  # the latter where its heuristics know of no plan
        return None
    return Operation(graph, len(tensors))


@cache
def _warn_of_versions(error: str) -> None:
    """Once for each error: the library does not know what its frontend asks it for."""
    warnings.warn(
        f"cuDNN {version()} does not take what its frontend {frontend().__version__} asks for, and the kernels of "
        f"allstride run instead; install a later cuDNN (pip install -U 'allstride[cudnn13]', or cudnn12), or set "
        f"engine.backends.cudnn.enabled = False. cuDNN's error: {error}",
        RuntimeWarning,
        stacklevel=2,
    )


def described(graph: Any, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Any:
    """An input of a graph, by its shape and its strides in bytes."""
    return graph.tensor(dim=list(shape), stride=[step // itemsize for step in strides])


def delivered(tensor: Any, shape: Sequence[int], strides: Sequence[int], itemsize: int, kind: Any) -> Any:
    """The same of a result of an operation."""
    steps = [step // itemsize for step in strides]
    return tensor.set_output(True).set_dim(list(shape)).set_stride(steps).set_data_type(kind)


def _forget(cupy: Any) -> None:
    """All handles: CuPy was exchanged."""
    global _local
    _local = threading.local()


backend.when_found.append(_forget)
