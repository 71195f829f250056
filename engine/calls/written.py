"""Code that the engine writes itself, where a call of a small function takes longer than what the function does.

`compiled` makes a function of lines; tracebacks and debuggers show them. `Code` collects the lines, those of plain
functions and constructors among them, in place of calls: what those do is written down once, in themselves. Where a
program has no sources of the engine (it was frozen), calls stand in their place.
"""

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from engine.errors.callers import GENERATED

_INDENT = "    "


def compiled(name: str, title: str, lines: list[str], namespace: dict[str, Any]) -> Any:
    """The function `name` that the lines define; `title` says in tracebacks what it is."""
    source = "\n".join(lines) + "\n"
    lines_shown = source.splitlines(keepends=True)
    file, number = f"{GENERATED}{title}>", 1
    while linecache.getlines(file) not in ([], lines_shown):
        number += 1  # of a twin with other rules
        file = f"{GENERATED}{title}, {number}>"
    linecache.cache[file] = (len(source), None, lines_shown, file)
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


class Code:
    """Lines of a function and the names that they need; `title` says in tracebacks what it is."""

    def __init__(self, title: str, head: str) -> None:
        self._title = title
        self._name = head.split("(")[0]
        self.lines = [f"def {head}:"]
        self.names: dict[str, Any] = {}

    def add(self, *lines: str, **names: Any) -> None:
        """Lines of the body, each with its indent inside of it, and what stands behind names in them."""
        self.lines += [_INDENT + line for line in lines]
        for name, value in names.items():
            known = self.names.setdefault(name, value)
            assert known is value, f"{name} stands for two things in {self._title}"

    def call(self, result: str, function: Callable[..., Any], *arguments: str, indent: int = 0) -> None:
        """`result = function(*arguments)` for a function whose only return is at its end; arguments are names."""
        made = _body(function)
        if made is None:
            name = f"call_{function.__name__}"
            self.add(f"{_INDENT * indent}{result} = {name}({', '.join(arguments)})", **{name: function})
            return
        self._insert(made, result, arguments, indent)

    def construct(self, result: str, kind: type, *arguments: str, indent: int = 0) -> None:
        """`result = kind(*arguments)`."""
        made = _body(kind.__init__)  # type: ignore[misc]
        name = f"class_{kind.__name__}"
        if made is None:
            self.add(f"{_INDENT * indent}{result} = {name}({', '.join(arguments)})", **{name: kind})
            return
        self.add(f"{_INDENT * indent}{result} = new({name})", **{"new": object.__new__, name: kind})
        self._insert(made, "", (result, *arguments), indent)

    def _insert(self, body: "_Body", result: str, arguments: tuple[str, ...], indent: int) -> None:
        names = {own: f"{own}_{result or arguments[0]}" for own in body.locals}
        names |= {name: repr(value) for name, value in body.defaults.items()}
        names |= dict(zip(body.parameters, arguments, strict=False)) | {_RESULT: result}
        self.add(*(_INDENT * indent + _NAME.sub(lambda name: names[name[1]], line) for line in body.lines))
        self.add(**body.globals)

    def function(self) -> Any:
        """What the lines define."""
        return compiled(self._name, self._title, self.lines, self.names)


def inlined(function: Callable[..., Any], *others: Callable[..., Any]) -> Any:
    """`function`, in which calls of `others` by name, each a statement of its own with names as arguments, give way to
    what those do. What they have in local variables is let go of at their end, as where they return. Where there are
    no sources it is `function` as it is.
    """
    source, bodies = _source(function), {each.__name__: _body(each) for each in others}
    if source is None or None in bodies.values():
        return function
    names: dict[str, Any] = {}

    class Calls(ast.NodeTransformer):
        def generic_visit(self, node: Any) -> Any:
            call: Any = getattr(node, "value", None)
            body = bodies.get(getattr(getattr(call, "func", None), "id", ""))
            if body is None or not isinstance(node, ast.Assign | ast.Expr):
                return super().generic_visit(node)
            target: Any = None if isinstance(node, ast.Expr) else node.targets[0]
            result = f"from_{call.func.id}" if target is None else target.id
            code = Code("", "")
            code._insert(body, result, tuple(each.id for each in call.args), 0)
            names.update(code.names)
            gone = sorted(f"{own}_{result}" for own in body.locals)
            return ast.parse(textwrap.dedent("\n".join(code.lines[1:])) + f"\n{' = '.join(gone)} = None").body

    tree = Calls().visit(source)
    tree.returns = None
    for each in tree.args.args:
        each.annotation = None
    lines = ast.unparse(tree).splitlines()
    return compiled(function.__name__, function.__name__.strip("_"), lines, function.__globals__ | names)


_NAME = re.compile("«(\\w+)»")
_RESULT = "_result"


class _Body:
    """A plain function, apart: parameters, and lines in which their names, and those of local variables, stand in
    «marks».
    """

    def __init__(self, function: Any, tree: ast.FunctionDef) -> None:
        self.parameters = [each.arg for each in tree.args.args]
        parameters = inspect.signature(function).parameters.values()
        self.defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        if tree.args.vararg is not None:
            self.defaults[tree.args.vararg.arg] = ()
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        stored = {node.id for node in found if isinstance(node.ctx, ast.Store)}
        self.locals = stored - set(self.parameters)
        known = {each: value for each, value in function.__globals__.items() if each in {node.id for node in found}}
        self.globals = {each: known[each] for each in known.keys() - self.locals - {"super"}}
        for node in found:
            if node.id in self.locals or node.id in self.parameters or node.id in self.defaults:
                node.id = f"«{node.id}»"
        self.lines: list[str] = []
        for statement in tree.body[1:] if ast.get_docstring(tree) is not None else tree.body:
            self._add(function, statement)

    def _add(self, function: Any, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return):
            assert statement.value is not None
            self.lines.append(f"«{_RESULT}» = {ast.unparse(statement.value)}")
        elif isinstance(statement, ast.AnnAssign):
            assert statement.value is not None
            self.lines.append(f"{ast.unparse(statement.target)} = {ast.unparse(statement.value)}")
        elif ast.unparse(statement).startswith("super().__init__("):
            base = _body(function.__closure__[0].cell_contents.__mro__[1].__init__)
            assert base is not None, "one file has sources, another has not"
            given = [f"({ast.unparse(each)})" for each in statement.value.args]  # type: ignore[attr-defined]
            names = dict(zip(base.parameters, ["«self»", *given], strict=True))
            names |= {own: f"«{own}»" for own in base.locals}
            self.lines += [_NAME.sub(lambda name: names[name[1]], line) for line in base.lines]
            self.locals |= base.locals
            self.globals |= base.globals
        else:
            self.lines += ast.unparse(statement).splitlines()


@cache
def _body(function: Any) -> _Body | None:
    """None where there are no sources."""
    tree = _source(function)
    return None if tree is None else _Body(function, tree)


def _source(function: Any) -> ast.FunctionDef | None:
    code: Any = getattr(function, "__code__", None)
    lines = [] if code is None else linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        return None
    # `inspect.getsource` looks for the end by splitting the file into tokens, which takes 1 ms and more.
    last = max(end for _, end, _, _ in code.co_positions() if end is not None)
    tree = ast.parse(textwrap.dedent("".join(lines[code.co_firstlineno - 1 : last]))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree
