"""Why a rank was lost: it says so itself before it ends, or who kills it does, in a file of the job's folder."""

import contextlib
import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ddp.losses.pmix import Name

# Environment variables. A folder, or where to find ddprun by TCP if there are several hosts; then the folder of this
# one, and the descriptor of this rank's line to ddprun. See launch/report.py and launch/place.py.
_REPORT, _FOLDER, _LINE = "DDPRUN_REPORT", "DDPRUN_FOLDER", "DDPRUN_LINE"


Process = tuple[str, int]
"""Its host, and its number there."""


class Member(NamedTuple):
    """A rank, by the number that it had when the job was started, its process, the launcher's name for that, and its
    host.
    """

    number: int
    pid: int
    name: Name = Name("", 0)
    host: str = os.uname().nodename

    @property
    def process(self) -> Process:
        """What tells it from all others, also from one that replaces it."""
        return self.host, self.pid

    @property
    def is_here(self) -> bool:
        """Whether it is on this host."""
        return self.host == os.uname().nodename


def kill_far(member: Member) -> None:
    """Has ddprun kill a process of another host, by its guard there."""
    _say("kill", member.host, member.pid)


def kill_stopped_far(host: str, pids: Iterable[int], seconds: float) -> None:
    """Has ddprun's guard of another host kill those of its processes that it finds stopped in each of these questions,
    for so long; they are to come more often than once a second.
    """
    _say("stopped", host, f"{seconds:g}", *pids)


def _say(*words: object) -> None:
    """One line to ddprun; launch/report.py has their list."""
    with contextlib.suppress(OSError):  # where ddprun is gone its guards end all
        os.write(int(os.environ[_LINE]), f"{' '.join(map(str, words))}\n".encode())


def excuse(member: Member, why: str) -> None:
    """Says why another rank is lost, if it has not said so itself."""
    if not reason(member):
        _tell(member, {"words": why})


def reason(member: Member) -> str:
    """Why it was lost; empty where nobody of this host could say."""
    if not member.is_here:
        return ""
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads((_folder() / str(member.pid)).read_text())["words"])
    return ""


def leave(step: int, error: str, why: str) -> bool:
    """This rank ends with an error at this step; whether it is the first one to end with it there.

    error: digits that are the same where the same error comes again; empty: no other is like it.
    """
    own = Member(-1, os.getpid())
    _tell(own, {"words": why, "step": step, "error": error})
    others = [json.loads(path.read_text()) for path in _folder().glob("[0-9]*") if path.name != str(own.pid)]
    return not any(error and other.get("error") == error and other["step"] == step for other in others)


@functools.cache
def _note() -> int | None:
    """A file of the job's folder on this host, in which ddprun looks for the step when the job has ended."""
    if not os.environ.get(_REPORT):  # this process was not started by ddprun
        return None
    try:
        return os.open(job_folder() / "step", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, RuntimeError):  # then ddprun does not name the step
        return None


def note_step(number: int) -> None:
    """Tells ddprun at which step the job is, which it names where ranks are lost."""
    if (note := _note()) is not None:
        with contextlib.suppress(OSError):  # no room: ddprun names no step, or an earlier one, and training goes on
            os.pwrite(note, b"%20d" % number, 0)


def job_folder() -> Path:
    """The job's own folder on this host. RuntimeError where it has got none."""
    folder = os.environ.get(_REPORT, "")
    if folder.startswith("tcp:"):
        folder = os.environ.get(_FOLDER, "")
        if not folder:
            raise RuntimeError(f"{os.uname().nodename} has no folder for the job: is /dev/shm there, with room?")
    return Path(folder)


def _folder() -> Path:
    return job_folder() / "lost"


def _tell(member: Member, what: dict[str, Any]) -> None:
    folder = _folder()
    folder.mkdir(exist_ok=True)
    draft = folder / f".{os.getpid()}"
    draft.write_text(json.dumps(what))
    draft.rename(folder / str(member.pid))
