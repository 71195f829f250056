"""What the source distribution brings beside the packages: MANIFEST.in, as setuptools reads it."""

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
