"""What the repository says about itself: README, CI and packaging agree with each other and with the files."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tiers import GPU, LEFT_OUT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_ci_runs_exactly_the_commands_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert re.findall(r"^\w+='(python3 -m venv .*)'$", (ROOT / ".ci/run").read_text(), re.MULTILINE) == commands


def test_both_commands_are_on_the_first_screen() -> None:
    first_screen = README.splitlines()[:40]
    assert sum(line.startswith("python3 -m venv ") for line in first_screen) == 2


def test_links_of_the_documents_lead_somewhere() -> None:
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "PERFORMANCE.md")]
    site = ROOT / "docs"  # its pages lead to each other only: sphinx-build -W refuses a page that it does not build
    for document in (*documents, *site.glob("*.md"), *site.glob("howto/*.md")):
        targets = re.findall(r"\]\(([^)#]+)\)", document.read_text())
        written_by_the_build = ("reference/", "../reference/")  # docs/conf.py
        elsewhere = [t for t in targets if not t.startswith(("https://", *written_by_the_build))]
        missing = [t for t in elsewhere if not (document.parent / t).exists()]
        assert not missing, f"{document} links to {missing}"
        if document.is_relative_to(site):
            pages = [t for t in elsewhere if t.endswith(".md")]
            outside = [t for t in pages if not (document.parent / t).resolve().is_relative_to(site)]
            assert not outside, f"{document} links to {outside}, which the site does not have"


def test_the_tiers_are_documented_and_name_what_exists() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for words in ("pytest --full", "tests/tiers.py", "marked `full`", "marked `gpu`", "mark.mpi("):
        assert words in contributing
    for names in LEFT_OUT.values():
        for name in names:
            assert (ROOT / "tests" / name).exists()


def test_ci_runs_the_full_tier() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert "pytest --full" in script
    assert " ".join(f"tests/{name}" for name in LEFT_OUT[GPU]) in script  # which skip where there is no CuPy
    elsewhere = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if not any(path.is_relative_to(ROOT / "tests" / name) for name in LEFT_OUT[GPU])
    ]
    assert [path for path in elsewhere if re.search(r"def test_\w+\([^)]*\bcuda\b", path.read_text())] == []


def test_the_hosted_ci_runs_the_same_on_what_is_promised() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r"- run: (\.ci/.*)", workflow) == [".ci/run"]
    images = re.findall(r"^ +- (\w+:[\w.-]+)$", workflow, re.MULTILINE)
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    pythons = [re.match(r"python:([\d.]+)", image)[1] for image in images if image.startswith("python:")]
    assert pythons[0] == oldest
    assert {"debian:12", "debian:13", *(f"python:{p}" for p in ("3.12-bookworm", "3.14-trixie"))} <= set(images)


def test_files_that_the_documents_name_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"`((?:engine|ddp|launch|tests|examples)/[\w/]+(?:\.py|/))`", (ROOT / document).read_text())
        assert named or document == "README.md"
        assert not [name for name in named if not (ROOT / name).exists()]


def test_every_benchmark_is_named_with_what_it_answers() -> None:
    named = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \| \S", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


def test_the_script_of_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    # In a process of its own: MPI, once started in this one, would leave its variables to the jobs of later tests.
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_every_package_is_distributed() -> None:
    """A folder with modules but without `__init__.py` would be left out of the wheel."""
    for package in ("engine", "ddp", "launch"):
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            assert (folder / "__init__.py").is_file(), folder


def test_only_the_backend_imports_cupy() -> None:
    """import-linter sees import statements; CuPy is imported by name, when a GPU is first asked for."""
    wanting = re.compile(r"""import_module\(\s*["'](cupy|numba|mpi4py)|^\s*(?:import|from)\s+cupy""", re.MULTILINE)
    found = {str(p.relative_to(ROOT)) for name in ("engine", "ddp", "launch") for p in (ROOT / name).rglob("*.py")
             if wanting.search(p.read_text())}  # fmt: skip
    assert found == {"engine/memory/backend.py"}


def test_no_package_uses_names_with_an_underscore_of_another() -> None:
    """What a name begins with belongs to the package that defines it; what is not defined here is another's."""
    # of the standard library's and xdist's classes, which have no other names for it
    known = {"_replace", "_fields", "_asdict", "_exit", "_getframe", "_current_frames", "_actions", "_pending_of"}
    for name in ("ddp", "launch"):
        own, used = set(known), {}
        for path in (ROOT / name).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    own.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    own.add(node.id)
                elif isinstance(node, ast.Attribute):
                    of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                    if of_itself and isinstance(node.ctx, ast.Store):
                        own.add(node.attr)
                    elif re.match(r"_[a-z]", node.attr):
                        used.setdefault(node.attr, f"{path.relative_to(ROOT)}:{node.lineno}")
                elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(name):
                    hidden = [alias.name for alias in node.names if re.match(r"_[A-Za-z]", alias.name)]
                    assert not hidden, f"{path.relative_to(ROOT)}:{node.lineno} imports {hidden}"
        foreign = {attribute: where for attribute, where in used.items() if attribute not in own}
        assert not foreign, f"{name} uses names of other packages: {foreign}"


def test_no_rule_of_correctness_is_switched_off_for_the_whole_project() -> None:
    lint = PROJECT["tool"]["ruff"]["lint"]
    assert {"E", "F", "B", "BLE"} <= set(lint["select"])
    assert not {"ignore", "extend-ignore", "per-file-ignores"} & set(lint)
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"][0] == "error"


def test_the_questions_of_contributors_have_answers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    answers = text.partition("## Where is ...?")[2].partition("\n## ")[0]
    rows = [line for line in answers.splitlines() if line.startswith("| ") and not line.startswith("| question")]
    assert len(rows) == 14
    for row in rows:
        files = re.findall(r"`((?:engine|ddp)/[\w/.]+\.py)`", row)
        assert files, row
        assert all((ROOT / file).is_file() for file in files), row


def test_no_assert_does_something() -> None:
    """`python -O` leaves it out."""
    changing = {
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "next",
        "pop",
        "popleft",
        "remove",
        "setdefault",
    }
    found = []
    for package in ("engine", "ddp", "launch"):
        for file in (ROOT / package).rglob("*.py"):
            inside = (
                node
                for each in ast.walk(ast.parse(file.read_text()))
                if isinstance(each, ast.Assert)
                for node in ast.walk(each.test)
            )
            for node in inside:
                called = getattr(node, "func", None)
                name = getattr(called, "attr", getattr(called, "id", None))
                if isinstance(node, ast.NamedExpr) or name in changing:
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not found
