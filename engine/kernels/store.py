"""Files of compiled kernels: whose are believed, how they are written, and which process compiles what.

They hold machine code, so whoever can write one runs it as everybody who reads it. A folder or file is believed only if
it belongs to the user or to root and neither its group nor others may write it, which is looked up on the descriptor
that is then read. New folders are for their user alone.

A process that compiles a kernel holds a lock on a file beside it; processes of this host that need the same kernel do
other work or wait. The system lets go of the locks of those who die. Hosts with a common home have locks of their own.
"""

import contextlib
import fcntl
import functools
import os
import platform
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_STALE = 3600.0  # seconds after which a file that was begun and not finished is a dead writer's
_PATIENCE = 60.0  # seconds after which a kernel that another process compiles is compiled here as well
_GLANCE = 0.01  # seconds between two looks for it


class UntrustedError(Exception):
    """Somebody else could have written this file or folder."""


def choose(base: Path) -> tuple[Path | None, str]:
    """The folder below ``base`` for this user's kernels, and what is wrong with those that were passed over.

    Two users who share ``base`` get folders of their own. None: there is none to be believed.
    """
    problems: list[str] = []
    for folder in (base / "allstride", base / f"allstride-{os.geteuid()}"):
        try:
            with opened(folder):
                return folder, "; ".join(problems)
        except FileNotFoundError:
            return folder, "; ".join(problems)
        except UntrustedError as why:
            problems.append(str(why))
        except PermissionError:
            problems.append(f"{folder} cannot be read")
        except OSError:
            return folder, "; ".join(problems)  # reading and writing say what is wrong
    return None, "; ".join(problems)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """The descriptor of a folder that may be believed.

    Raises UntrustedError, and OSError where it cannot be opened.
    """
    named = folder.lstat()
    _believe(named, folder, is_link=stat.S_ISLNK(named.st_mode))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _believe(os.fstat(descriptor), folder)
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes | None:
    """What is in a file, None if there is none.

    Raises UntrustedError for a file, its folder, or the folder around that which others could have written, and OSError
    for what cannot be read.
    """
    try:
        with opened(path.parent.parent), opened(path.parent) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path.name, flags, dir_fd=folder), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise UntrustedError(f"{path} is not a regular file")
                _believe(found, path)
                return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: Path, content: bytes) -> None:
    """Puts a whole file in place, or nothing; makes the folders that are missing.

    Raises UntrustedError and OSError.
    """
    _make(path.parent)
    with opened(path.parent.parent), opened(path.parent) as folder:
        _sweep(path.parent)
        part = f".{path.name}.{uuid.uuid4().hex}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise


@contextlib.contextmanager
def turn(path: Path, meanwhile: Callable[[], bool]) -> Iterator[None]:
    """Waits while another process of this host compiles the kernel of this file; then it is there, or ours to compile.

    ``meanwhile`` does a piece of other work and returns True, or has none.
    """
    began = time.monotonic()
    while True:
        with _claim(path) as ours:
            if ours or path.exists() or time.monotonic() - began > _PATIENCE:
                yield
                return
        if not meanwhile():
            time.sleep(_GLANCE)


def is_claimed(path: Path) -> bool:
    """Whether another process of this host compiles the kernel of this file."""
    with _claim(path) as ours:
        return not ours


def open_to_readers(folder: Path) -> None:
    """Lets all users read (not write) the kernels in a folder, for one that an administrator has filled."""
    for path in (folder.parent, folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextlib.contextmanager
def _claim(path: Path) -> Iterator[bool]:
    """Whether this process may compile the kernel of a file; where nothing can be locked everybody may."""
    lock = path.with_name(f".{path.name}.{platform.node()}.lock")
    descriptor = _locked(lock)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        if descriptor >= 0:
            # Before the lock ends: who has opened the file already finds the kernel when his turn comes.
            with contextlib.suppress(OSError):
                lock.unlink()
            os.close(descriptor)


def _locked(lock: Path) -> int | None:
    """The descriptor of a file that this process has locked, None if another has, -1 where nothing can be locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        _make(lock.parent)
        with opened(lock.parent.parent), opened(lock.parent) as folder:
            descriptor = os.open(lock.name, flags, 0o600, dir_fd=folder)
    except (UntrustedError, OSError):
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return -1
    return descriptor


def _believe(found: os.stat_result, path: Path, *, is_link: bool = False) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & 0o022 and not is_link:
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedError(f"{path} can be written by others (mode {mode:o}; chmod go-w takes that away)")


def _make(folder: Path) -> None:
    for one in reversed((folder, *folder.parents)):
        if not one.exists():
            with contextlib.suppress(FileExistsError):
                one.mkdir(0o700)


@functools.cache
def _sweep(folder: Path) -> None:
    """Removes what writers who died have left, once a process."""
    before = time.time() - _STALE
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if part.lstat().st_mtime < before:
                part.unlink()
