"""mpirun as a process: how it is started and asked to end, and whether anybody it started still runs."""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence

from launch import noise, ports
from launch.report import KEEP_ALIVE

MOST_KEPT = 64 << 10
"""KiB by which it may grow."""

_PR_SET_PDEATHSIG = 1
_LAST_WORDS = 5.0  # seconds in which what it and its ranks have printed is passed on


class Mpirun:
    """`argv`, in a session of its own: it would end the job at once on a signal of the terminal, whose grace is
    ddprun's to give. So it would on SIGTERM, which Slurm's scancel and PBS send to every process of a job: where it
    takes another signal for that wish, `ended_by`, it never sees SIGTERM. Open MPI starts ranks with nothing blocked.

    folder: for what it leaves behind, if it is killed. ranks: so many may hold a connection to this process. quiet:
    what it says of ranks that are lost is left out, since there is somebody else who does.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        folder: str,
        ended_by: signal.Signals,
        ranks: int,
        quiet: bool,
    ) -> None:
        import ctypes  # late: its libffi keeps a file open (3.5 of Debian), which would be a closed standard input

        libc = ctypes.CDLL(None)

        def in_child() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, int(ended_by))  # should this process be killed, mpirun ends the job
            if ended_by != signal.SIGTERM:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

        self._ended_by = ended_by
        self._process = subprocess.Popen(
            argv,
            env=_with_settings(environ, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE if quiet else None,
            start_new_session=True,
            preexec_fn=in_child,
        )
        self.pid = self._process.pid
        self._begun: int | None = None  # KiB of its memory when it was asked for the first time
        self.killed: dict[int, int] = {}  # ranks by process, with the signal, as far as that was left out
        streams = (self._process.stdout, 1), (self._process.stderr, 2)
        self._copies = [noise.pass_on(source, target, self.killed) for source, target in streams if source is not None]
        # A connection a rank, where fewer descriptors are allowed than that; ranks keep the limit that they have.
        few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(few, 2 * ranks + 100), most), most))

    def keep_ports_here(self) -> None:
        """Has nothing answer on the network that it listens on, or its agent of this host (Intel MPI 2021.18)."""
        ports.keep_here(self.pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended: the next look finds them
            for pid in self.children():
                ports.keep_here(pid)

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def has_grown(self) -> bool:
        """Whether it keeps too much by now of processes that have come and gone since this was asked first."""
        if not self.runs():
            return False
        with open(f"/proc/{self.pid}/status") as file:
            anonymous = next((line.split()[1] for line in file if line.startswith("RssAnon")), "0")
        if self._begun is None:
            self._begun = int(anonymous)
        return int(anonymous) > self._begun + MOST_KEPT

    def ask_to_end(self) -> None:
        """Only once: a second time it would leave everything as it is."""
        self._process.send_signal(self._ended_by)

    def kill(self) -> None:
        """Ends it whatever it does."""
        self._process.kill()

    def wait(self) -> int:
        """Its exit code, once all that was printed has been passed on."""
        code = self._process.wait()
        for copy in self._copies:
            copy.join(_LAST_WORDS)
        return code

    def children(self) -> list[int]:
        """Its children: ranks, and its agents for hosts. OSError where one of its threads ends meanwhile."""
        found: list[str] = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/children") as file:
                found += file.read().split()
        return [int(child) for child in found]

    def has_children(self) -> bool:
        """Whether children are still running."""
        try:
            for child in self.children():
                # The state follows the command's name, which may hold anything but ends in the last parenthesis.
                with open(f"/proc/{child}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] != "Z":
                        return True
        except (FileNotFoundError, ProcessLookupError):
            return True  # one ended while this looked; the next look tells
        return False


def _with_settings(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment of Open MPI's mpirun: keep-alives of its connections to other hosts, and where it puts files."""
    names = ("time", "intvl", "probes")
    alive = {f"PRTE_MCA_oob_tcp_keepalive_{name}": str(each) for name, each in zip(names, KEEP_ALIVE, strict=True)}
    given = {**alive, **environ}
    given.setdefault("PRTE_MCA_prte_local_tmpdir_base", folder)  # Open MPI 5
    given.setdefault("OMPI_MCA_orte_local_tmpdir_base", folder)  # Open MPI 4
    return given
