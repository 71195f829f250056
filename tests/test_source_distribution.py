"""What setuptools makes of the repository: what the source distribution brings beside the packages (MANIFEST.in), and
how an editable installation finds them.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_examples_tests_docs_and_the_changelog_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    egg_info = pytest.importorskip("setuptools.command.egg_info", reason="setuptools builds the distribution")
    monkeypatch.chdir(ROOT)
    files = egg_info.FileList()
    files.findall()
    for line in Path("MANIFEST.in").read_text().splitlines():
        files.process_template_line(line)
    found = set(files.files)
    for folder, pattern in (("examples", "*.py"), ("benchmarks", "*.py"), ("docs", "*.md"), ("tests", "**/*.py")):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern)} <= found
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "PERFORMANCE.md", "SECURITY.md"} <= found
    assert not [name for name in found if "__pycache__" in name]


def test_an_editable_installation_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="setuptools builds the distribution")
    for name in (
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "engine/__init__.py",
        "ddp/__init__.py",
        "launch/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=tmp_path, check=True, capture_output=True, timeout=120
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        files = [name for name in wheel.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in files] == [".pth"]  # and no module with an import hook
        assert wheel.read(files[0]).decode().strip() == str(tmp_path)
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode()
    page = metadata.partition("\n\n")[2]
    assert page.startswith("# allstride\n")
    assert "optimizers (`examples/optimizers.py`)" in page  # a link in README.md
    assert not re.findall(r"\]\((?!https?:)", page)  # no link or picture that a package index has not


def test_no_import_hook_stands_between_the_packages_and_their_users() -> None:
    """As one does where an editable installation was made without a path."""
    assert not [finder for finder in sys.meta_path if "allstride" in getattr(finder, "__module__", "")]
