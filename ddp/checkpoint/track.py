"""Generations in one place, one after another, each written by a thread while the caller goes on."""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from ddp import losses
from ddp.checkpoint import places
from ddp.checkpoint.agreeing import FAILURES, together
from ddp.checkpoint.places import Place
from ddp.checkpoint.progress import Progress
from ddp.checkpoint.saving import Cancelled, Save
from ddp.groups.process_group import ProcessGroup

_LOWER = 5
"""What is added to the thread's niceness: training has the first word where there are fewer cores than threads."""


class Track:
    """locate: finds the place, collectively; asked again when ranks were lost. keep: how many generations stay.
    replace: whether a save gives up one that is being written. overlap: whether what optimizers change is copied beside
    what training does until their next step. All ranks take the same course: what moves on is said by all of them
    together.
    """

    def __init__(
        self, locate: Callable[[], Place], keep: int, replace: bool, overlap: bool, group: ProcessGroup
    ) -> None:
        self._locate = locate
        self.place = locate()
        self.broken: set[Path] = set()
        self._keep, self._replace, self._overlap, self._group = keep, replace, overlap, group
        self._save: Save | None = None
        self._commits = False  # in the second phase, when all have written
        # A thread that stays: who starts one waits until it runs, and where it has the same core, on some kernels until
        # its time slice is over: 99 ms at each save and each commit.
        self._pool = ThreadPoolExecutor(1, "ddp checkpoint", _step_back)
        self._work: Future[None] | None = None
        self._cancelled = threading.Event()
        self._progress: Progress | None = None
        self._memory = np.empty(0, np.uint8)
        self._last: int | None = None

    @property
    def _makes(self) -> bool:
        return self._group.rank in self.place.makers

    def sweep(self) -> list[Path]:
        """Removes what writers that died have left here; returns what it was. Not collective."""
        return places.sweep(self.place.folder) if self._makes else []

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Collective: copies the state of a step and begins to write it."""
        if step == self._last:
            return
        if self._save is not None:
            if self._replace:
                self._cancel()
            else:
                self.wait()
        generation = places.path_of(self.place.folder, step)
        together(self._group, lambda: self._clear_way(generation, step))
        save = Save(state, generation, self.place, self._group, step)
        if self._memory.nbytes < save.nbytes:
            self._memory = np.empty(save.nbytes, np.uint8)
        save.stage(self._memory, state if self._overlap else None)
        self._save, self._commits, self._last = save, False, step
        self._cancelled.clear()
        self._progress = Progress(self._group, f"writing {generation}", save.nbytes)
        self._progress.awaited = False
        self._run(lambda: save.write(self._told, beside=True), save.copy_rest)

    def settle(self) -> None:
        """Waits until what is saved is copied: from then on anybody may write into it. Not collective."""
        if self._save is not None:
            self._save.settle()

    def status(self) -> tuple[bool, bool]:
        """Of this rank: whether its thread is at work, and whether it failed."""
        if self._save is None or self._work is None:
            return False, False
        return not self._work.done(), self._save.failed

    def move_on(self, writing: bool, failed: bool) -> None:
        """Collective: what follows from the `status` of any rank. Raises what went wrong."""
        if self._save is None or (writing and not failed):
            return
        save = self._save
        if failed:
            self._cancelled.set()
        self._join()
        if not self._commits:
            save.collect()
            self._commits = True
            self._run(lambda: self._commit(save))
            if not failed:
                return
            self._join()
        try:
            save.conclude()
        except FAILURES as error:
            if not losses.is_behind(error):  # else it may not be complete, and is begun anew
                self._save = self._last = None
            raise
        self._save = None

    def wait(self) -> None:
        """Collective: until nothing is under way. Raises what went wrong."""
        while self._save is not None:
            self._join()
            self.move_on(False, False)

    def give_up(self) -> None:
        """Ends what is under way on this rank, whatever the others do."""
        if self._save is not None:
            self._cancelled.set()
            self._join()
            self._save.abandon()
            self._save = None

    def relocate(self) -> None:
        """Its folder may be another one, and somebody else who makes it, among other ranks."""
        self.place = self._locate()

    def begin_anew(self) -> bool:
        """Collective over the ranks that are left when some were lost: gives up what is under way, and removes what
        they have left of it; whether there was anything that is not complete.
        """
        under_way = self._save and self._save.step
        self.give_up()
        self.relocate()
        self.sweep()
        complete = [step for step, path in places.generations(self.place.folder).items() if places.is_complete(path)]
        everyones = self._group.exchange((under_way not in (None, *complete), max(complete, default=None)))
        self._last = everyones[0][1]
        return any(each for each, _ in everyones)

    def forget(self) -> None:
        """Removes all generations."""
        if self._makes:
            places.forget(self.place.folder)

    def taken(self, step: int, folder: Path) -> None:
        """The state was taken from a generation; where it was one of these, it need not be written again."""
        if folder.parent == self.place.folder:
            self._last = step

    def _clear_way(self, generation: Path, step: int) -> None:
        if not self._makes:
            return
        if generation in self.broken:
            places.remove(generation)
        for later, path in places.generations(self.place.folder).items():
            if later > step and places.is_complete(path) and path not in self.broken:
                raise FileExistsError(
                    f"checkpoint: {self.place.folder} holds one of step {later}, and this is step {step}: go on from "
                    "there with restore(), or choose another folder"
                )

    def _commit(self, save: Save) -> None:
        save.commit()
        if self._makes and not save.failed:
            self.broken.discard(save.generation)
            try:
                places.rotate(self.place.folder, self._keep, self.broken)
                self.broken.clear()
            except OSError as error:
                places.logger.warning("checkpoint: an old one cannot be removed: %s", error)

    def _cancel(self) -> None:
        """Collective: gives up what is under way; what all have written is completed all the same."""
        self._cancelled.set()
        self.wait()

    def _told(self, count: int) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        if self._progress is not None:
            self._progress(count)
        # Linux leaves a running thread its slice, up to 4 ms, whatever the niceness of one that wakes; not after this.
        # A niceness that it would be stopped for at once (SCHED_IDLE) keeps it from ending where training never sleeps.
        os.sched_yield()

    def _run(self, work: Callable[[], None], first: Callable[[], None] = lambda: None) -> None:
        """Both in the thread; for the first somebody waits."""

        def run() -> None:
            first()
            work()

        self._work = self._pool.submit(run)

    def _join(self) -> None:
        if self._work is not None:
            if self._progress is not None:
                self._progress.awaited = True
            wait([self._work])
            self._work.result()
            self._work = None
            self.settle()


def _step_back() -> None:
    """Lowers this thread, where threads have a niceness of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _LOWER)
