"""What the ranks of one host have in common: a folder for the files by which MPI shares memory, and a guard.

ddprun sees to the guard of its own host. On another the first rank starts it, before anything can go wrong.
"""

import _socket
import contextlib
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence

FOLDER = "DDPRUN_FOLDER"  # environment variable of each rank: a folder of the job on its host
# Every process of the job inherits it, whatever process group or session it puts itself into.
JOB_VARIABLE = "DDPRUN_JOB"
SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1

# Set for each process by Open MPI, and by the Hydra of MPICH and Intel MPI.
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
# Where Open MPI 5 and 4 look for the folder, in which each rank has a file. Those of ranks that were killed stay in it.
_BACKING = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
# mpirun tells ranks of Open MPI 4 its folder, and they do not start where they inherit what it was told itself, too.
_TOLD, _INHERITED = "OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base"
_BACKING_BYTES = 16 << 20  # of a file


def memory_folder(job: str) -> str:
    """The job's own folder for memory that ranks share, on every host."""
    return f"{SHARED_MEMORY}/ddprun-{job}"


def join(open_line: Callable[[MutableMapping[str, str]], _socket.socket | None]) -> None:
    """Makes ready what a rank needs of its host before it starts MPI. open_line: see `launch.report`."""
    job = os.environ.get(JOB_VARIABLE)
    if job is None:
        return
    if _TOLD in os.environ:
        os.environ.pop(_INHERITED, None)
    folder = memory_folder(job)
    backing = [folder] if _has_room(os.environ) and _make_own(folder) else _session_folders(os.environ)
    if backing:
        os.environ[FOLDER] = backing[0]
        for name in _BACKING:
            os.environ.setdefault(name, backing[0])
    local = next((os.environ[name] for name in _LOCAL_RANK if name in os.environ), "")
    if local == "0" and (line := open_line(os.environ)) is not None:
        line.sendall(f"guard {os.uname().nodename}\n".encode())
        start_guard(line.fileno(), job, os.getppid(), [folder, *_session_folders(os.environ)])
        line.close()


def _has_room(environ: MutableMapping[str, str]) -> bool:
    """Whether the files of all ranks of this host fit into its shared memory, of which Docker gives 64 MiB.

    Where one does not, Open MPI does not start. In the session's folder, on a disk, they are as fast (two ranks, ext4,
    1 KiB to 16 MiB).
    """
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= int(environ.get(_LOCAL_SIZE, "1")) * _BACKING_BYTES


def _make_own(folder: str) -> bool:
    """Whether the folder is there, this user's alone: another rank may have made it, or somebody else."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700


def _session_folders(environ: MutableMapping[str, str]) -> list[str]:
    """The folder that the agent of Open MPI's mpirun made for this job on this host."""
    folder = environ.get("PMIX_SERVER_TMPDIR", "")
    return [folder] if os.path.basename(folder) in (f"prted.{os.getppid()}", f"ompi.{os.getppid()}") else []


def start_guard(line: int, job: str, parent: int, folders: Sequence[str], keep: Sequence[int] = ()) -> None:
    """Starts the guard of this host on one end of a connection to ddprun; see guard.py. keep: descriptors."""
    import ctypes
    import signal
    import subprocess

    guard = os.path.join(os.path.dirname(__file__), "guard.py")
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a guard that is stopped wakes up when it is needed

    subprocess.Popen(
        [sys.executable, "-I", "-S", guard, f"{JOB_VARIABLE}={job}", str(parent), *folders],
        stdin=line,
        pass_fds=keep,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("DDPRUN_")},
        start_new_session=True,
        preexec_fn=in_child,
    ).returncode = 0  # nobody waits for it
