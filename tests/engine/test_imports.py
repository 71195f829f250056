"""No circle among the modules of engine: none needs another one that needs it, deferred imports included."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import engine

ROOT = Path(engine.__file__).parent
MODULES = {
    ".".join((path.parent if path.name == "__init__.py" else path.with_suffix("")).relative_to(ROOT.parent).parts): path
    for path in ROOT.rglob("*.py")
}


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those that run: what stands in `if TYPE_CHECKING:` does not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imports(node)


def needed_by(module: str) -> set[str]:
    found = set()
    for node in imports(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        else:
            found |= {
                inner if (inner := f"{node.module}.{each.name}") in MODULES else str(node.module) for each in node.names
            }
    return found & MODULES.keys() - {module}


def test_no_modules_need_each_other() -> None:
    TopologicalSorter({module: needed_by(module) for module in MODULES}).prepare()  # raises CycleError, which names one
