"""Makes the driver's libraries, once for a text of theirs and a CuPy: in `folder()`, under the hash of what they come
from.

CuPy's wheel looks libcuda, NVRTC and cuBLAS up by name as it starts; the CUDA runtime it has linked statically into one
module, `cupy_backends.cuda.api.runtime`. That module is compiled anew, from the same text: `runtime.pyx` of CuPy's
source distribution, which pip brings.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

HERE = Path(__file__).parent
SOURCES = ("execution", "memory", "streams", "pinned", "processes", "runtime", "driver", "nvrtc", "library")
FLAGS = ("-O2", "-fPIC", "-std=c++17", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
# What stands for what CuPy looks up by name: libraries without code of their own, over the one that has it all.
# The last three only have to be there before CuPy loads cuBLAS and cuSOLVER.
NAMES = ("libcuda.so.1", "libcudart.so.12", "libnvrtc.so.12")
NAMES += ("libcublasLt.so.12", "libnvJitLink.so.12", "libcusparse.so.12")


class Library(NamedTuple):
    """One with functions of its own: its sources, and CuPy's modules that want it. What they want and the sources have
    not is answered with `unsupported`, and is a problem."""

    name: str
    prefix: str
    sources: Sequence[str]
    modules: Sequence[str]
    unsupported: int


_MODULES = "cupy_backends/cuda/libs"
LIBRARIES = (
    Library("libcublas.so.12", "cublas", ("cublas", "cublas_lu"), (f"{_MODULES}/cublas",), 15),
    Library("libcusolver.so.11", "cusolver", ("cusolver",), (f"{_MODULES}/cusolver", "cupyx/_cusolver"), 9),
    Library("libcufft.so.11", "cufft", ("cufft",), ("cupy/cuda/cufft",), 16),
)
WANTED = ("cupy-cuda12x", "cython", "nvidia-cuda-runtime-cu12", "setuptools>=77")  # in `pyproject.toml`'s words


def why_not() -> str | None:
    """What is missing for the driver; None where it can be made."""
    if shutil.which("g++") is None:
        return "the CPU driver for CUDA needs g++"
    missing = [requirement for requirement in WANTED if not _is_installed(requirement)]
    return f"the CPU driver for CUDA needs {', '.join(missing)}: pip install -e '.[cuda-driver]'" if missing else None


def _is_installed(requirement: str) -> bool:
    wanted = Requirement(requirement)
    try:
        return importlib.metadata.version(wanted.name) in wanted.specifier
    except importlib.metadata.PackageNotFoundError:
        return False


@cache
def folder() -> Path:
    """Where compiled things are kept: `ALLSTRIDE_KERNELS`, by default a folder of the user's among temporary files."""
    default = Path(tempfile.gettempdir(), f"allstride-kernels-{os.getuid()}")
    found = Path(os.environ.get("ALLSTRIDE_KERNELS") or default)
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found


def site_packages() -> Path:
    """The folder in which CuPy and NVIDIA's headers are installed."""
    found = find_spec("cupy_backends")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def headers() -> list[str]:
    """NVIDIA's, as options of the compiler."""
    return [f"-I{HERE / 'toolkit'}", f"-I{site_packages() / 'nvidia/cuda_runtime/include'}"]


@cache
def libraries() -> Path:
    """The folder with the driver's libraries, made where it is not there yet.

    Raises: RuntimeError with the compiler's or pip's words.
    """
    texts = [path.read_bytes() for path in sorted((HERE / "source").iterdir())]
    version = importlib.metadata.version("cupy-cuda12x").encode()
    key = hashlib.sha256(b"\0".join([*texts, version, sys.version.encode(), Path(__file__).read_bytes()]))
    made = folder() / f"driver-{key.hexdigest()[:24]}"
    with open(folder() / "driver.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=folder()) as scratch:
                _make(Path(scratch))
                shutil.copytree(scratch, made.with_suffix(".part"), ignore=shutil.ignore_patterns("work"))
                os.rename(made.with_suffix(".part"), made)
    return made


def _make(place: Path) -> None:
    work = place / "work"
    work.mkdir()
    optimised = [name for library in LIBRARIES for name in library.sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        of_cupy = pool.submit(_compile_runtime, work)  # the longest, with a download: so it comes first
        of_libraries = pool.map(lambda name: _compile(HERE / f"source/{name}.cpp", work, "-O3"), optimised)
        objects = list(pool.map(lambda name: _compile(HERE / f"source/{name}.cpp", work), SOURCES))
        compiled = dict(zip(optimised, of_libraries, strict=True))
        runtime = of_cupy.result()
    known = _symbols(objects, defined=True)
    rest = _stubs("cudart", sorted(_wanted(runtime, "cuda") - known), 801, work)  # cudaErrorNotSupported
    core = place / "libcpucuda.so"
    _call("g++", "-shared", "-Wl,-soname,libcpucuda.so", *map(str, objects), str(rest), "-o", str(core), "-ldl")
    beside = ("-Wl,-rpath,$ORIGIN", f"-L{place}", "-Wl,--no-as-needed", "-lcpucuda")
    for name in NAMES:
        _call("g++", "-shared", f"-Wl,-soname,{name}", "-o", str(place / name), *beside)
    for library in LIBRARIES:
        _link_library(library, [compiled[name] for name in library.sources], place, work, beside)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _call("g++", "-shared", str(runtime), "-o", str(place / f"runtime{suffix}"), *beside)


def _link_library(library: Library, objects: Sequence[Path], place: Path, work: Path, beside: Sequence[str]) -> None:
    wheels = [next(site_packages().glob(f"{module}.*.so")) for module in library.modules]
    wanted = set().union(*(_wanted(wheel, library.prefix) for wheel in wheels))
    missing = sorted(wanted - _symbols(objects, defined=True))
    rest = _stubs(library.prefix, missing, library.unsupported, work, loud=True)
    versions = work / f"{library.prefix}.versions"
    versions.write_text(f"{library.name} {{ global: *; }};")
    named = (f"-Wl,-soname,{library.name}", f"-Wl,--version-script={versions}")
    _call("g++", "-shared", *named, *map(str, objects), str(rest), "-o", str(place / library.name), *beside)


def _compile(source: Path, work: Path, *more: str) -> Path:
    made = work / f"{source.stem}.o"
    _call("g++", *FLAGS, *more, *headers(), f"-I{HERE / 'source'}", "-c", str(source), "-o", str(made))
    return made


def _compile_runtime(work: Path) -> Path:
    """CuPy's module over the CUDA runtime, as an object file, which is kept."""
    text = _cupy_sources()
    kept = text / f"runtime-{sys.implementation.cache_tag}.o"
    if not kept.exists():
        place = text / "cupy_backends/cuda/api"
        constants = "CUPY_CUDA_VERSION=12090,CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=0"
        made = work / "cupy_runtime.cpp"
        _call(
            *(sys.executable, "-m", "cython", "-3", "--cplus", "-E", constants, f"-I{text}"),
            *(str(place / "runtime.pyx"), "-o", str(made)),
        )
        python = sysconfig.get_paths()["include"]
        os.replace(_compile(made, work, "-O1", f"-I{place}", f"-I{python}"), kept)
    return kept


def _cupy_sources() -> Path:
    """CuPy's source distribution of the installed version, unpacked."""
    version = importlib.metadata.version("cupy-cuda12x")
    place = folder() / f"cupy-{version}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            _call(
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "cupy"),
                *("--no-build-isolation", f"cupy=={version}", "--dest", scratch),
                CUPY_INSTALL_USE_STUB="1",  # pip wants its metadata, for which it looks for CUDA else
            )
            with tarfile.open(next(Path(scratch).glob("cupy-*.tar.gz"))) as archive:
                archive.extractall(scratch, filter="data")
            os.rename(Path(scratch, f"cupy-{version}"), place)
    return place


def _stubs(name: str, functions: Sequence[str], status: int, work: Path, loud: bool = False) -> Path:
    """Functions that answer that they are not supported; where that is to be `loud` it fails the test as well."""
    source = work / f"{name}_rest.cpp"
    said = "driver_has_not(__func__);" if loud else ""
    lines = [f'extern "C" int {each}() {{ {said} return {status}; }}' for each in functions]
    source.write_text("\n".join(['extern "C" void driver_has_not(const char* function);', *lines]))
    return _compile(source, work)


def _symbols(files: Iterable[Path], defined: bool) -> set[str]:
    which = "--defined-only" if defined else "--undefined-only"
    found = subprocess.run(["nm", which, *map(str, files)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in found.splitlines() if line and not line.endswith(":")}


def _wanted(file: Path, prefix: str) -> set[str]:
    found = _symbols([file], defined=False)
    if not found:
        found = set(
            subprocess.run(["nm", "-D", "-u", str(file)], capture_output=True, text=True, check=True).stdout.split()
        )
    return {name.split("@")[0] for name in found if name.startswith(prefix)}


def _call(*command: str, **environment: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-8000:]}{done.stdout[-2000:]}")
