"""Runs the scripts of `compat/`, which are written for PyTorch, as they are or with their import lines changed."""

import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SCRIPTS = sorted((Path(__file__).parent / "compat").glob("*.py"))

# What README.md says of import lines, longest name first.
_PACKAGES = {
    "torch.utils.data.distributed": "ddp",
    "torch.nn.parallel": "ddp",
    "torch.distributed": "ddp",
    "torch.utils.data": "engine.data",
    "torch": "engine",
}
_IMPORT = re.compile(r"^(?P<start>\s*(?:import|from)\s+)(?P<package>torch[\w.]*)(?P<rest>.*)$")


def converted(source: str) -> str:
    """The source with its import lines changed and nothing else."""
    return "\n".join(_converted_line(line) for line in source.split("\n"))


def _converted_line(line: str) -> str:
    match = _IMPORT.match(line)
    if match is None:
        return line
    package, rest = match["package"], match["rest"]
    there = next(each for each in _PACKAGES if package == each or package.startswith(f"{each}."))
    here = _PACKAGES[there] + package[len(there) :]
    if package == "torch" and match["start"].strip() == "import" and " as " not in rest:
        rest = f" as torch{rest}"
    return f"{match['start']}{here}{rest}"


def fill(module: Any, scale: float = 0.3) -> None:
    """Gives every parameter numbers that depend on its place, shape and name only."""
    for place, (name, parameter) in enumerate(module.named_parameters()):
        values = np.random.default_rng(place).uniform(-scale, scale, tuple(parameter.shape))
        offset = 1.0 if "norm" in name or "bn" in name else 0.0
        parameter.detach().numpy()[...] = values + (offset if name.endswith("weight") else 0.0)


def run(path: Path, convert: Callable[[str], str]) -> list[float]:
    """The numbers that the script's `main` returns: losses, step by step."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(convert(path.read_text(encoding="utf-8")), str(path), "exec"), module.__dict__)
    return [float(number) for number in module.__dict__["main"](fill)]
