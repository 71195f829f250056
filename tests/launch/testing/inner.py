"""What the tests of the plugin share."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

RunFile = Callable[..., pytest.RunResult]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or will be as soon as its parent looks; a killed process may take a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again until it holds; a minute at most."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come")
