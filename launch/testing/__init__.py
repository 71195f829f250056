"""Tests that run on several MPI ranks: a pytest plugin, loaded wherever this package is installed (docs/testing.md).

    @pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=60)
    def test_sum(ranks): ...

is one test per number of ranks. Its body, its fixtures and those only run inside `mpirun -n ranks`, on every rank at
once; `ranks` may be left out of the arguments. The fixture `shared_tmp_path` is one folder for all ranks.

Every run of pytest in such an environment imports this file, so it imports nothing but pytest until a marked test is
there. Then: launcher.py (hands tests to jobs), job.py (one mpirun), channel.py (the connection to one rank), watch.py
(when to wait no more), process.py (starts and ends mpirun), __main__.py and rank.py (what runs on each rank),
schedule.py (with pytest-xdist: which worker gets what).
"""

from typing import Any, NamedTuple

import pytest

RANK_PLUGIN = "mpi-rank"
"""The name under which a rank's side is registered, on the ranks of a job only."""

JOB_VARIABLE = "ALLSTRIDE_TEST_JOB"
"""The environment variable that tells a rank its job's folder."""

_NODEID = pytest.StashKey[str]()


class Marks(NamedTuple):
    """The arguments of `pytest.mark.mpi`."""

    ranks: list[int]
    timeout: float


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", "mpi(ranks, timeout=60): run on each of these numbers of MPI ranks, started by this plugin"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per number of ranks."""
    marks = read_marks(metafunc.definition)
    if marks is not None:
        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", marks.ranks, ids=[f"ranks={ranks}" for ranks in marks.ranks])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the name by which the ranks know the test: pytest-xdist may append to it."""
    item.stash[_NODEID] = item.nodeid


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that share a job next to each other, ordinary ones first, and have them run by a Launcher."""
    if config.pluginmanager.hasplugin(RANK_PLUGIN) or not any(number_of_ranks(item) for item in items):
        return
    from launch.testing.launcher import Launcher

    items.sort(key=number_of_ranks)
    for item in items:
        if number_of_ranks(item) and isinstance(item, pytest.Function):
            item.fixturenames = []  # they are the ranks'
    config.pluginmanager.register(Launcher(config, items), "mpi-launcher")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` the tests on the same number of ranks go to one worker, which needs one job for them."""
    if config.getoption("dist") != "loadfile":
        return None
    from launch.testing.schedule import FilesAndRanks

    return FilesAndRanks(config, log)


def read_marks(item: pytest.Item) -> Marks | None:
    """The `mpi` mark of a test, checked; None if it has none. Raises pytest.UsageError for a wrong one."""
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


def number_of_ranks(item: pytest.Item) -> int:
    """The number of ranks a collected test wants; 0 for an ordinary one."""
    if item.get_closest_marker("mpi") is None or not isinstance(item, pytest.Function):
        return 0
    ranks = item.callspec.params["ranks"]
    assert isinstance(ranks, int)
    return ranks


def nodeid_on_ranks(item: pytest.Item) -> str:
    """The name by which the ranks know a test."""
    return item.stash[_NODEID]
