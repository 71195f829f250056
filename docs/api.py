"""Writes the pages of the API reference: what `dir()` of each public package shows, with its docstring.

docs/conf.py calls `write` when the site is built. Docstrings are Markdown as they stand.
"""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from launch.options import build_parser

# Every public package or module whose names have a page, and what it holds.
PAGES = {
    "ddp": "Process groups, collectives, DistributedDataParallel",
    "ddp.checkpoint": "State that outlives a job",
    "ddp.hooks": "Communication hooks",
    "ddp.testing": "Ranks as threads of one process",
    "ddp.bench": "How fast ranks sum",
    "ddp.forecast": "A step on more nodes",
    "ddp.doctor": "What is wrong with a machine",
    "engine": "Tensors and functions of them",
    "engine.autograd": "Derivatives",
    "engine.nn": "Layers and losses",
    "engine.nn.functional": "Layers as functions",
    "engine.nn.init": "First values of parameters",
    "engine.nn.utils": "Helpers for layers",
    "engine.optim": "Optimizers",
    "engine.optim.lr_scheduler": "Learning rates over time",
    "engine.data": "Data sets and loaders",
    "engine.amp": "Mixed precision",
    "engine.linalg": "Linear algebra",
    "engine.fft": "Fourier transforms",
}


_WIDTH = 90


def write(folder: Path) -> None:
    """Writes a page for each of PAGES and one for ddprun into the folder, and `index.md`, which lists them."""
    folder.mkdir(exist_ok=True)
    pages = {name: page(name, title) for name, title in PAGES.items()} | {"ddprun": _command()}
    order = "\n".join(sorted(pages))
    pages["index"] = f"# Reference\n\n```{{toctree}}\n:maxdepth: 1\n{order}\n```\n"
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:  # what has not changed is not built again
            path.write_text(text)


def _command() -> str:
    """The options of ddprun, as `ddprun --help` has them."""
    parser = build_parser()
    rows = []
    for action in parser._actions:
        value = f" {action.metavar}" if action.metavar else ""
        names = ", ".join(f"`{option}{value}`" for option in action.option_strings)
        rows.append(f"* {names}: {_plain(action.help or '')}")
    return "\n\n".join(
        [
            "# ddprun",
            _plain(parser.description or ""),
            f"```text\n{parser.usage}\n```",
            "\n".join(rows),
            _plain(parser.epilog or ""),
        ]
    )


def page(module_name: str, title: str) -> str:
    """The page of one module: its docstring, then its functions and classes."""
    module = importlib.import_module(module_name)
    parts = [f"# {module_name}\n\n{title}.", markdown(inspect.getdoc(module) or "")]
    for name in _public(module):
        parts += _entry(f"{module_name}.{name}", getattr(module, name))
    return "\n\n".join(parts)


def _public(module: ModuleType) -> list[str]:
    """Functions and classes, each by the first of its names; modules within have pages of their own, or none."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    found: dict[int, str] = {}
    for name in sorted(names, key=lambda name: (name.lower(), name)):
        thing = getattr(module, name)
        ours = (getattr(thing, "__module__", None) or "").partition(".")[0] in ("ddp", "engine", "launch")
        if callable(thing) and ours and inspect.getdoc(thing):
            found.setdefault(id(thing), name)
    return list(found.values())


def _entry(name: str, thing: object) -> Iterator[str]:
    short = name.rpartition(".")[2]
    yield f"## {short}"
    yield f"```python\n{'class ' if isinstance(thing, type) else ''}{short}{_signature(thing)}\n```"
    yield markdown(inspect.getdoc(thing) or "")
    if isinstance(thing, type) and not issubclass(thing, enum.Enum):
        for member, value in vars(thing).items():
            text = inspect.getdoc(value) if not member.startswith("_") else None
            if text is None:
                continue
            if isinstance(value, property):
                yield f"**`{member}`** (property)"
            elif callable(value) or isinstance(value, (staticmethod, classmethod)):
                yield f"**`{member}{_signature(getattr(thing, member))}`**"
            else:
                continue
            yield markdown(text)


def _signature(thing: object) -> str:
    """As Python would have it, names without their modules; an argument a line where it would be long."""
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # built in
        return "(...)"
    text = _short(str(signature))
    if len(text) < _WIDTH:
        return text
    words = [_short(str(parameter)) for parameter in signature.parameters.values()]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = f" -> {_short(text.rpartition(' -> ')[2])}" if " -> " in text else ""
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _short(text: str) -> str:
    text = re.sub(r"<[^>]*?>", "...", text).replace("'", "")
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", text)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: an argument or an error a line, and nothing that looks like HTML."""
    lines = []
    before = ""
    for line in docstring.splitlines():
        indented = line.startswith("    ")
        if not indented:
            if re.match(r"[\w*, ]{1,40}: \S", line):  # "net: what it is"
                line = re.sub(r"^([\w*, ]+):", r"* **\1**:", line.replace("*", r"\*"))
                if before and not before.startswith("* "):
                    lines.append("")
            line = _plain(line)
        elif before and not before.startswith("    "):
            lines.append("")  # an example directly below its sentence
        lines.append(line)
        before = line
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")
