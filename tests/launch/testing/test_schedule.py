"""The plugin beside pytest-xdist."""

import pytest

from tests.launch.testing.inner import RunFile


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
def test_a_test_that_kills_its_worker_is_not_run_again(
    run_file: RunFile, pytester: pytest.Pytester, workers: int
) -> None:
    result = run_file(
        """
def test_before(): pass

def test_dies():
    with open("died", "a") as file:
        print("once", file=file)
    os._exit(3)

@pytest.mark.parametrize("i", range(5))
def test_after(i): pass
""",
        f"-n{workers}",
        "--dist=loadfile",
        test_other="def test_other(): pass\n",
    )
    result.assert_outcomes(failed=1, passed=7)
    result.stdout.fnmatch_lines(["*crashed while running 'test_inner.py::test_dies'*"])
    assert (pytester.path / "died").read_text() == "once\n"


@pytest.mark.full
def test_a_hang_is_ended_with_its_stack(run_file: RunFile) -> None:
    result = run_file(
        "def test_hangs(): time.sleep(100)\ndef test_next(): pass\n",
        "-n1",
        "--dist=loadfile",
        "-o=faulthandler_timeout=2",
        "-o=faulthandler_exit_on_timeout=true",
    )
    result.assert_outcomes(failed=1, passed=1)
    assert "in test_hangs" in result.stderr.str()
