"""Writes `cupy_api.json`: which names the real CuPy has and which parameters they take, as far as it says so itself.

Run it where CuPy 14 is installed (no GPU is needed): `python tests/data/cupy_api.py`. The simulated device of
`tests/cuda_simulator` has these names only. Entries, by kind:

* "function": `parameters`, each as in a `def` without its default ("a", "axis=", "*", "/"); null where CuPy does not
  say (compiled code without a docstring);
* "ufunc": `types`, its loops in the order in which CuPy tries them, in NumPy's letters and E for bfloat16; `nin`;
* "class", "module", "property"; "constant" with its `value` where it is a number.
"""

import importlib
import inspect
import json
import re
import types
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
MODULES = (
    *("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.memory", "cupy.cuda.stream", "cupy.random", "cupy.linalg"),
    *("cupy.fft", "cupyx", "cupy.cuda.device", "cupy.cuda.pinned_memory", "cupy.exceptions", "cupy.lib"),
    *("cupy.lib.stride_tricks", "cupyx.scipy.special", "cupy.cuda.nvtx"),
)
# Names that a module makes when they are first asked for, and which `dir` does not list. Those of `cupy.cuda` need
# libraries that come with a GPU's driver or toolkit.
LAZY = {"cupy.cuda": ("cublas", "cufft", "curand", "cusolver", "cusparse"), "cupy.random": ("Generator",)}
CLASSES = (
    *("cupy.ndarray", "cupy.ufunc", "cupy.RawKernel", "cupy.RawModule", "cupy.random.Generator"),
    *("cupy.random.RandomState", "cupy.cuda.Device", "cupy.cuda.Event", "cupy.cuda.ExternalStream"),
    *("cupy.cuda.Graph", "cupy.cuda.Memory", "cupy.cuda.MemoryPointer", "cupy.cuda.MemoryPool", "cupy.cuda.Stream"),
    *("cupy.cuda.PinnedMemoryPointer", "cupy.cuda.PinnedMemoryPool", "cupy.cuda.UnownedMemory", "cupy.cuda.Function"),
)


def snapshot() -> dict[str, Any]:
    """{"version", "modules" and "classes": {name: {member: entry}}, "loops": {name: types}} of the installed CuPy."""
    import cupy

    modules = {name: _members(importlib.import_module(name)) for name in MODULES}
    for name, members in LAZY.items():
        kind = "class" if name == "cupy.random" else "module"
        modules[name] |= {member: {"kind": kind, "parameters": None} for member in members}
    classes = {}
    for name in CLASSES:
        module, _, member = name.rpartition(".")
        found = getattr(importlib.import_module(module), member)
        classes[name] = {"__init__": _call(found), **_members(found)}
        if name == "cupy.ndarray":
            classes[name] |= {each: {"kind": "function", "parameters": None} for each in _operators(found)}
    return {"version": cupy.__version__, "modules": modules, "classes": classes, "loops": _loops()}


def _loops() -> dict[str, list[str]]:
    """The types of functions that are ufuncs inside."""
    from cupy._core import _routines_math, core
    from cupy._sorting import search

    inside = {"where": search._where_ufunc, "clip": _routines_math.clip, "round": core._round_ufunc}
    return {name: list(found.types) for name, found in inside.items()}


def _operators(found: type) -> list[str]:
    """The special methods that say what an array can do in an expression."""
    plain = set(dir(object)) | {"__slots__", "__module__", "__pyx_vtable__"}
    return [name for name in dir(found) if name.startswith("__") and name not in plain]


def _members(owner: Any) -> dict[str, Any]:
    return {name: _entry(getattr(owner, name)) for name in dir(owner) if not name.startswith("_")}


def _entry(found: Any) -> dict[str, Any]:
    if isinstance(found, types.ModuleType):
        return {"kind": "module"}
    if type(found).__name__ == "ufunc":
        return {"kind": "ufunc", "types": list(found.types), "nin": found.nin}
    if isinstance(found, type):
        return {"kind": "class", **{key: value for key, value in _call(found).items() if key == "parameters"}}
    if callable(found):
        return _call(found)
    if isinstance(found, (bool, int, float)):
        value = found if found == found and abs(found) != float("inf") else str(float(found))
        return {"kind": "constant", "value": value}
    if inspect.isdatadescriptor(found):
        return {"kind": "property"}
    return {"kind": "constant"}


def _call(found: Any) -> dict[str, Any]:
    try:
        parameters: list[str] | None = _of_signature(inspect.signature(found))
    except (TypeError, ValueError):
        parameters = _of_text(getattr(found, "__doc__", None))
    else:
        if parameters == ["*args", "**kwargs"]:
            parameters = _of_text(getattr(found, "__doc__", None))
    return {"kind": "function", "parameters": parameters}


def _of_signature(signature: inspect.Signature) -> list[str]:
    found: list[str] = []
    seen_keyword = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            found.append(f"*{parameter.name}")
            seen_keyword = True
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            found.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not seen_keyword:
            found.append("*")
            seen_keyword = True
        found.append(parameter.name + ("" if parameter.default is parameter.empty else "="))
    return found


def _of_text(text: str | None) -> list[str] | None:
    """Parameters in the first line of a docstring as Cython writes it: `Class.name(self, size_t n, out=None)`."""
    match = re.match(r"[\w.]+\((.*)\)( -> .*)?$", (text or "").strip().split("\n")[0])
    if match is None:
        return None
    found = []
    for part in re.split(r",\s*(?![^\[(]*[\])])", match[1]):
        name, equals, _ = part.partition("=")
        name = name.split(":")[0].strip().split(" ")[-1].lstrip("&").replace("\\", "")
        if name and name not in ("self", "cls"):
            found.append(name + equals)
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(snapshot(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
