"""Which of PyTorch's names that public files use are not here, and writes `torch_names.json` beside this file.

    python tests/data/torch_names.py --sources DIR --torch-python PYTHON

DIR has clones of repositories, PYTHON is that of an environment with PyTorch. A name is what a file imports from torch,
and each `torch.a.b` in it whose beginning is imported, as its syntax tree has it; what PyTorch itself has not is left
out. "uses" says how many files use the names that are missing, by the name above them that is missing first.
"""

import argparse
import ast
import contextlib
import importlib
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_suffix(".json")


def names_in(source: str) -> set[str]:
    """The dotted names of PyTorch that a file uses. Raises: SyntaxError."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    names |= {alias.name} - {"torch"}
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "torch":
            for alias in node.names:
                if alias.name != "*":
                    bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    names.add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        chain: list[str] = []
        at: Any = node
        while isinstance(at, ast.Attribute):
            chain.append(at.attr)
            at = at.value
        if chain and isinstance(at, ast.Name) and at.id in bound:
            names.add(".".join((bound[at.id], *reversed(chain))))
    return names


def used(sources: Path) -> dict[str, set[str]]:
    """The names that the files below a folder use -> these files."""
    uses: dict[str, set[str]] = {}
    for file in sorted(sources.rglob("*.py")):
        with contextlib.suppress(SyntaxError):
            for name in names_in(file.read_text(errors="replace")):
                uses.setdefault(name, set()).add(str(file.relative_to(sources)))
    return uses


def first_missing(name: str) -> str | None:
    """The shortest part of a name that whoever answers `import torch` has not; None where the whole is there."""
    parts = name.split(".")
    found: Any = importlib.import_module("torch")
    for end in range(2, len(parts) + 1):
        path = ".".join(parts[:end])
        try:
            found = getattr(found, parts[end - 1])
        except Exception:  # noqa: BLE001 - whatever a name raises, it is not there
            try:
                found = importlib.import_module(path)
            except Exception:  # noqa: BLE001
                return path
    return None


def asked(python: str, side: str, names: Iterable[str]) -> dict[str, str]:
    """The names that a side has not -> what of them is missing."""
    words = [python, "-W", "ignore", __file__, "--side", side]
    ended = subprocess.run(words, input=json.dumps(list(names)), capture_output=True, text=True, check=True)
    answer: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--torch-python")
    parser.add_argument("--side", choices=["torch", "here"], help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.side:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        warnings.simplefilter("ignore")
        if words.side == "here":
            importlib.import_module("engine.torch")
        print(json.dumps({name: path for name in json.load(sys.stdin) if (path := first_missing(name))}))
        return
    if words.sources is None or words.torch_python is None:
        parser.error("--sources and --torch-python are needed")
    uses = used(words.sources)
    theirs = asked(words.torch_python, "torch", uses)
    real = {name: files for name, files in uses.items() if name not in theirs}
    missing = asked(sys.executable, "here", sorted(real))
    result = {
        "repositories": len({file.partition("/")[0] for files in real.values() for file in files}),
        "files": len({file for files in real.values() for file in files}),
        "names": len(real),
        "files that use a missing one": len({file for name in missing for file in real[name]}),
        "uses": dict(Counter(missing[name] for name in missing for _ in real[name]).most_common()),
        "missing": sorted(missing),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(missing)} of {len(real)} names are missing")


if __name__ == "__main__":
    main()
