"""The plugin that runs tests on MPI ranks: what the ranks make of a test is what pytest says of it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.launch.testing.inner import RunFile
from tests.mpi_job import ROOT


def test_passes_fails_and_skips_are_those_of_the_ranks(run_file: RunFile) -> None:
    result = run_file(
        """
@pytest.mark.mpi(ranks=[1, 2])
def test_passes(ranks, tmp_path, shared_tmp_path):
    assert comm.size == ranks
    (tmp_path / "mine").touch(exist_ok=False)
    (shared_tmp_path / str(comm.rank)).touch()
    comm.Barrier()
    assert len(os.listdir(shared_tmp_path)) == ranks

@pytest.mark.mpi(ranks=[2])
def test_fails_on_one_rank():
    print(f"words of rank {comm.rank}")
    assert comm.rank == 0, "the last rank says no"

@pytest.mark.mpi(ranks=[2])
def test_skips():
    pytest.skip("not here")

@pytest.mark.mpi(ranks=[2])
def test_skips_on_one_rank():
    if comm.rank == 1:
        pytest.skip("not here")

@pytest.mark.mpi(ranks=[2])
@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    assert False

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

@pytest.mark.mpi(ranks=[2])
def test_fixture_fails(broken):
    pass

def test_without_mark():
    assert comm.size == 1
"""
    )
    result.assert_outcomes(passed=3, failed=3, skipped=1, xfailed=1)
    output = result.stdout.str()
    assert "rank 1 of 2, call:" in output
    assert "the last rank says no" in output
    assert "words of rank 1" in output
    assert "words of rank 0" not in output
    assert "skipped on ranks [1] only" in output
    assert "not here" in output
    assert "rank 0 of 2, setup:" in output


def test_a_wrong_mark_is_a_usage_error(run_file: RunFile) -> None:
    result = run_file("@pytest.mark.mpi(2)\ndef test_it(): pass\n")
    assert result.ret != 0
    assert "expected mpi(ranks=[1, 2], timeout=60), got mpi(2,)" in result.stdout.str() + result.stderr.str()


SHARED = """
@pytest.fixture(scope="module")
def mine():
    return []

@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("i", range(2))
def test_it(i, ranks, mine):
    mine.append(i)
    assert mine == list(range(i + 1)), "a module's fixtures are made once"
    with open(f"../jobs-of-{ranks}", "a") as file:
        print(os.getppid(), file=file)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="alone"), pytest.param(("-n2", "--dist=loadfile"), id="xdist")],
)
def test_tests_of_all_files_on_the_same_number_of_ranks_share_a_job(
    run_file: RunFile, pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    result = run_file(SHARED.replace("../", ""), *options, test_other=SHARED.replace("../", ""))
    result.assert_outcomes(passed=8)
    for ranks in (1, 2):
        assert len(set((pytester.path / f"jobs-of-{ranks}").read_text().split())) == 1


@pytest.mark.full
def test_ranks_have_the_options_of_the_command_line(run_file: RunFile, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--word', default='')")
    result = run_file(
        """
@pytest.mark.mpi(ranks=[2])
def test_word(pytestconfig):
    assert pytestconfig.getoption("word") == "given"
    assert not pytestconfig.getoption("keyword")
    import warnings
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning)

@pytest.mark.mpi(ranks=[2])
def test_other(): assert False
""",
        "--word=given", "-k", "word", "-W", "error::DeprecationWarning", "-x", "test_inner.py",
    )  # fmt: skip
    result.assert_outcomes(passed=1, deselected=1)


@pytest.mark.full
def test_ranks_find_what_is_kept_only_where_somebody_asks_for_it(run_file: RunFile, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
def pytest_collection_modifyitems(config, items):
    if not config.getoption("markexpr") and config.args_source is not config.ArgsSource.ARGS:
        items.clear()
""")
    text = """
@pytest.mark.mpi(ranks=[1])
@pytest.mark.slow
def test_it(): assert comm.size == 1
"""
    run_file(text, "-m", "slow", "-W", "ignore").assert_outcomes(passed=1)


def test_loading_the_plugin_imports_nothing_but_pytest(pytester: pytest.Pytester, run_file: RunFile) -> None:
    """Every run of pytest in an environment that has this package pays for it."""
    code = "import sys, pytest; before = set(sys.modules); import launch.testing; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) == {"launch", "launch.testing"}


def test_the_wheel_has_the_plugin_under_the_name_of_its_module() -> None:
    """So that whoever also names it in `pytest_plugins` or with `-p` loads it once."""
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"launch.testing": "launch.testing"}
