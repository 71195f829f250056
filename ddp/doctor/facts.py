"""What one rank knows of itself, without asking another."""

import os
import platform
import socket
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ddp.doctor import machine
from ddp.groups.group import resolve
from ddp.world import bootstrap
from engine import cuda
from engine.memory import cudnn
from engine.memory.backend import find_nccl, require_cupy
from engine.sharing import threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Small and picklable: every rank gets those of all."""

    rank: int
    host: str
    node: int
    """The lowest of the ranks with which it can share memory, as MPI has it."""
    kernel: str
    """`machine.kernel_identity`."""
    versions: dict[str, str]
    """Of what should be the same on all ranks, by name."""
    launcher: str
    thread_level: int
    """As `ddp.world.bootstrap.World`; -1 without MPI."""
    threads: int | None
    """Of matrix products; None where the BLAS does not say."""
    mask: frozenset[int]
    """CPUs that this rank may use."""
    usable: frozenset[int]
    """CPUs that it could be given."""
    cores: dict[int, int]
    """The core of each of these CPUs."""
    quota: float
    load: float
    """Processes of its host that run or want to, on average over the last minute."""
    use: machine.Use
    """Of the CPUs of its mask, while all ranks slept."""
    memory: int
    """Bytes available to all ranks of its host together."""
    shared: float
    """Bytes free in /dev/shm."""
    temporary: str
    cache: str
    kernels: int
    """In the cache, for this CPU and these versions."""
    gpu: str
    problems: dict[str, str]
    """What is wrong, by the name of the field above."""


def gather() -> Facts:
    """Collective: this rank's facts. Only after `init_process_group`."""
    world = bootstrap.default_world()
    node = 0
    if world.comm is not None:
        from mpi4py import MPI

        with resolve(None).meeting("the look at the hosts"):
            neighbours = world.comm.Split_type(MPI.COMM_TYPE_SHARED)
            node = neighbours.bcast(world.rank)
            neighbours.Free()
    launch = bootstrap.read_launch(os.environ)
    usable, mask = machine.usable_cpus(), frozenset(os.sched_getaffinity(0))
    if world.comm is not None:
        with resolve(None).meeting("the look at the hosts"):
            world.comm.Barrier()  # from here on all of them sleep
    use = machine.use_of(mask)
    problems: dict[str, str] = {}
    cache, kernels = _kernel_cache(problems)
    return Facts(
        rank=world.rank,
        host=socket.gethostname(),
        node=node,
        kernel=machine.kernel_identity(),
        versions=_versions(world.comm is not None),
        launcher=launch.launcher if launch else "",
        thread_level=-1 if world.comm is None else world.thread_level,
        threads=_threads(problems),
        mask=mask,
        usable=usable,
        cores={cpu: machine.core_of(cpu) for cpu in usable | mask},
        quota=machine.cpu_quota(),
        load=os.getloadavg()[0],
        use=use,
        memory=machine.available_memory(),
        shared=machine.free_shared_memory(),
        temporary=_temporary(problems),
        cache=cache,
        kernels=kernels,
        gpu=_gpu(problems),
        problems=problems,
    )


def _versions(with_mpi: bool) -> dict[str, str]:
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    found = {
        "allstride": f"{_installed('allstride')}, {Path(__file__).parents[2]}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "Numba": _installed("numba"),
        "mpi4py": _installed("mpi4py"),
        "MPI": "none",
        "CPU": machine.cpu_model(),
    }
    if with_mpi:
        from mpi4py import MPI

        said = MPI.Get_library_version().strip("\0\n").splitlines()[0].partition(",")[0]
        path = machine.loaded_library("libmpi")
        found["MPI"] = " ".join(said.split()) + (f", {path}" if path else "")
    return found


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path
        return "not installed"


def _threads(problems: dict[str, str]) -> int | None:
    try:
        return threads.get_num_threads()
    except RuntimeError as error:
        problems["threads"] = str(error)
        return None


def _temporary(problems: dict[str, str]) -> str:
    try:
        return tempfile.gettempdir()  # one in which it has written a file
    except FileNotFoundError as error:
        problems["temporary"] = str(error)
        return ""


def _kernel_cache(problems: dict[str, str]) -> tuple[str, int]:
    """The folder, and how many compiled kernels are in it."""
    from engine.kernels.cache import cache_directory

    try:
        folder = cache_directory()
        there = next(place for place in (folder, *folder.parents) if place.is_dir())
        kernels = len([path for path in folder.glob("*") if not path.name.startswith(".")])
    except (RuntimeError, OSError) as error:
        problems["cache"] = str(error)
        return "", 0
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        problems["cache"] = f"{there}: {error.strerror}"
    return str(folder), kernels


def _gpu(problems: dict[str, str]) -> str:
    try:
        cuda.init()
    except RuntimeError as error:
        if machine.has_nvidia_gpu():
            problems["gpu"] = str(error)
        return ""
    cupy = require_cupy()
    runtime, (major, minor) = cupy.cuda.runtime, cuda.get_device_capability()
    nccl, found = find_nccl(), cudnn.version()
    parts = [
        f"{cuda.device_count()} of {cuda.get_device_name()}",
        f"compute capability {major}.{minor}",
        f"driver for CUDA {_release(runtime.driverGetVersion())}",
        f"CuPy {cupy.__version__} for CUDA {_release(runtime.runtimeGetVersion())}",
        "no NCCL" if nccl is None else f"NCCL {_three_numbers(nccl.get_version())}",
        "no cuDNN" if found is None else f"cuDNN {_three_numbers(found)}",
    ]
    if unused := cudnn.not_tried():
        parts[-1] = f"{unused}, which is not used: pip install -U 'allstride[cudnn13]' (or cudnn12) brings one that is"
    return ", ".join(parts)


def _three_numbers(version: int) -> str:
    """22503 as NCCL and cuDNN write it: 2.25.3."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def _release(version: int) -> str:
    """12090 as CUDA writes it: 12.9."""
    return f"{version // 1000}.{version % 1000 // 10}"
