"""Tests that run on several MPI ranks, as a pytest plugin.

    @pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=60)
    def test_sum(ranks): ...

is one test per number of ranks. Its body, its fixtures and those only run inside `mpirun -n ranks python -m pytest
<file>`, on every rank at once; `ranks` may be left out of the arguments. The fixture `shared_tmp_path` is one folder
for all ranks.

Starting MPI costs about a second, so one job runs all tests of a file with the same number of ranks, one after another,
in lockstep: the ranks ask this process for the next test and send it their reports as JSON lines. A test has passed
when it passed on all ranks. The rank that failed first is reported first; when others still wait for it, or `timeout`
seconds are over, the job is ended, the test has failed, and the next test gets a new job (up to `_MAX_JOBS` per file
and number).
"""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mpi_lockstep import JOB_VARIABLE, Job, Report, describe

_MAX_JOBS = 3


class Marks(NamedTuple):
    """The arguments of `pytest.mark.mpi`."""

    ranks: list[int]
    timeout: float


@pytest.hookimpl(tryfirst=True)  # before pytest decides where temporary folders are
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "mpi(ranks, timeout=60): run on each of these numbers of MPI ranks, started by this plugin"
    )
    if JOB_VARIABLE in os.environ:
        from tests.mpi_rank import Rank

        config.pluginmanager.register(Rank(config, Path(os.environ[JOB_VARIABLE])), "mpi-rank")
    else:
        config.pluginmanager.register(Launcher(), "mpi-launcher")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = read_marks(metafunc.definition)
    if marks is not None:
        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", marks.ranks, ids=[f"ranks={ranks}" for ranks in marks.ranks])


def read_marks(item: pytest.Item) -> Marks | None:
    """The `mpi` mark of a test, checked; None if it has none."""
    mark = item.get_closest_marker("mpi")
    if mark is None:
        return None
    unknown = set(mark.kwargs) - {"ranks", "timeout"}
    ranks = mark.kwargs.get("ranks", [])
    if mark.args or unknown or not ranks or not all(isinstance(number, int) and number > 0 for number in ranks):
        raise pytest.UsageError(
            f"{item.nodeid}: expected mpi(ranks=[1, 2], timeout=60), got mpi{mark.args}{mark.kwargs}"
        )
    return Marks(list(ranks), float(mark.kwargs.get("timeout", 60.0)))


class Launcher:
    """The pytest side: hands marked tests to jobs."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.jobs_started: dict[tuple[Path, int], int] = {}
        self.next_item: pytest.Item | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put tests that can share a job next to each other, and leave their fixtures to the ranks."""
        files = {path: place for place, path in reversed(list(enumerate(item.path for item in items)))}
        items.sort(key=lambda item: (files[item.path], number_of_ranks(item)))
        for item in items:
            if number_of_ranks(item) and isinstance(item, pytest.Function):
                item.fixturenames = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        self.next_item = nextitem

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        ranks = number_of_ranks(pyfuncitem)
        if not ranks:
            return None
        key = (pyfuncitem.path, ranks)
        successor = self.next_item
        shares_job = successor is not None and (successor.path, number_of_ranks(successor)) == key
        try:
            self.job = self.job or self._new_job(pyfuncitem, key)
            marks = read_marks(pyfuncitem)
            assert marks is not None
            reports = self.job.run(
                pyfuncitem.nodeid, successor.nodeid if successor and shares_job else None, marks.timeout
            )
        finally:
            if self.job is not None and (not shares_job or not self.job.alive):
                self.job.end()
                self.job = None
        raise_outcome(reports, ranks)
        return True

    def pytest_unconfigure(self) -> None:
        if self.job is not None:
            self.job.end()

    def _new_job(self, item: pytest.Function, key: tuple[Path, int]) -> "Job":
        started = self.jobs_started[key] = self.jobs_started.get(key, 0) + 1
        if started > _MAX_JOBS:
            pytest.fail(
                f"not run: {_MAX_JOBS} jobs of {key[1]} ranks for {key[0].name} have died already", pytrace=False
            )
        return Job(item.config, *key)


def number_of_ranks(item: pytest.Item) -> int:
    """The number of ranks a collected test wants; 0 for an ordinary one."""
    if item.get_closest_marker("mpi") is None or not isinstance(item, pytest.Function):
        return 0
    return int(item.callspec.params["ranks"])


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
