"""From a path to a file that is complete or not there at all, and nothing left behind by writers that died.

A file is written beside its destination, synced, moved there, and its folder synced (the order that survives a power
cut). While it is written it is locked; a file of that name which nobody holds locked belongs to a writer that is gone,
and the next one removes it.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SYNC_FILE_RANGE_WRITE = 2
_SUFFIX = ".partial"
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}  # file systems that have none


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which replaces `path` when the block ends, and vanishes when it raises.

    Symbolic links are followed. What exists and is no regular file (a device, a pipe) is written into, never replaced.
    A file that is replaced keeps its permissions. durable: whether it must be there after a power cut. Raises: OSError.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    remove_abandoned(target)
    with _beside(target) as (file, temporary):
        try:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if durable:
        sync_folder(target.parent)


def begin_sync(descriptor: int) -> None:
    """Has the disk begin with what was written to a file; does not wait for it, and says nothing of errors, as fsync
    will. Elsewhere than on Linux: nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder as durable as the files are, where the file system can be told to (else: EINVAL)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _mode(target: Path) -> int | None:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new, locked file in the folder of `target`. Its permissions are those of any new file of this process."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        with open(descriptor, "wb") as file:
            _lock(descriptor, 0, True)  # waits for whoever looks whether it is abandoned, for a moment
            if os.fstat(descriptor).st_nlink:  # else another writer took it for abandoned before it was locked
                yield file, temporary
                return


def _lock(descriptor: int, flags: int, without: bool) -> None:
    """Locks a file; without: whether to go on where the file system has no locks. Raises: OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError as error:
        if not (without and error.errno in _NO_LOCKS):
            raise


def remove_abandoned(target: Path, only_here: bool = False) -> bool:
    """Removes what writers of `target` that died have left; returns whether there is no writer any more.

    Where files cannot be locked, everything is left alone, unless the caller knows that writers are `only_here`.
    """
    alone = True
    for candidate in target.parent.glob(f".{_escaped(target.name)}.????????{_SUFFIX}"):
        try:
            descriptor = os.open(candidate, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile, or not ours to touch
        try:
            _lock(descriptor, fcntl.LOCK_NB, only_here)
            candidate.unlink(missing_ok=True)
        except OSError:
            alone = False  # somebody is writing it, or it cannot be locked or removed
        finally:
            os.close(descriptor)
    return alone


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
