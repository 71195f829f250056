"""Which worker of pytest-xdist runs what: a file is one piece of work, as are all tests on the same number of ranks."""

import re

from xdist.scheduler import LoadFileScheduling

_RANKS = re.compile(r"\[(?:.*-)?ranks=(\d+)(?:-.*)?\]$", re.DOTALL)


class FilesAndRanks(LoadFileScheduling):
    """`--dist loadfile`, but for tests on ranks: their jobs hold all files."""

    def _split_scope(self, nodeid: str) -> str:
        ranks = _RANKS.search(nodeid)
        return f"ranks={ranks[1]}" if ranks else super()._split_scope(nodeid)
