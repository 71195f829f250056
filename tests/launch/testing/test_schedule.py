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


def test_files_of_many_tests_and_of_few_take_turns(run_file: RunFile, pytester: pytest.Pytester) -> None:
    """One worker is handed a file ahead, so that the order is seen whole."""
    counts = {"test_inner.py": 2, "one.py": 1, "five.py": 5, "four.py": 4, "three.py": 3}
    body = """
import pytest
@pytest.mark.parametrize("i", range({count}))
def test_it(i):
    with open("order", "a") as file:
        print({count}, file=file)
"""
    files = {name.removesuffix(".py"): body.format(count=count) for name, count in counts.items()}
    inner = files.pop("test_inner")
    result = run_file(inner, "-n1", "--dist=loadfile", **{f"test_{name}": text for name, text in files.items()})
    result.assert_outcomes(passed=15)
    order = (pytester.path / "order").read_text().split()
    assert list(dict.fromkeys(order)) == ["5", "1", "4", "2", "3"]
