"""Tracebacks that programs end with: the user's frames, those called back from inside too, and how many others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import engine
from engine.errors import tracebacks
from tests.mpi_job import ROOT, python_path, run_job

_NOTICE = re.compile(r"\((\d+) frames? inside allstride not shown; ALLSTRIDE_TRACEBACK=full shows all\)")

HEAD = "import engine\nfrom engine import nn\n"

FORWARD = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))
    def forward(self, x):
        return self.layers(x)
def train():
    Model()(engine.zeros(2, 3))
train()
"""

MODULE_HOOK = """
def watch(module, inputs, output):
    raise KeyError("in the hook")
layer = nn.Linear(3, 4)
layer.register_forward_hook(watch)
layer(engine.zeros(2, 3))
"""

TENSOR_HOOK = """
def watch(gradient):
    return gradient @ engine.zeros(7)
x = engine.ones(3, requires_grad=True)
x.register_hook(watch)
(x * 2).sum().backward()
"""

CUSTOM_BACKWARD = """
class Twice(engine.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return helper(gradient)
def helper(gradient):
    return gradient.reshape(5)
Twice.apply(engine.ones(3, requires_grad=True)).sum().backward()
"""

IN_A_THREAD = """
import threading
def work():
    engine.ones(3).reshape(2)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

CHAINED = """
class Frozen(Exception):
    def __setattr__(self, name, value):
        raise TypeError("is frozen")
    __hash__ = None
def inner():
    engine.ones(3).reshape(2)
def outer():
    try:
        inner()
    except RuntimeError as error:
        raise Frozen("about the data") from error
outer()
"""

IN_A_GROUP = """
def collect():
    errors = []
    for size in 2, 5:
        try:
            engine.ones(3).reshape(size)
        except RuntimeError as error:
            error.add_note(f"size {size}")
            errors.append(error)
    raise ExceptionGroup("both", errors)
collect()
"""

IN_A_WORKER = """
class Items(engine.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return engine.ones(3).reshape(2)
if __name__ == "__main__":
    for batch in engine.data.DataLoader(Items(), num_workers=1):
        pass
"""

PROGRAMS = {
    "forward": (FORWARD, ["<module>", "train", "forward"]),
    "module hook": (MODULE_HOOK, ["<module>", "watch"]),
    "tensor hook": (TENSOR_HOOK, ["<module>", "watch"]),
    "custom backward": (CUSTOM_BACKWARD, ["<module>", "backward", "helper"]),
    "chained": (CHAINED, ["outer", "inner", "<module>", "outer"]),
    "group": (IN_A_GROUP, ["<module>", "collect", "collect", "collect"]),
}
OTHERS = [name for name in PROGRAMS if name not in ("forward", "custom backward")]


def stderr_of(tmp_path: Path, text: str, *, code: int = 1, **environment: str) -> str:
    """What the program writes to standard error."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    variables = {**os.environ, "PYTHONPATH": python_path(), **environment}
    ended = subprocess.run(
        [sys.executable, str(program)], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stderr
    return ended.stderr


def files_of(stderr: str) -> set[str]:
    return set(re.findall(r'File "([^"]+)", line', stderr))


def functions_of(stderr: str) -> list[str]:
    return re.findall(r'File "[^"]+", line \d+, in (\S+)', stderr)


@pytest.mark.parametrize(
    "name", ["forward", "custom backward", *(pytest.param(n, marks=pytest.mark.full) for n in OTHERS)]
)
def test_a_program_ends_with_the_users_frames(tmp_path: Path, name: str) -> None:
    text, functions = PROGRAMS[name]
    stderr = stderr_of(tmp_path, text)
    assert functions_of(stderr) == functions
    assert files_of(stderr) == {str(tmp_path / "program.py")}
    notice = _NOTICE.fullmatch(stderr.splitlines()[-1])
    assert notice is not None

    whole = stderr_of(tmp_path, text, ALLSTRIDE_TRACEBACK="full")
    assert len(functions_of(whole)) == len(functions) + int(notice[1])
    assert not _NOTICE.search(whole)


def test_notes_and_messages_stay(tmp_path: Path) -> None:
    stderr = stderr_of(tmp_path, IN_A_GROUP)
    assert all(words in stderr for words in ("ExceptionGroup: both (2 sub-exceptions)", "| size 2", "| size 5"))
    assert "The above exception was the direct cause" in stderr_of(tmp_path, CHAINED)


def test_a_program_that_goes_through_no_code_of_ours_has_no_notice(tmp_path: Path) -> None:
    stderr = stderr_of(tmp_path, "def f():\n    return 1 / 0\nf()\n")
    assert functions_of(stderr) == ["<module>", "f"]
    assert stderr.endswith("ZeroDivisionError: division by zero\n")


def test_the_end_of_a_thread(tmp_path: Path) -> None:
    stderr = stderr_of(tmp_path, IN_A_THREAD, code=0)
    assert stderr.startswith("Exception in thread Thread-1 (work):")
    assert functions_of(stderr)[-1] == "work"
    assert _NOTICE.fullmatch(stderr.splitlines()[-1])
    assert stderr_of(tmp_path, IN_A_THREAD.replace("engine.ones(3).reshape(2)", "raise SystemExit"), code=0) == ""


def test_an_exception_in_a_loaders_worker(tmp_path: Path) -> None:
    stderr = stderr_of(tmp_path, IN_A_WORKER)
    assert functions_of(stderr) == ["<module>", "__getitem__"]
    assert files_of(stderr) == {str(tmp_path / "program.py")}
    assert "Caught RuntimeError in DataLoader worker process 0" in stderr


def test_another_excepthook_stays_and_gets_everything(tmp_path: Path) -> None:
    stderr = stderr_of(
        tmp_path,
        "import sys\n"
        "def mine(kind, error, trace):\n"
        "    print(trace.tb_next is not None, file=sys.stderr)\n"
        "sys.excepthook = mine\n"
        "engine.errors.tracebacks.install()\n"
        "engine.ones(3).reshape(2)\n",
    )
    assert stderr == "True\n"


def test_where_all_is_ours_all_is_shown() -> None:
    """The frames of this file are a user's: the traceback begins below them."""
    with pytest.raises(RuntimeError) as caught:
        engine.ones(3).reshape(2)
    error = caught.value
    whole = error.__traceback__
    assert whole is not None
    error.__traceback__ = whole.tb_next
    text = "".join(tracebacks.format_exception(error))
    assert len(functions_of(text)) == len(tracebacks._frames(whole)) - 1 > 0
    assert not _NOTICE.search(text)

    # in a chain with a user's frame, one that has none keeps its last
    try:
        raise ValueError("told") from error
    except ValueError as told:
        text = "".join(tracebacks.format_exception(told))
    assert len(functions_of(text)) == 2
    assert error.__traceback__ is whole.tb_next


FAULT = """
import ddp
ddp.init_process_group()
model = nn.Linear(3, 2)
wrapped = ddp.DistributedDataParallel(model)
def watch(module, inputs, output):
    if ddp.get_rank() == 1:
        output.reshape(100)
model.register_forward_hook(watch)
wrapped(engine.zeros(2, 3)).sum().backward()
ddp.barrier()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "runner",
    [("-m", "mpi4py"), (str(ROOT / "launch/worker.py"),)],
    ids=["excepthook", "ddprun"],
)
def test_a_rank_that_fails_shows_its_users_frames(runner: tuple[str, ...]) -> None:
    for switch, hidden in (("", True), ("full", False)):
        ended = run_job(HEAD + FAULT, 2, runner=runner, environment={"ALLSTRIDE_TRACEBACK": switch})
        assert ended.returncode == 1
        functions = functions_of(ended.stderr)
        assert [name for name in functions if name in ("<module>", "watch")][-2:] == ["<module>", "watch"]
        assert bool(_NOTICE.search(ended.stderr)) is hidden
        assert ("__call__" in functions) is not hidden
