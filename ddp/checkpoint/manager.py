"""`Manager`: a checkpoint every so many steps while training goes on, the newest ones kept, the newest found again."""

import os
import signal
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from ddp import losses
from ddp.checkpoint import loading, manifest, places, states
from ddp.checkpoint.agreeing import ranks_of, together
from ddp.checkpoint.places import logger
from ddp.checkpoint.track import Track
from ddp.groups.process_group import ProcessGroup

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # of Slurm's and other schedulers' notices


class Manager:
    """Checkpoints of a training in one directory.

        state = {"model": model, "optimizer": optimizer, "epoch": 0}
        with checkpoint.Manager("runs/a", state, every=100, keep=3) as manager:
            for step in range(manager.restore(), steps):
                ...
                manager.step(step + 1)

    While a checkpoint is written, training goes on: it waits only until this rank's part is copied to memory. When
    writing goes wrong, the next `step` raises it on every rank. On SIGTERM or SIGUSR1, to any rank, `step` writes a
    last checkpoint and raises `SystemExit` with 128 + the signal's number. At the end of the block, what is being
    written is waited for; when the block raises, it is given up. All methods are collective.

    folder: seen by all ranks. state: as for `save`; entries may be exchanged between steps. every: steps from one
        checkpoint to the next. keep: so many of the newest stay. busy: what a save does while the last one is still
        being written: "wait" for that, or "replace" it.
    memory_every: every so many steps the state is kept in the memory of the ranks' hosts as well (/dev/shm), for a job
        that is restarted there; what all ranks hold alike on each host, so that one of them is enough for it. Given up
        when the block ends without an error.
    overlap: training does not wait for the copy of parameters and optimizers' states either, but the step of an
        optimizer for those that it changes. Until they are copied nobody else may write into them: what engine's
        operators write is noticed, and the checkpoint given up with an error. group: the ranks; default all.
    Raises: ValueError for numbers below 1, or another word.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        state: MutableMapping[str, Any],
        *,
        every: int,
        keep: int = 3,
        busy: str = "wait",
        memory_every: int | None = None,
        overlap: bool = False,
        group: ProcessGroup | None = None,
    ) -> None:
        for name, value in (("every", every), ("keep", keep), ("memory_every", memory_every or 1)):
            if value < 1:
                raise ValueError(f"Manager: expected {name} of at least 1, got {value}")
        if busy not in ("wait", "replace"):
            raise ValueError(f"Manager: expected busy 'wait' or 'replace', got {busy!r}")
        self._group = ranks_of(group)
        self._state, self._every, self._memory_every = state, every, memory_every
        self._disk = Track(lambda: places.on_disk(folder, self._group), keep, busy == "replace", overlap, self._group)
        self._tracks = [self._disk]
        self._memory: Track | None = None
        if memory_every is not None:
            # The one that is there stays until the next is complete.
            self._memory = Track(
                lambda: places.in_memory(folder, self._group), 1, busy == "replace", overlap, self._group
            )
            self._tracks.append(self._memory)
        losses.keepers[self] = None
        self._at = 0  # the step at which the state is, as far as was told
        self._owes = False  # one that a lost rank has kept from being complete
        self._signal = 0
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._notice) for number in _SIGNALS}

    # --- reading ------------------------------------------------------------------------------------------------------

    def all_steps(self) -> list[int]:
        """The steps of which there is a complete checkpoint on disk."""
        return losses.between(self._all_steps)

    def _all_steps(self) -> list[int]:
        return self._group.exchange(_complete(self._disk.place.folder))[0]

    def restore(self) -> int:
        """Takes over the newest complete checkpoint, and returns its step; 0 where there is none, and all is as it was.

        What writers that died have left is removed. A checkpoint that is damaged is named, and the next older one
        taken; it is removed when another one is complete.
        Raises: RuntimeError where there are checkpoints, and none that can be read; ValueError as `load`.
        """
        step = losses.come()
        self._at = losses.between(self._restore) if step is None else step  # else others have given it the state
        losses.at_step(self._at + 1)
        return self._at

    def _restore(self) -> int:
        for track in self._tracks:
            track.settle()
            for path in together(self._group, track.sweep):
                logger.warning("checkpoint: %s was not complete, and is removed", path)
        tried = None
        for step, folders in self._candidates():
            try:
                loading.take(self._state, folders, self._group)
            except (OSError, RuntimeError) as error:
                if losses.is_behind(error):
                    raise
                tried = tried or error
                if self._group.rank == 0:
                    logger.warning("%s; an older checkpoint is tried", error)
                for track in self._tracks:
                    track.broken.update(path for path in folders if path.parent == track.place.folder)
            else:
                for track in self._tracks:
                    track.taken(step, folders[0])
                return step
        if tried is not None:
            raise RuntimeError(
                f"checkpoint: none of those in {self._disk.place.folder} can be read; remove them to begin anew"
            ) from tried
        return 0

    def _candidates(self) -> Iterator[tuple[int, list[Path]]]:
        """Steps, the newest first, with the folders on this rank, the first being that which is meant."""
        known = self._group.exchange([_complete(track.place.folder) for track in self._tracks])
        there = [sorted({step for rank in known for step in rank[at]}) for at in range(len(self._tracks))]
        for step in sorted({step for steps in there for step in steps}, reverse=True):
            paths = [places.path_of(track.place.folder, step) for track in self._tracks]
            having = [path for path, steps in zip(paths, there, strict=True) if step in steps]
            # Memory first: it is faster.
            for path in reversed(having):
                yield step, [path, *(other for other in having if other != path and _same(path, other))]

    # --- writing ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """After each step, with the number of steps done: writes what is due, and looks after what is being written.

        Raises, on every rank: what went wrong in writing; SystemExit after a signal and a last checkpoint.
        """
        self._at = step
        if losses.outside() is None:
            losses.between(self._after_step, step)
        losses.at_step(step + 1)

    def _after_step(self, step: int) -> None:
        number = self._look()
        if number:
            self._disk.save(self._state, step)
            self._wait()
            raise SystemExit(128 + number)
        if step % self._every == 0 or self._owes:
            self._disk.save(self._state, step)
            self._owes = False
        if self._memory is not None and self._memory_every and step % self._memory_every == 0:
            self._memory.save(self._state, step)

    def save(self, step: int) -> None:
        """Begins a checkpoint of this step on disk, due or not; nothing to do where it has been written."""
        self._at = step
        if losses.outside() is None:
            losses.between(self._disk.save, self._state, step)

    def wait(self) -> None:
        """Until what is being written is complete. Raises what went wrong, on every rank."""
        if losses.outside() is None:
            losses.between(self._wait)

    def _wait(self) -> None:
        if self._owes:
            self._disk.save(self._state, self._at)
            self._owes = False
        for track in self._tracks:
            track.wait()

    def close(self) -> None:
        """Waits, and gives back memory and signals."""
        try:
            self.wait()
            if self._memory is not None:
                self._memory.forget()
        finally:
            self._leave()

    def leave_behind(self) -> None:
        """Collective over the ranks that are left when some were lost: what was being written is begun anew in the next
        `step`, or where it is waited for.
        """
        for track in self._tracks:
            self._owes |= track.begin_anew()
        owing, at = zip(*self._group.exchange((self._owes, self._at)), strict=True)
        self._owes, self._at = any(owing), max(at)  # a rank that has just come does not know

    def relocate(self) -> None:
        """The same where some of them have not made theirs yet: alone, since nothing is under way. (Managers that keep
        something in memory all ranks make at once.)
        """
        for track in self._tracks:
            track.relocate()

    def holds(self, thing: object) -> bool:
        """Whether this is an entry of the state."""
        return any(each is thing for each in self._state.values())

    def give(self) -> dict[str, Any]:
        """What a rank gets that takes the place of one that was lost."""
        return {
            key: value.state_dict() if isinstance(value, states.Stateful) else value
            for key, value in self._state.items()
        }

    def take(self, given: dict[str, Any]) -> None:
        """Takes over what another rank has given."""
        states.apply(self._state, given)

    def save_last(self, step: int) -> str:
        """Collective: writes a checkpoint of this step now, and waits for it. Returns the folder."""
        self._at = step
        self._disk.save(self._state, step)
        self._wait()
        return str(self._disk.place.folder)

    def _look(self) -> int:
        """Collective: moves on what all ranks have come to; returns the signal that came to one of them, or 0."""
        mine = np.array([self._signal, *(number for track in self._tracks for number in track.status())], np.int64)
        if self._group.comm is not None:
            from mpi4py import MPI

            everybody = np.empty_like(mine)
            with self._group.meeting("a look at checkpoints"):
                self._group.comm.Allreduce(mine, everybody, MPI.MAX)
            mine = everybody
        number, *status = mine.tolist()
        for track, (writing, failed) in zip(self._tracks, zip(status[::2], status[1::2], strict=True), strict=True):
            track.move_on(bool(writing), bool(failed))
        return number

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _leave(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def __enter__(self) -> "Manager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        for track in self._tracks:  # other ranks may be anywhere: nobody is waited for
            track.give_up()
        self._leave()


def _complete(folder: Path) -> list[int]:
    return [step for step, path in places.generations(folder).items() if places.is_complete(path)]


def _same(path: Path, other: Path) -> bool:
    """Whether one is a copy of the other, as far as this rank sees both."""
    try:
        return (path / manifest.NAME).read_bytes() == (other / manifest.NAME).read_bytes()
    except OSError:
        return False
