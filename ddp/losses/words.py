"""Why a rank was lost: it says so itself before it ends, or who kills it does, in a file of the job's folder."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ddp.losses.pmix import Name

_JOB_FOLDER = "DDPRUN_REPORT"  # on one host: see launch/report.py


class Member(NamedTuple):
    """A rank, by the number that it had when the job was started, its process, and the launcher's name for that."""

    number: int
    pid: int
    name: Name = Name("", 0)


def excuse(member: Member, why: str) -> None:
    """Says why another rank is lost, if it has not said so itself."""
    if not reason(member):
        _tell(member, {"words": why})


def reason(member: Member) -> str:
    """Why it was lost; empty where nobody could say."""
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


def job_folder() -> Path:
    """The job's own folder on this host."""
    return Path(os.environ.get(_JOB_FOLDER, ""))


def _folder() -> Path:
    return job_folder() / "lost"


def _tell(member: Member, what: dict[str, Any]) -> None:
    folder = _folder()
    folder.mkdir(exist_ok=True)
    draft = folder / f".{os.getpid()}"
    draft.write_text(json.dumps(what))
    draft.rename(folder / str(member.pid))
