"""What is saved by any number of ranks is loaded by any number of ranks, with the same bits and strides."""

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import checkpoint
from ddp.testing import run_ranks
from engine.optim import AdamW
from engine.serialization import files
from tests.ddp.models import bits

SIZES = (1, 2, 3, 5, 8)


def parts(seed: int, zero: bool) -> tuple[nn.Module, Any, dict[str, Any]]:
    """A model with channels-last weights, tied ones and buffers, and its optimizer after two steps."""
    engine.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 32)
    ).to(memory_format=engine.channels_last)
    model[4].weight = nn.Parameter(engine.randn(700, 32)[:32] if seed else engine.randn(32, 32))
    model.tied = model[4]
    if zero:
        optimizer = ddp.ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01 * (seed + 1))
    else:
        optimizer = AdamW(model.parameters(), lr=0.01 * (seed + 1))
    for step in range(2):
        optimizer.zero_grad()
        model(engine.full((3, 2, 4, 4), float(step + seed))).square().mean().backward()
        optimizer.step()
    return model, optimizer, {"model": model, "optimizer": optimizer}


def one_more(model: nn.Module, optimizer: Any) -> Any:
    optimizer.zero_grad()
    model(engine.full((3, 2, 4, 4), 1.0)).square().mean().backward()
    optimizer.step()
    return bits(model)


def whole(optimizer: Any) -> dict[str, Any]:
    if isinstance(optimizer, ddp.ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict()
        return optimizer.state_dict() if ddp.get_rank() == 0 else {}
    return optimizer.state_dict()


def facts(state: Any) -> Any:
    """Values, strides and dtypes."""
    if isinstance(state, engine.Tensor):
        return state.tolist(), state.stride(), state.dtype.name
    if isinstance(state, dict):
        return {key: facts(value) for key, value in state.items()}
    return [facts(value) for value in state] if isinstance(state, list | tuple) else state


@pytest.mark.parametrize(
    ("zero", "zero_later"),
    [
        (False, False),
        *(pytest.param(*both, marks=pytest.mark.full) for both in ((False, True), (True, False), (True, True))),
    ],
)
def test_any_number_of_ranks_continues(tmp_path, zero, zero_later) -> None:
    """The state is the same, and so are the parameters after one more step."""

    def write(path: Path) -> Any:
        model, optimizer, state = parts(0, zero)
        checkpoint.save(state | {"step": 7}, path)
        found = facts(model.state_dict()), facts(whole(optimizer))
        return *found, one_more(model, optimizer)

    def read(path: Path) -> Any:
        model, optimizer, state = parts(1, zero_later)
        before = {name: parameter.stride() for name, parameter in model.named_parameters()}
        state["step"] = None
        checkpoint.load(state, path)
        assert state["step"] == 7
        assert {name: parameter.stride() for name, parameter in model.named_parameters()} == before
        found = facts(model.state_dict()), facts(whole(optimizer))
        return *found, one_more(model, optimizer)

    expected = None
    for size in SIZES:
        path = tmp_path / str(size)
        written = run_ranks(size, lambda path=path: write(path))[0]
        expected = expected or written
        assert written == expected
        for other in SIZES:
            found = run_ranks(other, lambda path=path: read(path))[0]
            assert found == expected, (size, other)


def test_buffers_are_those_of_rank_zero(tmp_path) -> None:
    """Between steps every rank has its own; large ones are not cut either, and names that are one memory stay one."""

    def body() -> list[float]:
        module = nn.Module()
        module.register_buffer("mean", engine.full((1 << 19,), float(ddp.get_rank())))
        module.weight = nn.Parameter(engine.zeros(1 << 19))
        checkpoint.save({"model": module}, tmp_path / "a")
        checkpoint.load({"model": module}, tmp_path / "a")
        return module.mean.unique().tolist()

    assert run_ranks(3, body) == [[0.0]] * 3


@pytest.mark.parametrize("kind", [engine.bfloat16, engine.bool, engine.complex128])
def test_large_tensors_keep_their_strides(tmp_path, kind) -> None:
    """They are read into large pages of memory."""
    elements = (4 << 20) // kind.itemsize
    rows = engine.arange(elements).reshape(64, 1, -1)
    saved = {"turned": rows.remainder(2).to(kind).permute(2, 0, 1), "odd": engine.empty_strided((elements, 1), (1, 7))}
    checkpoint.save(saved, tmp_path / "saved")
    loaded: dict[str, Any] = dict.fromkeys(saved)
    checkpoint.load(loaded, tmp_path / "saved")
    assert engine.equal(loaded["turned"], saved["turned"])
    assert loaded["turned"].dtype is kind
    assert loaded["turned"].is_leaf
    assert [loaded[name].stride() for name in saved] == [saved[name].stride() for name in saved]


def test_what_differs_between_ranks_is_refused(tmp_path) -> None:
    """By name; and nothing is written."""

    def body(state: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            checkpoint.save(state, tmp_path / "a")

    run_ranks(2, lambda: body({"step": ddp.get_rank()}, "'step' differs between rank 0 and rank 1"))
    run_ranks(2, lambda: body({f"of {ddp.get_rank()}": 1}, "rank 1 saves"))
    with pytest.raises(TypeError, match=r"thing\.x is a object"):
        checkpoint.save({"thing": {"x": object()}}, tmp_path / "a")
    assert not any(tmp_path.iterdir())


def test_what_one_rank_finds_damaged_no_rank_loads(tmp_path) -> None:
    """Ranks of a host share out what they all read, and check that; what each reads for itself it checks by itself."""

    def state() -> dict[str, Any]:
        model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(3)))
        optimizer = ddp.ZeroRedundancyOptimizer(model.parameters(), AdamW)
        model(engine.ones(1, 200)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    def read() -> str:
        held = state()
        before = bits(held["model"])
        try:
            checkpoint.load(held, tmp_path / "a")
        except RuntimeError as error:
            assert bits(held["model"]) == before
            return str(error)
        return ""

    run_ranks(2, lambda: checkpoint.save(state(), tmp_path / "a"))
    assert run_ranks(3, read) == [""] * 3
    for name in ("00000.safetensors", "00001.safetensors"):
        path = tmp_path / "a" / name
        whole = path.read_bytes()
        for place in (1 << 14, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert all(str(path) in error for error in run_ranks(3, read)), place
        path.write_bytes(whole)


def test_what_does_not_fit_changes_nothing(tmp_path) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    checkpoint.save({"a": first, "b": second, "step": 3}, tmp_path / "a")
    with pytest.raises(FileExistsError, match="is a complete checkpoint"):
        checkpoint.save({}, tmp_path / "a")
    fresh, other = nn.Linear(3, 3), nn.Linear(3, 4)
    before = bits(fresh)
    for state, text in (
        ({"a": fresh, "b": other}, r"b\.weight has shape"),
        ({"a": fresh, "b": nn.Linear(3, 3, bias=False)}, "unexpected"),
        ({"a": fresh, "c": None}, "holds no 'c'; it has 'a', 'b', 'step'"),
    ):
        with pytest.raises(ValueError, match=text):
            checkpoint.load(state, tmp_path / "a")
        assert bits(fresh) == before
    checkpoint.load({"a": fresh}, tmp_path / "a")
    assert bits(fresh) == bits(first)


def test_a_directory_that_a_rank_does_not_see(tmp_path) -> None:
    """Each rank its own, as where hosts do not share one: named when it is written, and nothing stays."""

    def write() -> None:
        with pytest.raises(RuntimeError, match=r"ranks 1, 2 on .* cannot see .*give a folder that all hosts share"):
            checkpoint.save({"w": engine.zeros(10)}, tmp_path / str(ddp.get_rank()) / "a")

    run_ranks(3, write)
    assert [path.name for path in tmp_path.rglob("*")] == ["0"]


def test_ranks_that_do_not_see_the_files_get_them_from_others(tmp_path) -> None:
    expected = engine.arange(1 << 20, dtype=engine.float32)
    run_ranks(2, lambda: checkpoint.save({"w": expected}, tmp_path / "0" / "a"))

    def read() -> list[float]:
        ranks = checkpoint.agreeing.ranks_of(None)
        state = {"w": None}
        checkpoint.loading.take(state, [tmp_path / str(ddp.get_rank()) / "a"], ranks)
        return engine.equal(state["w"], expected)

    assert run_ranks(3, read) == [True] * 3


def test_random_streams_go_on(tmp_path) -> None:
    """As they would have on as many ranks; on more, those that are new draw numbers of their own."""

    def draw() -> tuple[float, ...]:
        return engine.rand(1).item(), random.random(), np.random.random()

    def write() -> tuple[float, ...]:
        engine.manual_seed(ddp.get_rank())
        checkpoint.save({"random": checkpoint.RandomStreams()}, tmp_path / "a")
        return (engine.rand(1).item(),)

    def read() -> tuple[float, ...]:
        checkpoint.load({"random": checkpoint.RandomStreams()}, tmp_path / "a")
        return draw()

    written = run_ranks(2, write)
    assert [each[0] for each in run_ranks(2, read)] == [each[0] for each in written]
    more = run_ranks(5, read)
    assert [each[0] for each in more[:2]] == [each[0] for each in written]
    assert len({each[0] for each in more}) == 5


def test_a_folder_that_cannot_be_synced_is_gone_and_can_be_written_to_later(tmp_path, monkeypatch) -> None:
    """By the process that goes on: nothing of the first save is locked."""

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_folder", full)
        with pytest.raises(OSError, match="no space left"):
            checkpoint.save({"weight": engine.ones(3)}, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    checkpoint.save({"weight": engine.ones(3)}, tmp_path / "a")
