"""Code that the engine writes: it does what constructors and small functions say, and shows its lines."""

import inspect
import linecache
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import engine
from engine.autograd.node import Node
from engine.autograd.saved import SavedInput, SavedOutput
from engine.calls import written
from engine.calls.recording import OperatorNode
from engine.tensor import Tensor

ROOT = Path(engine.__file__).parent
CONSTRUCTORS = (Tensor, Node, SavedInput, SavedOutput, OperatorNode)

LOOK = """
import engine

def check(tensor):
    assert tensor._tensor_tag == 7, "Tensor"
    node = tensor.grad_fn
    if node is not None:
        assert (node._node_tag, node._operatornode_tag) == (7, 7), node
        for entry in filter(None, (*node.saved, *node.saved_outputs)):
            assert getattr(entry, f"_{type(entry).__name__.lower()}_tag") == 7, entry

plain = engine.rand(8, 16)
weight = engine.rand(16, 4, requires_grad=True)
product = plain @ weight
for made in (plain + plain, product, product.tanh(), product * product, product.exp(), product.sum(),
             engine.cat([product, product]), engine.where(product > 0, product, product), product[:2],
             *product.max(0), *product.split(2), engine.nn.functional.linear(plain, weight.t(), weight[0])):
    check(made)
product.tanh().sum().backward()
check(weight.grad)
"""


def test_a_slot_that_a_constructor_gets_is_in_every_object(tmp_path: Path) -> None:
    copied = tmp_path / "engine"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for kind in CONSTRUCTORS:
        file = copied / Path(inspect.getfile(kind)).relative_to(ROOT)
        name = f"_{kind.__name__.lower()}_tag"
        before, marker, after = file.read_text().partition(f"class {kind.__name__}")
        after = re.sub(r"__slots__ = \(", f'__slots__ = ("{name}", ', after, count=1)
        after = re.sub(r"(        )(self\.\w+(: [^=\n]+)? = [^\n]+\n)", rf"\1\2\1self.{name} = 7\n", after, count=1)
        file.write_text(before + marker + after)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", LOOK], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert not found.returncode, found.stderr


TRAIN = """
import engine

engine.manual_seed(0)
net = engine.nn.Sequential(
    engine.nn.Conv2d(1, 4, 3), engine.nn.BatchNorm2d(4), engine.nn.ReLU(), engine.nn.Flatten(), engine.nn.Linear(144, 5)
)
optimizer = engine.optim.AdamW(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = engine.nn.functional.cross_entropy(net(engine.randn(6, 1, 8, 8)), engine.arange(6) % 5)
    loss.backward()
    optimizer.step()
print([parameter.sum().item().hex() for parameter in net.parameters()])
"""


def test_without_asserts_and_docstrings_it_computes_the_same() -> None:
    plain, optimised = (
        subprocess.run([sys.executable, *options, "-c", TRAIN], capture_output=True, text=True)
        for options in ([], ["-OO"])
    )
    assert not optimised.returncode, optimised.stderr
    assert plain.stdout == optimised.stdout != ""


def example(tensor: str, size: int = 3) -> str:
    """A docstring."""
    kept: str = tensor * size
    if size > 2:
        kept += "!"
    return kept


class Base:
    def __init__(self, size: int) -> None:
        double = 2 * size
        self.size = double


class Derived(Base):
    def __init__(self, size: int, name: str = "n") -> None:
        super().__init__(size + 1)
        self.name = name


def test_lines_stand_for_calls() -> None:
    code = written.Code("a test", "made(word, count)")
    code.call("first", example, "word")
    code.call("second", example, "word", "count")
    code.construct("built", Derived, "count")
    code.add("return first, second, built")
    made = code.function()
    first, second, built = made("ab", 2)
    assert (first, second) == ("ababab!", "abab")
    assert type(built) is Derived
    assert vars(built) == vars(Derived(2))
    assert "example" not in code.names


def test_without_sources_calls_stand_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_body", lambda function: None)
    code = written.Code("a test without sources", "made(word)")
    code.call("first", example, "word")
    code.construct("built", Derived, "3")
    code.add("return first, built")
    first, built = code.function()("ab")
    assert (first, built.size) == ("ababab!", 8)


def test_tracebacks_show_the_lines() -> None:
    code = written.Code("a failing test", "made(word)")
    code.add("return word + 1")
    with pytest.raises(TypeError) as error:
        code.function()("a")
    file = error.traceback[-1].frame.code.raw.co_filename
    assert file == "<engine: a failing test>"
    linecache.checkcache()
    assert linecache.getline(file, error.traceback[-1].lineno + 1).strip() == "return word + 1"


def test_two_of_one_title_show_each_its_own() -> None:
    files = []
    for text in ("return 1", "return 2"):
        code = written.Code("one title", "made()")
        code.add(text)
        files.append(code.function().__code__.co_filename)
    shown = [textwrap.dedent(linecache.getline(file, 2)).strip() for file in files]
    assert shown == ["return 1", "return 2"]


def doubled(values: list[int], more: int = 0) -> list[int]:
    made = [2 * each for each in values]
    if more:
        made.append(more)
    return made


def tell(values: list[int], kept: list[int]) -> None:
    for value in values:
        if value < 0:
            continue
        kept.append(value)


def several(rounds: int, kept: list[int]) -> list[int]:
    values = [1, -1]
    for _ in range(rounds):
        values = doubled(values)
        tell(values, kept)
        doubled(values)
    return values


def test_calls_give_way_to_what_they_do() -> None:
    made = written.inlined(several, doubled, tell)
    expected, kept = [], []
    assert several(3, expected) == made(3, kept) == [8, -8]
    assert kept == expected == [2, 4, 8]
    assert not {"doubled", "tell"} & {*made.__code__.co_names}
    shown = "".join(linecache.getlines(made.__code__.co_filename))
    assert "kept.append(value_from_tell)" in shown
    assert "made_values = None" in shown  # as a call lets go of its variables
