"""What every rank runs: the user's script or module, and the report and prompt end of a rank that fails.

worker.py loads it, with nothing imported but the standard library.
"""

import atexit
import faulthandler
import fcntl
import importlib
import io
import os
import runpy
import sys
import termios
import time
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from launch.output import Output
    from launch.report import Report

# Set for each process by Open MPI, by the Hydra of MPICH and Intel MPI, and by Slurm's srun.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

ELASTIC = "ALLSTRIDE_ELASTIC"  # with how few ranks the job may go on; unset: with none less

MAX_FAILURES = "ALLSTRIDE_MAX_FAILURES"  # of how many ranks, N or N/SECONDS; unset: of any number

RESERVE = "ALLSTRIDE_RESERVE"  # how many processes more wait until a rank is lost

SPAWNED = "ALLSTRIDE_SPAWNED"  # set in a process that one of the job has started, to be in reserve

LOSSES = "ddp.losses"  # the module, where the script has imported it, that knows whether ranks may be lost

STAND_BY = "ddp.world.reserve"  # the module by which a process in reserve waits

NPROC = "ALLSTRIDE_NPROC"  # how many ranks there are

TORCH = "ALLSTRIDE_TORCH"  # set: `import torch` is answered by engine and ddp

_WORDS = 200  # characters of an error that others tell of

_output: "Output | None" = None  # where this process prints

_leave = os._exit  # itself: see `_tell_of_exits`

# The names that torchrun gives these numbers, which scripts written for it read.
_TORCHRUN = {
    "RANK": RANK_VARIABLES,
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}
# Where torchrun's ranks find each other. MPI's do so by themselves: nobody listens there.
_RENDEZVOUS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def main(
    connect: "Callable[[MutableMapping[str, str], str | None], Report | None]",
    join: Callable[[], None],
    open_output: "Callable[[MutableMapping[str, str], str], Output]",
) -> None:
    """Runs `sys.argv[1:]` as the interpreter would its own arguments; a rank that fails ends here, and all with it.

    connect: see `launch.report`. join: see `launch.place`. open_output: see `launch.output`.
    """
    global _output
    if SPAWNED in os.environ:  # to its MPI it is the only one of its world
        os.environ[RANK_VARIABLES[0]] = os.environ[NPROC]
    faulthandler.enable()  # a crash in native code shows the Python lines that led to it
    # Lines appear as they are printed, each in one piece: with PYTHONUNBUFFERED, which images like to set, Python would
    # send a line and its end apart, and the lines of two ranks would mix.
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.write_through:
            sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(line_buffering=True)
    if rank_number() not in (None, "0"):
        # As Open MPI does: Hydra gives these ranks a pipe in which nothing ever comes, nor an end.
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
    for name, value in _RENDEZVOUS.items():
        os.environ.setdefault(name, value)
    for name, sources in _TORCHRUN.items():
        known = [os.environ[source] for source in sources if source in os.environ]
        if known:
            os.environ[name] = known[0]
    waits = _is_in_reserve(os.environ)
    try:
        if not waits:
            _output = open_output(os.environ, rank_number() or "0")
        join()
        report = connect(os.environ, None if waits else rank_number() or "0")
    except OSError as error:
        _write(f"{_prefix()}{error}\n")
        _end(1, None)
    if report is not None:
        atexit.register(_finish, report)  # the first to be registered is the last to be called
        _tell_of_exits(report)
    _take_gpu(os.environ)
    module = sys.argv[1] == "-m"
    sys.argv = [unescape(word) for word in sys.argv[2 if module else 1 :]]
    target = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(target))
    try:
        if os.environ.get(TORCH):
            importlib.import_module("engine.torch")
        if waits:
            _stand_by(report)
            _output = open_output(os.environ, rank_number() or "0")
        if module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as request:
        code = _exit_code(request)
        if code != 0:
            _end(code, report, f"{code:08x}", f"sys.exit({request.code!r})")
        raise
    except BaseException as error:  # noqa: BLE001  nothing is swallowed: the rank reports it and ends
        interrupted = isinstance(error, KeyboardInterrupt)
        try:
            if interrupted and report is not None:
                report.ask("interrupted")  # of all ranks that a Ctrl-C has reached, one shows where it was
            _report(error)
        finally:
            _end(130 if interrupted else 1, report, _in_short(error), f"{type(error).__name__}: {error}")


def _finish(report: "Report") -> None:
    """The script has ended well. Where others were lost on the way, MPI would wait for them at its end."""
    losses = sys.modules.get(LOSSES)
    if losses is not None and losses.outside() is not None:
        os.kill(os.getpid(), 9)  # was to replace a rank, and never came to its first step
    report.say("finished")
    if losses is not None and losses.happened():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        _leave(0)


def _is_in_reserve(environ: MutableMapping[str, str]) -> bool:
    """Whether this process is none of the ranks, but is to replace one that is lost. What a script reads of the number
    of processes is the number of ranks then.
    """
    if RESERVE not in environ:
        return False
    environ["WORLD_SIZE"] = environ["LOCAL_WORLD_SIZE"] = environ[NPROC]
    return int(rank_number() or 0) >= int(environ[NPROC])


def _stand_by(report: "Report | None") -> None:
    """Returns when this process is to replace a rank; from then on it goes by its number."""

    def arrive() -> None:
        if report is not None:
            report.arrive(rank_number() or "0")

    importlib.import_module(STAND_BY).stand_by(os.environ, arrive)


def _tell_of_exits(report: "Report") -> None:
    """Has `os._exit(0)` after the end of MPI, by which scripts leave threads behind, count as the end that it is.

    Before it, nobody has seen this rank finish: the others may be waiting for it. Where they would go on without it,
    it is killed: of a rank that ends with a code Open MPI would make the end of the job. What the rank forks ends as it
    likes.
    """
    own = os.getpid()

    def _exit(status: int) -> NoReturn:
        mpi = sys.modules.get("mpi4py.MPI")
        if status == 0 and mpi is not None and mpi.Is_finalized():
            report.say("finished")
        elif os.getpid() == own:
            if LOSSES in sys.modules and sys.modules[LOSSES].dies_alone(f"os._exit({status})", ""):
                os.kill(own, 9)
            report.say("leaves", status)
        _leave(status)

    os._exit = _exit


def unescape(word: str) -> str:
    """An argument as it was given to ddprun: see `launch.argv.escape`."""
    return word[1:] if not word.strip(":") else word


def _take_gpu(environ: MutableMapping[str, str]) -> None:
    """Says which GPU "cuda" is for this rank, in ALLSTRIDE_GPU, where the launcher has found some.

    All of them stay visible, so that a script that numbers them itself, by LOCAL_RANK, does so as ever.
    """
    given = environ.get("ALLSTRIDE_GPUS")
    if given is None:
        return
    local, count = int(environ.get("LOCAL_RANK", "0")), int(environ["ALLSTRIDE_GPU_COUNT"])
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # of this host, and where the resource manager gives each task its own, of this rank
        count = len([word for word in visible.split(",") if word.strip()]) or count
    environ["ALLSTRIDE_GPU"] = "none" if given == "none" else str(local % count)


def _exit_code(request: SystemExit) -> int:
    """The exit status that Python gives to `sys.exit(...)`; a message is printed, as Python does, for a number the line
    that asked for it: ranks are many, and Python would leave the search to its user.
    """
    if request.code is None:
        return 0
    if not isinstance(request.code, int):
        _write(f"{_prefix()}{request.code}\n")
        return 1
    if request.code & 0xFF:
        _write(f"{_prefix()}sys.exit({request.code}){_place(request)}\n")
    return request.code & 0xFF


def _place(error: BaseException) -> str:
    """Where an exception left the user's own files: not those of Python itself and of what is installed."""
    place = ""
    trace = _user_part(error.__traceback__)
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if os.path.exists(path) and not path.startswith((os.path.dirname(os.__file__), sys.prefix)):
            place = f" in {path}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _in_short(error: BaseException) -> str:
    """Eight digits that are the same where the same error comes again, at the same line."""
    import zlib

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{zlib.crc32(f'{type(error)} {error} {where}'.encode(errors='replace')):08x}"


def _end(code: int, report: "Report | None", error: str = "", words: str = "") -> NoReturn:
    """Ends this rank now, and with it the others, which may be waiting for it; where they were asked to end, when each
    has done so in its own way. Alone, where they go on without it (`ddprun --elastic`). words: why.

    Not through the interpreter's own exit: that joins threads and finalizes MPI, and both would wait for other ranks.
    Where the script has started MPI, by MPI_Abort: otherwise ranks on another host may find their sockets closed before
    mpirun hears of the end of this one, and the job's exit code be theirs. Where it has not, Open MPI's mpirun ends the
    others; Hydra would wait for them, so it is told what MPI_Abort tells it (PMI-1, "cmd=abort").
    """
    mpi = sys.modules.get("mpi4py.MPI")
    try:
        _to_terminal()
        asked = code > 128  # to end, as all are
        losses = sys.modules.get(LOSSES)
        words = " ".join(words.split())[:_WORDS]  # one line, of a traceback that has been printed
        if not asked and losses is not None and losses.dies_alone(words, error):
            if report is not None:
                report.say("ends", code, error or "-", words)
            os.kill(os.getpid(), 9)
        if report is not None:
            report.ask("ends", code, error or "-", words)
        if mpi is None or not mpi.Is_initialized():
            if "PMI_FD" in os.environ:
                os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())
        elif not mpi.Is_finalized():
            import signal

            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(3)  # ends this process if MPI_Abort does not, as it may with another thread inside MPI
            mpi.COMM_WORLD.Abort(code)
    finally:
        _leave(code)


def _report(error: BaseException) -> None:
    """Writes the traceback, each line marked with the rank, as one block, and sees to it that mpirun has read it.

    sys.excepthook is left out: that of ddp, for ranks that no launcher watches, would report the same once more.
    """
    import traceback  # takes a rank 7 ms, and most never need it

    error = error.with_traceback(_user_part(error.__traceback__))
    # Where the script has imported engine, as that shows it.
    form = sys.modules.get("engine.errors.tracebacks", traceback).format_exception
    lines = "".join(form(error)).splitlines()
    prefix = _prefix()
    # The line break first: a progress bar may have left the cursor in the middle of a line.
    block = "\n" + "".join(f"{prefix}{line}\n" for line in lines)
    # Any file would do that all ranks of a machine have: blocks over 4 KiB were mixed in 2 of 30 jobs without the lock.
    with open(__file__, "rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _write(block)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this file and of runpy."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _write(text: str) -> None:
    """Writes to standard error, then waits until mpirun has emptied the pipe, a second at most.

    What is still in the pipe when a rank ends can be lost or come after mpirun's own words: 3 of 15 jobs with a long
    traceback on an idle machine of two cores, none with the wait.
    """
    sys.stderr.flush()
    data = text.encode(errors="backslashreplace")
    if _output is not None:
        _to_terminal()
        _output.also_log(data)
    while data:
        data = data[os.write(2, data) :]
    deadline = time.monotonic() + 1.0
    while _unread() and time.monotonic() < deadline:
        time.sleep(0.001)


def _to_terminal() -> None:
    """What is printed from now on is seen, whatever ddprun was asked to do with a rank's output."""
    if _output is not None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        _output.restore()


def _unread() -> int:
    """Bytes in the pipe behind standard error; 0 where it is something else."""
    try:
        answer = fcntl.ioctl(2, termios.FIONREAD, bytes(4))
    except OSError:  # not a pipe: written through
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _prefix() -> str:
    rank = rank_number()
    return f"[rank {rank}] " if rank is not None else ""


def rank_number() -> str | None:
    """The number of this rank, as the launcher's environment has it."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
