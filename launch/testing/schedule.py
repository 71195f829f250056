"""Which worker of pytest-xdist runs what: a file is one piece of work, as are all tests on the same number of ranks."""

import re

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_RANKS = re.compile(r"\[(?:.*-)?ranks=(\d+)(?:-.*)?\]$", re.DOTALL)


class FilesAndRanks(LoadFileScheduling):
    """`--dist loadfile`, but for tests on ranks: their jobs hold all files."""

    def _split_scope(self, nodeid: str) -> str:
        ranks = _RANKS.search(nodeid)
        return f"ranks={ranks[1]}" if ranks else str(super()._split_scope(nodeid))

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand on what a worker that died has left. The base class hands on the test it died of as well, up to nine
        times; a hang that pytest ends (faulthandler_timeout) would last nine times as long.
        """
        left = self.assigned_work.pop(node)
        died_of = next((nodeid for unit in left.values() for nodeid, done in unit.items() if not done), None)
        if died_of is None:
            return None
        left[self._split_scope(died_of)][died_of] = True
        self.workqueue.update({scope: unit for scope, unit in left.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        """A worker starts a test when it knows the next, or that there is none. The base class may hand out a single
        test, after which it waits for the worker and the worker for it.
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
