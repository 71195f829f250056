"""The stand-in modules: `cupy`, its submodules and `cupyx`, each with exactly the names of the real ones."""

import sys
from types import ModuleType
from typing import Any

import numpy as np

from tests.cuda_simulator import (
    api,
    arrays,
    creation,
    cublas,
    functions,
    graphs,
    handles,
    linalg,
    memory,
    methods,
    pinned,
    pools,
    random,
    raw,
    runtime,
    special,
    streams,
    ufuncs,
)

_cupy: ModuleType | None = None
_cupyx: ModuleType | None = None
_installed: dict[str, ModuleType] = {}  # of the real CuPy, while the stand-in is in its place


def cupy() -> Any:
    """The stand-in for `cupy`."""
    global _cupy
    if _cupy is None:
        _cupy = _build()
    return _cupy


class _Module(ModuleType):
    """A module whose names are those of the snapshot: others raise AttributeError; one that the real module has but
    the simulated device does not raises NotImplementedError, which says what to add."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        entry = api.members(self.__name__).get(name) if self.__name__ in api.snapshot()["modules"] else None
        if entry is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if "value" in entry:
            return entry["value"]
        raise NotImplementedError(f"the simulated device has no {self.__name__}.{name}")


def _module(name: str, **members: Any) -> Any:
    built = _Module(name)
    built.__path__ = []  # type: ignore[attr-defined]
    known = api.snapshot()["modules"].get(name)
    for key, value in members.items():
        if known is None or key in known or key.startswith("_"):
            setattr(built, key, value)
    return built


def _numpy_members(owner: str, source: Any) -> dict[str, Any]:
    """CuPy's functions and constants that have NumPy's names."""
    found: dict[str, Any] = {}
    for name, entry in api.members(owner).items():
        theirs = getattr(source, name, None)
        if entry["kind"] == "ufunc":
            if callable(theirs):
                found[name] = ufuncs.ufunc(name, entry["types"], entry["nin"])
        elif entry["kind"] == "constant" and "value" in entry:
            value = entry["value"]
            found[name] = float(value) if isinstance(value, str) else value
        elif entry["kind"] == "function" and callable(theirs):
            found[name] = functions.function(owner, name, theirs)
        elif isinstance(theirs, type) or name in ("newaxis", "s_", "index_exp"):
            found[name] = theirs
    return found


def _build() -> Any:
    cuda_runtime = _module("cupy.cuda.runtime", **_public(runtime))
    cuda_memory = _module("cupy.cuda.memory", **{**_public(memory), **_public(pools)})
    cuda_stream = _module("cupy.cuda.stream", **_public(handles))
    device = {"get_device_id": streams.current_device, "get_cublas_handle": lambda: handles.Device().cublas_handle}
    members = {
        "runtime": cuda_runtime,
        "memory": cuda_memory,
        "stream": cuda_stream,
        "cublas": _module("cupy.cuda.cublas", **_public(cublas)),
        "device": _module("cupy.cuda.device", Device=handles.Device, **device),
        "pinned_memory": _module("cupy.cuda.pinned_memory", is_memory_pinned=_is_pinned, **_public(pinned)),
        "nvtx": _module("cupy.cuda.nvtx", **dict.fromkeys(("Mark", "RangePush", "RangePop"), _remark)),
        "nvrtc": _module("cupy.cuda.nvrtc", getVersion=lambda: (12, 9)),
        "function": _module("cupy.cuda.function", CPointer=raw.CPointer),
        "Graph": graphs.Graph,
        "Function": raw.Function,
        "is_available": lambda: streams.device_count() > 0,
        **device,
        "get_local_runtime_version": runtime.runtimeGetVersion,
    }
    cuda = _module(
        "cupy.cuda",
        **{**_public(memory), **_public(pools), **_public(pinned), **_public(handles), **members},
    )
    drawn = {name: _drawn(name) for name in api.members("cupy.random") if hasattr(np.random.RandomState, name)}
    drawn["rand"] = lambda *size, dtype=float: random._state.random_sample(size).astype(dtype, copy=False)
    drawn["randn"] = lambda *size, dtype=float: random._state.standard_normal(size).astype(dtype, copy=False)
    members = {
        "cuda": cuda,
        "random": _module("cupy.random", **{**drawn, **_public(random)}),
        "linalg": _module(
            "cupy.linalg",
            **{
                name: linalg.function(name, getattr(np.linalg, name))
                for name, entry in api.members("cupy.linalg").items()
                if hasattr(np.linalg, name) and entry["kind"] == "function"
            },
        ),
        "lib": _module("cupy.lib", stride_tricks=_module("cupy.lib.stride_tricks", as_strided=functions.as_strided)),
        "exceptions": _module("cupy.exceptions", **_public(np.exceptions)),
        "ogrid": functions.Grid(np.ogrid, "ogrid"),
        "mgrid": functions.Grid(np.mgrid, "mgrid"),
        "r_": functions.Joined(np.r_, "r_"),
        "c_": functions.Joined(np.c_, "c_"),
        "fft": _module("cupy.fft", **_numpy_members("cupy.fft", np.fft)),
        "ndarray": arrays.ndarray,
        "ufunc": ufuncs.ufunc,
        "RawModule": raw.RawModule,
        "RawKernel": raw.RawKernel,
        "get_default_memory_pool": lambda: pools.default_pool(),
        "get_default_pinned_memory_pool": lambda: pinned.default_pinned_pool(),
        "is_available": lambda: streams.device_count() > 0,
    }
    built = _module("cupy", **{**_numpy_members("cupy", np), **_public(functions), **_public(creation), **members})
    built.__version__ = api.snapshot()["version"]
    methods.add_to(arrays.ndarray, built)
    return built


def _is_pinned(data: int) -> bool:
    return pinned.find(data) is not None


def _remark(*message: str) -> None:
    """A mark for a profiler that is not there."""


def _drawn(name: str) -> Any:
    return lambda *args, **kwargs: getattr(random._state, name)(*args, **kwargs)


def _public(source: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(source).items() if not name.startswith("_")}


def _build_cupyx() -> Any:
    global _cupyx

    def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
        array = runtime.pinned_array(shape, dtype, order)
        array[...] = 0
        return array

    _cupyx = _module(
        "cupyx",
        scipy=_module("cupyx.scipy", special=_module("cupyx.scipy.special", **special.functions())),
        rsqrt=functions.rsqrt,
        errstate=linalg.errstate,
        geterr=linalg.geterr,
        seterr=linalg.seterr,
        scatter_add=lambda a, slices, value: ufuncs.scatter(np.add, "scatter_add", a, slices, value),
        scatter_max=lambda a, slices, value: ufuncs.scatter(np.maximum, "scatter_max", a, slices, value),
        scatter_min=lambda a, slices, value: ufuncs.scatter(np.minimum, "scatter_min", a, slices, value),
        empty_pinned=runtime.pinned_array,
        zeros_pinned=zeros_pinned,
        empty_like_pinned=lambda a, dtype=None, **_: runtime.pinned_array(a.shape, a.dtype if dtype is None else dtype),
        zeros_like_pinned=lambda a, dtype=None, **_: zeros_pinned(a.shape, a.dtype if dtype is None else dtype),
    )
    return _cupyx


def put_in_place() -> None:
    """Makes `import cupy` give the stand-in."""
    built = cupy()
    for name in [each for each in sys.modules if each.partition(".")[0] in ("cupy", "cupyx")]:
        found = sys.modules.pop(name)
        if type(found) is not _Module:  # isinstance would load a lazy one
            _installed[name] = found
    sys.modules["cupy"] = built
    for name in ("cuda", "random", "linalg", "fft", "lib", "exceptions"):
        sys.modules[f"cupy.{name}"] = getattr(built, name)
    for name in ("runtime", "memory", "stream", "device", "pinned_memory"):
        sys.modules[f"cupy.cuda.{name}"] = getattr(built.cuda, name)
    sys.modules["cupy.lib.stride_tricks"] = built.lib.stride_tricks
    cupyx = _cupyx or _build_cupyx()
    sys.modules["cupyx"] = cupyx
    sys.modules["cupyx.scipy"] = cupyx.scipy
    sys.modules["cupyx.scipy.special"] = cupyx.scipy.special


def take_away() -> None:
    """`import cupy` finds what is installed again."""
    for name in list(sys.modules):
        if type(sys.modules[name]) is _Module:
            del sys.modules[name]
    sys.modules.update(_installed)
    _installed.clear()
