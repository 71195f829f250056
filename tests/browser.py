"""A page as a browser shows it: headless Chromium, without a network."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT = 120  # seconds


def opened(page: Path) -> str:
    """The document after its programs have run; fails if one of them did, or asked for anything from elsewhere.

    Skips where there is no Chromium.
    """
    if _CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=10000"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    options += [f"--user-data-dir={page.parent / 'browser'}"]
    ended = subprocess.run([_CHROMIUM, *options, page.as_uri()], capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"CONSOLE.*|.*ERR_NAME_NOT_RESOLVED.*", ended.stderr) == []
    return ended.stdout


def texts(document: str) -> list[str]:
    """What stands in the pictures of an opened page."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", document)
