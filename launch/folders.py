"""The folders of a job on ddprun's own host, which go with it; and those that jobs left whose watchers were all killed.

A file in the folder is locked for as long as the job's ddprun or its guard lives: the system lets go of the lock of who
is killed. It has the host's name, since other hosts may share the folder and not know of each other's locks.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping

from launch import LaunchError, guard, place

_OURS = re.compile(r"ddprun-([0-9a-f]{16})")
_NEW = 60.0  # seconds in which a folder may not be locked yet


@contextlib.contextmanager
def made(environ: Mapping[str, str], name: str) -> Iterator[tuple[list[str], int]]:
    """The folders of job ``name``, and the descriptor that keeps the lock; the job's guard is given it, too.

    The first folder is there, the second is made by the job's ranks. Raises LaunchError if there is no room.
    """
    base = environ.get("TMPDIR") or "/tmp"
    _sweep_dead(base)
    folder = os.path.join(base, f"ddprun-{name}")
    try:
        os.mkdir(folder, 0o700)
        lock = os.open(_lock_in(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(f"no folder for the job's sockets can be made: {error}. TMPDIR says where") from error
    with contextlib.suppress(OSError):  # a file system without locks: who looks for dead jobs cannot lock it, either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folders, began = [folder, place.memory_folder(name)], time.time()
    try:
        yield folders, lock
    finally:
        os.close(lock)
        guard.sweep(folders, began)


def _lock_in(folder: str) -> str:
    return os.path.join(folder, f"lock.{os.uname().nodename}")


def _sweep_dead(base: str) -> None:
    """Removes the folders of this user's jobs on this host of which neither a process nor a watcher is left."""
    with contextlib.suppress(OSError):  # `base` cannot be listed: making the job's folder says what is wrong
        for found in filter(None, map(_OURS.fullmatch, os.listdir(base))):
            folder, name = os.path.join(base, found[0]), found[1]
            if _is_dead(folder) and not guard.members(f"{place.JOB_VARIABLE}={name}"):
                guard.sweep([folder, place.memory_folder(name)], time.time())


def _is_dead(folder: str) -> bool:
    """Whether a folder is this user's and of this host, not new, and locked by nobody."""
    try:
        about = os.lstat(folder)
        if about.st_uid != os.geteuid() or about.st_mode != stat.S_IFDIR | 0o700:
            return False
        if time.time() - about.st_mtime < _NEW:
            return False
        lock = os.open(_lock_in(folder), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # another host's, or gone meanwhile
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it lives, or the file system has no locks
        return False
    finally:
        os.close(lock)
    return True
