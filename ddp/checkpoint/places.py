"""Where generations are: a folder that all hosts share, or one in each host's memory."""

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp.checkpoint import manifest
from ddp.checkpoint.agreeing import together
from ddp.groups.process_group import ProcessGroup
from ddp.world.ranks import name_ranks
from engine.serialization import files

logger = logging.getLogger("ddp")

_STEP = re.compile(r"step-([0-9]{8,18})")
_OURS = re.compile(r"[0-9]{5,}\.safetensors|\.?manifest\.json(\.[0-9a-f]{8}\.partial)?")
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Place:
    """A folder of generations. makers: of each rank the one that makes and ends those it writes into: one for all, or
    one a host, whose ranks then write all that ranks hold alike.

    durable: whether what is written is to outlive the machine.
    """

    folder: Path
    makers: tuple[int, ...]
    durable: bool


def on_disk(folder: str | os.PathLike[str], group: ProcessGroup) -> Place:
    """A folder that all hosts share."""
    return Place(Path(folder), (0,) * group.size(), True)


def in_memory(folder: str | os.PathLike[str], group: ProcessGroup) -> Place:
    """Collective: the folder in the memory of each host that belongs to `folder`, of this user.

    Raises: RuntimeError where a host has no /dev/shm, or somebody else has made the folder.
    """

    def make() -> tuple[str, int]:
        _own_folder(mine)
        return Path("/proc/sys/kernel/random/boot_id").read_text(), _MEMORY.stat().st_dev

    name = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:16]
    mine = _MEMORY / f"allstride-{os.getuid()}-{name}"
    hosts = group.exchange(together(group, make))
    return Place(mine, tuple(map(hosts.index, hosts)), False)


def _own_folder(folder: Path) -> None:
    """Makes a folder that nobody else can read or write. Raises: RuntimeError where it cannot be, or is another's."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise RuntimeError(f"checkpoint: no state can be kept in this host's memory: {error}") from error
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RuntimeError(f"checkpoint: {folder} belongs to somebody else, or others can read it: remove it")


def path_of(folder: Path, step: int) -> Path:
    """The generation of a step."""
    return folder / f"step-{step:08d}"


def generations(folder: Path) -> dict[int, Path]:
    """All that are there, complete or not, the newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): folder / name for name in names if (match := _STEP.fullmatch(name))}
    return dict(sorted(found.items(), reverse=True))


def is_complete(generation: Path) -> bool:
    """Whether a manifest is there: its writers came to the end."""
    return (generation / manifest.NAME).is_file()


def newest(path: Path) -> Path:
    """`path` itself if it is a generation, else the newest complete one in it. Raises: FileNotFoundError."""
    if is_complete(path):
        return path
    for generation in generations(path).values():
        if is_complete(generation):
            return generation
    raise FileNotFoundError(f"checkpoint: there is no complete checkpoint at {path}")


class Draft:
    """The manifest that is still to come. While it is open its file is locked, and so the generation is nobody else's.

    Making one makes the folder. Raises: FileExistsError for a complete generation, or one that somebody is writing;
    OSError.
    """

    def __init__(self, generation: Path, durable: bool) -> None:
        self._generation, self._durable = generation, durable
        if is_complete(generation):
            raise FileExistsError(
                f"checkpoint: {generation} is a complete checkpoint: remove it, or choose another name"
            )
        generation.mkdir(parents=True, exist_ok=True)
        if not files.remove_abandoned(generation / manifest.NAME, only_here=True):
            raise FileExistsError(f"checkpoint: somebody else is writing {generation}")
        for path in _ours(generation):
            path.unlink()
        self._stack = contextlib.ExitStack()
        try:
            self._file = self._stack.enter_context(files.replacing(generation / manifest.NAME, durable))
        except OSError:
            self.abandon()  # the folder goes
            raise

    def commit(self, text: bytes) -> None:
        """The generation is complete. Raises: OSError, and it is not."""
        if self._durable:
            files.sync_folder(self._generation.parent)  # here, where no training waits for a disk
        with self._stack:
            self._file.write(text)

    def abandon(self) -> None:
        """Removes the generation, which is not to be completed."""
        with contextlib.suppress(_AbandonedError), self._stack:
            raise _AbandonedError
        if not is_complete(self._generation):
            _remove_files(self._generation)


class _AbandonedError(Exception):
    """Ends the block of a manifest's file without it."""


def check_seen(generation: Path, group: ProcessGroup, host: str) -> None:
    """Collective: all ranks must see the folder that was just made. Raises: RuntimeError, naming those who do not."""
    blind = {}
    for rank, (sees, where) in enumerate(group.exchange((generation.is_dir(), host))):
        if not sees:
            blind[rank] = where
    if blind:
        raise RuntimeError(
            f"checkpoint: {name_ranks(list(blind))} on {', '.join(sorted(set(blind.values())))} cannot see "
            f"{generation}, which another rank has made: give a folder that all hosts share"
        )


def remove_abandoned(generation: Path) -> bool:
    """Removes a generation without a manifest that nobody writes any more; returns whether it is gone.

    Files that are none of a checkpoint's stay, and their folder.
    """
    if is_complete(generation) or not files.remove_abandoned(generation / manifest.NAME):
        return False
    return _remove_files(generation)


def remove(generation: Path) -> None:
    """Removes a generation: the manifest first, so that what is half removed is not taken for complete."""
    (generation / manifest.NAME).unlink(missing_ok=True)
    _remove_files(generation)


def _remove_files(generation: Path) -> bool:
    for path in _ours(generation):
        path.unlink(missing_ok=True)
    try:
        generation.rmdir()
    except OSError as error:
        logger.warning("checkpoint: %s is left there: %s", generation, error)
        return False
    return True


def _ours(generation: Path) -> Iterator[Path]:
    return (path for path in list(generation.iterdir()) if _OURS.fullmatch(path.name))


def sweep(folder: Path) -> list[Path]:
    """Removes what writers that died have left, and returns it."""
    left = [path for path in generations(folder).values() if not is_complete(path)]
    return [path for path in left if remove_abandoned(path)]


def rotate(folder: Path, keep: int, broken: set[Path]) -> None:
    """Leaves the newest `keep` complete generations, and none of those that are known to be broken."""
    complete = [path for path in generations(folder).values() if is_complete(path) and path not in broken]
    for path in (*complete[keep:], *(path for path in broken if path.is_dir())):
        remove(path)


def forget(folder: Path) -> None:
    """Gives back the memory that generations in it take."""
    shutil.rmtree(folder, ignore_errors=True)
