"""Hands marked tests to jobs of ranks, and makes of the ranks' reports one outcome."""

from pathlib import Path

import pytest

from launch.testing import nodeid_on_ranks, number_of_ranks, read_marks
from launch.testing.job import Job, Report, describe
from launch.testing.process import end_with_parent

_MAX_JOBS = 3  # that may die: of those with many files before each file gets its own, and then of a file's own


class Launcher:
    """A pytest plugin, in the process that reports.

    Starting MPI and importing the tests costs seconds, so one job runs all tests with the same number of ranks. A test
    that hangs or dies takes its job with it: what is left of its file gets a job of its own, the other files share a
    new one. After `_MAX_JOBS` such deaths every file gets its own; after as many in one file, its tests fail unrun.
    """

    def __init__(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.config = config
        files: dict[int, dict[Path, None]] = {}  # as keys: to look for each of many tests in a list takes a second
        for item in items:
            files.setdefault(number_of_ranks(item), {})[item.path] = None
        self.files = {ranks: list(paths) for ranks, paths in files.items()}
        self.job: Job | None = None
        self.died: dict[tuple[int, Path], int] = {}
        self.next_item: pytest.Item | None = None
        if hasattr(config, "workerinput"):
            end_with_parent()  # a worker of pytest-xdist, which itself would look for its controller's end after a test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        """Remember what comes next: whether ranks keep their module's fixtures depends on it."""
        self.next_item = nextitem

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a marked test on its ranks instead of here."""
        ranks = number_of_ranks(pyfuncitem)
        if not ranks:
            return None
        job = self._job_for(pyfuncitem, ranks)
        successor = self.next_item
        stays = successor is not None and number_of_ranks(successor) == ranks and successor.path in job.files
        marks = read_marks(pyfuncitem)
        assert marks is not None
        try:
            reports = job.run(
                nodeid_on_ranks(pyfuncitem),
                nodeid_on_ranks(successor) if successor is not None and stays else None,
                marks.timeout,
            )
        finally:
            if not job.alive:
                self._bury(job, pyfuncitem.path)
        raise_outcome(reports, ranks)
        return True

    def pytest_unconfigure(self) -> None:
        """Let the last job go."""
        if self.job is not None:
            self.job.end()

    def _job_for(self, item: pytest.Function, ranks: int) -> Job:
        if self.job is not None:
            if self.job.ranks == ranks and item.path in self.job.files and self.job.lives():
                return self.job
            self.job.end()
            self.job = None
        alone = item.path if item.path not in self.files[ranks] else None
        if self.died.get((ranks, item.path), 0) >= _MAX_JOBS:
            pytest.fail(
                f"not run: {_MAX_JOBS} jobs of {ranks} ranks for {item.path.name} have died already", pytrace=False
            )
        self.job = Job(self.config, self.files[ranks] if alone is None else [alone], ranks)
        return self.job

    def _bury(self, job: Job, culprit: Path) -> None:
        job.end()
        self.job = None
        self.died[job.ranks, culprit] = self.died.get((job.ranks, culprit), 0) + 1
        shared = self.files[job.ranks]
        if culprit in shared:
            shared.remove(culprit)
            if sum(ranks == job.ranks for ranks, _ in self.died) == _MAX_JOBS:
                shared.clear()


def raise_outcome(reports: list[Report], ranks: int) -> None:
    """Turn what the ranks reported, in order of arrival, into this test's outcome."""
    failed = [report for report in reports if report.report.failed]
    if failed:
        pytest.fail("\n".join(describe(report, ranks) for report in failed), pytrace=False)
    skipped = {report.rank: report for report in reports if report.report.skipped}
    if skipped and len(skipped) < ranks:
        pytest.fail(f"skipped on ranks {sorted(skipped)} only, the others ran", pytrace=False)
    if skipped:
        longrepr = skipped[min(skipped)].report.longrepr
        pytest.skip(str(longrepr[2] if isinstance(longrepr, tuple | list) else longrepr).removeprefix("Skipped: "))
