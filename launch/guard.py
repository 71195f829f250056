"""The guard of one host: signals the ranks there as ddprun says, and ends what is left of the job when ddprun is gone.

    python -I -S guard.py MARK PARENT FOLDER...     # its standard input is a connection to ddprun

A process of its own, in a session of its own and without the mark of the job, so that what kills ddprun, mpirun, their
process group or their terminal leaves it alone. MARK is the environment variable, with its value, that every process
of the job inherits. PARENT is the agent of mpirun on another host, 0 on ddprun's own. Lines that it takes:

    signal NUMBER PID...    to those of them that handle the signal; they are named in the answer
    send NUMBER PID...      to all of them
    there PID...            how many of them are there is the answer
    stopped SECONDS PID...  those are killed that were stopped for so long whenever this was asked
    end SECONDS             end the job here: ask, and kill after that time; then remove FOLDERs, say "ended", and in
                            which step the job was, and leave
    leave                   ddprun has seen to everything itself

The end of the connection without a word is `end`: ddprun was killed, or its host is gone. By itself it says "orphans"
when PARENT is gone and processes of the job are left: Hydra's mpirun would wait for them for ever.
"""

# These modules only, which are there at once: the guard starts with every job, on time that is the job's.
import math
import os
import select
import sys
import time
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGKILL, SIGTERM, signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_MEMORY = "/dev/shm"
_ANEW = 1.0  # seconds after which a question about stopped processes is not of a row with the last one
_ORPHANED = 3.0  # seconds in which mpirun ends processes whose agent is gone, or they end by themselves
ASK = 5.0  # seconds between asking what is left of a job to end and killing it


def members(mark: str) -> set[int]:
    """The processes on this machine that inherited the mark of the job, zombies not counted."""
    wanted = mark.encode()
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # gone meanwhile, or of another user
        if wanted in environment and wanted in environment.split(b"\0"):
            found.add(int(name))
    return found


def deliver(number: int, pids: "Iterable[int]") -> list[int]:
    """Sends a signal to those of the processes that handle it, and returns them.

    A process that would only die of it would have mpirun kill those that handle it.
    """
    return send(number, [pid for pid in pids if _handles(pid, number)])


def send(number: int, pids: "Iterable[int]") -> list[int]:
    """Sends a signal to the processes, and returns those that were there."""
    there = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended by itself meanwhile
        there.append(pid)
    return there


def kill_stopped(seconds: float, pids: "Iterable[int]", mark: str, seen: "dict[int, tuple[float, float]]") -> None:
    """Kills those members of the job that the kernel calls stopped, by a signal or a debugger, and has called so in
    each question of the last `seconds`. seen: since when each was found stopped, and when last; kept between calls.
    """
    now = time.monotonic()
    for pid in pids:
        since, last = seen.pop(pid, (now, now))
        if _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] not in (["T"], ["t"]):
            continue
        seen[pid] = (now if now > last + _ANEW else since), now
        if now >= seen[pid][0] + seconds and pid in members(mark):
            send(SIGKILL, [pid])


def _handles(pid: int, number: int) -> bool:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def end(mark: str, others: "Callable[[], set[int]]", seconds: float, hurry: "Callable[[], bool]") -> None:
    """Ends the job's processes on this machine, and `others`: asks each, and kills after `seconds`, or once `hurry()`.

    `hurry` is called again and again and takes the time between two looks.
    """
    deadline = time.monotonic() + seconds
    asked: set[int] = set()
    while left := members(mark) | others():
        late = time.monotonic() >= deadline
        send(SIGKILL if late else SIGTERM, left if late else left - asked)
        asked |= left
        if hurry():
            deadline = 0.0


def sweep(folders: "Collection[str]", began: float) -> None:
    """Removes the job's own folders: mpirun's files about the session, and what ranks share memory by.

    began: `time.time()` when the job did.
    """
    import contextlib
    import shutil

    for folder in folders:
        # Two guards may be at it where hosts share a folder, and who is dying may write one file more.
        for _ in range(20):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.05)
    for path in _left_by_mpich(began):
        with contextlib.suppress(FileNotFoundError):  # another job has ended, too
            os.unlink(path)


def _left_by_mpich(began: float) -> list[str]:
    """Files by which ranks of MPICH shared memory, which it removes itself unless they are killed.

    It alone chooses their names, and where they are. Those of a job that lives are mapped by it from the first moment.
    """
    found = []
    for name in os.listdir(_MEMORY) if os.path.isdir(_MEMORY) else ():
        if name.startswith("mpich_shm_"):
            path = os.path.join(_MEMORY, name)
            try:
                about = os.stat(path)
            except FileNotFoundError:
                continue
            if about.st_uid == os.geteuid() and about.st_mtime >= began:
                found.append(path)
    if found:
        mapped = "".join(_read(f"/proc/{pid}/maps") for pid in os.listdir("/proc") if pid.isdigit())
        found = [path for path in found if path not in mapped]
    return found


def noted_step(folders: "Iterable[str]") -> int:
    """The step in which the job was, as its ranks have noted it in a folder (ddp/losses/words.py); 0: in none."""
    return max([int(_read(os.path.join(folder, "step")) or 0) for folder in folders])


def main() -> None:
    """Serves until it is told to leave, or has ended the job."""
    mark, parent, *folders = sys.argv[1:]
    for number in (SIGTERM, SIGINT, SIGHUP):
        signal(number, SIG_IGN)  # it leaves when the job has
    os.chdir("/")
    began = time.time()
    born = birth(int(parent))

    def agent() -> set[int]:
        return {int(parent)} if born and birth(int(parent)) == born else set()

    text, told = b"", not born
    seen: dict[int, tuple[float, float]] = {}
    while True:
        told = told or _tell_of_orphans(mark, agent)
        if not (part := _receive()):
            break
        *lines, text = (text + part).split(b"\n")
        for command, *words in (line.decode().split() for line in lines):
            if command == "leave":
                return
            if command == "end":
                _leave(mark, agent, float(words[0]), folders, began)
                return
            if command == "there":
                _say(f"there {len(set(map(int, words)) & members(mark))}")
                continue
            if command == "stopped":
                kill_stopped(float(words[0]), [int(pid) for pid in words[1:]], mark, seen)
                continue
            which, *pids = map(int, words)
            if command == "signal":
                _say(" ".join(["caught", *map(str, deliver(which, set(pids) & members(mark)))]))
            elif command == "send":
                send(which, set(pids) & members(mark))
    _leave(mark, agent, ASK, folders, began)


def _tell_of_orphans(mark: str, agent: "Callable[[], set[int]]") -> bool:
    """Returns when ddprun has said something, or, true, when it has been told that the agent left processes."""
    alone_since = math.inf
    while not select.select([0], [], [], 0.5)[0]:
        alone_since = math.inf if agent() or not members(mark) else min(alone_since, time.monotonic())
        if time.monotonic() > alone_since + _ORPHANED:
            _say("orphans")
            return True
    return False


def _leave(
    mark: str, others: "Callable[[], set[int]]", seconds: float, folders: "Collection[str]", began: float
) -> None:
    end(mark, others, seconds, _told_again)
    step = noted_step(folders)
    sweep(folders, began)
    _say(f"ended {step}")


def _say(words: str) -> None:
    try:
        os.write(0, f"{words}\n".encode())
    except OSError:  # ddprun is gone, which is heard soon enough
        return


def _told_again() -> bool:
    """Whether ddprun has said one thing more, after 20 ms: that it will not wait."""
    if select.select([0], [], [], 0.02)[0]:
        if _receive():
            return True
        time.sleep(0.02)  # ddprun is gone: nothing will come
    return False


def _receive() -> bytes:
    try:
        return os.read(0, 65536)
    except OSError:  # reset, or given up by the kernel: ddprun or its host is gone
        return b""


def birth(pid: int) -> str:
    """When a process began, which with its number names it for good; empty if there is none, or only its exit code."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""


def _read(path: str) -> str:
    """What the kernel says about a process; nothing if there is none."""
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    main()
