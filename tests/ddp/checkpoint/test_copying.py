"""A copy beside training: what is saved has the bits of when it was, whatever training does then; or is given up."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddp
import engine
from ddp import checkpoint
from ddp.checkpoint import copying, track
from ddp.testing import on_ranks, run_ranks
from engine import nn
from engine.optim import SGD, AdamW, Optimizer

LARGE = 1 << 19  # elements of 4 bytes: copied beside training


class Gate:
    """Keeps the thread of a rank's copy from beginning until it is opened."""

    def __init__(self) -> None:
        self.local: dict[int, threading.Event] = {}

    def of(self, rank: int) -> threading.Event:
        return self.local.setdefault(rank, threading.Event())


@pytest.fixture
def gate(monkeypatch) -> Gate:
    gate, run = Gate(), copying.Copy.run

    def late(copy: copying.Copy) -> None:
        assert gate.of(copy.rank).wait(60)  # type: ignore[attr-defined]
        run(copy)

    init = copying.Copy.__init__

    def remember(copy: copying.Copy, *arguments: Any) -> None:
        copy.rank = ddp.get_rank() if ddp.is_initialized() else 0  # type: ignore[attr-defined]
        init(copy, *arguments)

    monkeypatch.setattr(copying.Copy, "__init__", remember)
    monkeypatch.setattr(copying.Copy, "run", late)
    return gate


def made(kind: Callable[[Any], Optimizer]) -> dict[str, Any]:
    """A model, a buffer of which changes in forward, and a tensor that nobody knows; one step was done."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 512))
    model.register_buffer("seen", engine.zeros(LARGE))
    state = {"model": model, "optimizer": kind(model.parameters()), "other": engine.zeros(LARGE)}
    backward(state, 1.0)
    state["optimizer"].step()
    return state


def backward(state: dict[str, Any], value: float) -> None:
    model = state["model"]
    state["optimizer"].zero_grad()
    model(engine.full((1, 1024), value)).sum().backward()
    model.seen += 1
    state["other"] += 1


def facts(state: dict[str, Any]) -> list[bytes]:
    """The bits of all that is saved, of this rank."""
    optimizer = state["optimizer"]
    inner = [value for each in optimizer.state.values() for value in each.values()]
    tensors = [*state["model"].state_dict().values(), *inner, state["other"]]
    return sorted(tensor.numpy().tobytes() for tensor in tensors if isinstance(tensor, engine.Tensor))


KINDS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda parameters: AdamW(parameters, lr=0.1, fused=True),
    "SGD": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "ZeRO": lambda parameters: ddp.ZeroRedundancyOptimizer(parameters, AdamW, lr=0.1),
}


@pytest.mark.parametrize("kind", ["AdamW", "ZeRO", pytest.param("SGD", marks=pytest.mark.full)])
def test_the_step_of_an_optimizer_sees_to_the_copy_first(tmp_path, gate, kind) -> None:
    def body() -> None:
        engine.manual_seed(0)
        state = made(KINDS[kind])
        hooks = len(state["optimizer"]._optimizer_step_pre_hooks)
        with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
            manager.step(1)
            before = facts(state)
            backward(state, 2.0)  # the gate is shut: training goes on
            state["optimizer"].step()  # copies what the thread has not
            gate.of(ddp.get_rank()).set()
            assert len(state["optimizer"]._optimizer_step_pre_hooks) == hooks
            assert facts(state) != before
            manager.wait()
            checkpoint.load(state, tmp_path / "a" / "step-00000001")
            assert facts(state) == before

    run_ranks(2, body)


class Left:
    """Of a rank's copy: the names of the tensors that nobody has seen to yet."""

    def __init__(self, monkeypatch) -> None:
        self._copies: list[copying.Copy] = []
        init = copying.Copy.__init__

        def remember(copy: copying.Copy, *arguments: Any) -> None:
            self._copies.append(copy)
            init(copy, *arguments)

        monkeypatch.setattr(copying.Copy, "__init__", remember)

    def names(self) -> set[str]:
        return {each.blob.tensor for each in self._copies[-1]._left}


@pytest.fixture
def left(monkeypatch) -> Left:
    return Left(monkeypatch)


def pair(kind: Callable[[Any], Optimizer]) -> dict[str, Any]:
    """Two layers with an optimizer each, as of a game; both have stepped once."""
    first, second = nn.Linear(1024, 512, bias=False), nn.Linear(1024, 512, bias=False)
    state = {"first": first, "second": second}
    state |= {f"{name}_optimizer": kind(net.parameters()) for name, net in state.items()}
    for name in ("first", "second"):
        pulled(state, name)
    return state


def pulled(state: dict[str, Any], name: str, value: float = 1.0) -> None:
    state[name](engine.full((1, 1024), value)).sum().backward()
    state[f"{name}_optimizer"].step()
    state[f"{name}_optimizer"].zero_grad()


def bits(state: dict[str, Any]) -> list[bytes]:
    tensors = [tensor for name in ("first", "second") for tensor in state[name].parameters()]
    for name in ("first", "second"):
        tensors += [value for each in state[f"{name}_optimizer"].state.values() for value in each.values()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_step_waits_for_what_is_its_own_only(tmp_path, gate, left, kind) -> None:
    state = pair(KINDS[kind])
    before = bits(state)
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        everything = left.names()
        pulled(state, "first", 2.0)
        assert left.names() == {name for name in everything if "second" in name} != set()
        pulled(state, "first", 3.0)
        pulled(state, "second", 2.0)
        assert left.names() == set()
        gate.of(0).set()
    assert bits(state) != before
    checkpoint.load(state, tmp_path / "a")
    assert bits(state) == before


def frozen(kind: Callable[[Any], Optimizer]) -> dict[str, Any]:
    """Layers: one that has had a gradient and has none any more, one that always has one, one that never had."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
    state = {"model": model, "optimizer": kind(model.parameters())}
    model[1](model[0](engine.ones(1, 1024))).sum().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    model[0].requires_grad_(False)
    return state


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_step_waits_for_no_parameter_without_a_gradient(tmp_path, gate, left, kind) -> None:
    """Nor for its state."""
    state = frozen(KINDS[kind])
    before = [tensor.detach().numpy().tobytes() for tensor in state["model"].parameters()]
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        for value in (2.0, 3.0):
            state["model"][1](engine.full((1, 1024), value)).sum().backward()
            state["optimizer"].step()
            assert {name for name in left.names() if "model" in name} == {"model.0.weight", "model.2.weight"}
        gate.of(0).set()
    assert [tensor.detach().numpy().tobytes() for tensor in state["model"].parameters()] != before
    checkpoint.load(state, tmp_path / "a")
    assert [tensor.detach().numpy().tobytes() for tensor in state["model"].parameters()] == before


def test_what_a_step_did_not_wait_for_may_not_be_written_into(tmp_path, gate, left) -> None:
    state = frozen(KINDS["SGD"])
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        state["model"][1](engine.ones(1, 1024)).sum().backward()
        state["optimizer"].step()
        with engine.no_grad():
            state["model"][2].weight.mul_(2.0)
        gate.of(0).set()
        with pytest.raises(RuntimeError, match=r"'model\.2\.weight' was written into before a save had copied"):
            manager.wait()


def test_what_is_copied_may_be_written_into_after_any_step(tmp_path, left) -> None:
    """Of the optimizer, with a gradient or not."""
    state = frozen(KINDS["SGD"])
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        manager._disk._work.result()  # all is copied, and written
        state["optimizer"].step()  # nobody has a gradient
        assert left.names() == set()
        with engine.no_grad():
            state["model"][2].weight.mul_(2.0)
    assert manager.all_steps() == [1]


class Decay(Optimizer):
    """Changes all parameters, gradients or not."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.5)


@pytest.mark.parametrize("kind", ["closure", "own step", "view"])
def test_a_step_waits_for_all_that_it_may_change(tmp_path, gate, left, kind) -> None:
    """A closure makes gradients; a user's own step needs none; a parameter may lie in what another tensor saves."""
    values = engine.ones(2, LARGE)
    inner = nn.Parameter(values.detach()[1])
    optimizer: Optimizer
    if kind == "own step":
        optimizer = Decay([inner])
    else:
        optimizer = SGD([nn.Parameter(values.detach()[0]), inner] if kind == "view" else [inner], lr=0.5)
    state = {"values": values if kind == "view" else inner, "optimizer": optimizer}
    before = values.numpy().copy()

    def closure() -> engine.Tensor:
        inner.grad = engine.ones(LARGE)
        return engine.zeros(())

    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        assert left.names() == {"values"}
        if kind == "view":
            closure()
        optimizer.step(closure if kind == "closure" else None)
        assert left.names() == set()
        gate.of(0).set()
    assert (values.numpy() == before).tolist() == [[True] * LARGE, [False] * LARGE]
    loaded = {"values": engine.zeros_like(state["values"]), "optimizer": optimizer}
    checkpoint.load(loaded, tmp_path / "a")
    assert (loaded["values"].detach().numpy() == 1.0).all()


@on_ranks(1, 2)
def test_what_somebody_else_writes_into_is_given_up(tmp_path, gate) -> None:
    """On every rank, though but one has written; the next save is as ever."""
    rank, last = ddp.get_rank(), ddp.get_world_size() - 1
    gate.of(rank).set()
    folder = tmp_path / str(last)
    state = made(KINDS["AdamW"])
    with checkpoint.Manager(folder, state, every=1, overlap=True) as manager:
        manager.step(1)
        with engine.no_grad():
            for parameter in state["model"].parameters() if rank == last else ():
                parameter.mul_(2.0)
                if last:  # which of them is in its part
                    state["optimizer"].state[parameter]["exp_avg"].mul_(2.0)
        with pytest.raises(RuntimeError, match="was written into before a save had copied it, and not by a step"):
            manager.wait()
        assert manager.all_steps() == []
        with engine.no_grad():
            for parameter in state["model"].parameters():
                parameter.fill_(3.0)
        manager.save(2)
        manager.wait()
        assert manager.all_steps() == [2]
    ddp.barrier()
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]


def test_a_step_in_backward_is_noticed(tmp_path, gate) -> None:
    def body() -> None:
        state = made(KINDS["AdamW"])
        net = ddp.DistributedDataParallel(state["model"])
        ddp.step_in_backward(state["optimizer"], net)
        with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
            manager.step(1)
            net(engine.ones(1, 1024)).sum().backward()
            gate.of(ddp.get_rank()).set()
            with pytest.raises(RuntimeError, match="was written into"):
                manager.wait()

    run_ranks(2, body)


def test_what_an_interrupted_step_had_begun_with_is_copied_all_the_same(tmp_path, gate, monkeypatch) -> None:
    """By a signal whose handler raises."""
    state = made(KINDS["AdamW"])
    copy, here = copying.copy_past_caches, threading.get_ident()
    interrupts = iter([KeyboardInterrupt])

    def interrupted(*arguments: Any) -> None:
        if threading.get_ident() == here:
            for kind in interrupts:
                raise kind
        copy(*arguments)

    monkeypatch.setattr(copying, "copy_past_caches", interrupted)
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        before = facts(state)
        with pytest.raises(KeyboardInterrupt):
            state["optimizer"].step()
        gate.of(0).set()
        backward(state, 2.0)
        state["optimizer"].step()
        assert facts(state) != before
    checkpoint.load(state, tmp_path / "a")
    assert facts(state) == before


def test_a_step_waits_for_what_the_thread_has_half_copied(tmp_path, monkeypatch) -> None:
    """It stops amidst a parameter, and goes on when the step waits for it, or else when that has written."""
    state = made(KINDS["AdamW"])
    copy, here = copying.copy_past_caches, threading.get_ident()
    halfway, awaited = threading.Event(), threading.Event()

    class Progress(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            awaited.set()
            return super().wait(timeout)

    def in_halves(target: Any, source: Any) -> None:
        middle = source.nbytes // 2
        copy(target[:middle], source[:middle])
        if threading.get_ident() != here:
            halfway.set()
            assert awaited.wait(60)
        copy(target[middle:], source[middle:])

    monkeypatch.setattr(copying, "copy_past_caches", in_halves)
    monkeypatch.setattr(copying, "threading", SimpleNamespace(Condition=Progress, Lock=threading.Lock))
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        before = facts(state)
        assert halfway.wait(60)
        backward(state, 2.0)
        state["optimizer"].step()
        assert facts(state) != before
        awaited.set()
    checkpoint.load(state, tmp_path / "a")
    assert facts(state) == before


@pytest.mark.parametrize("late", [False, True])
def test_a_step_of_the_manager_waits_for_no_copy(tmp_path, gate, late) -> None:
    """Gradients are accumulated over several of its steps, say; what is written into meanwhile is noticed."""
    state = made(KINDS["AdamW"])
    with checkpoint.Manager(tmp_path / "a", state, every=3, overlap=True) as manager:
        manager.step(3)
        before = facts(state)
        for number in (4, 5):  # the gate is shut
            backward(state, 2.0)
            manager.step(number)
        if late:
            with engine.no_grad():
                for parameter in state["model"].parameters():
                    parameter.mul_(2.0)
            gate.of(0).set()
            with pytest.raises(RuntimeError, match="was written into before a save had copied it, and not by a step"):
                manager.wait()
            return
        state["optimizer"].step()
        gate.of(0).set()
    checkpoint.load(state, tmp_path / "a")
    assert facts(state) == before


def test_a_copy_that_fails_keeps_nobody_waiting(tmp_path, monkeypatch) -> None:
    def full(*arguments: Any) -> None:
        raise MemoryError("none left")

    state = made(KINDS["AdamW"])
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(copying, "copy_past_caches", full)
            manager.step(1)
            backward(state, 2.0)
            state["optimizer"].step()
            with pytest.raises(RuntimeError, match="the state could not be copied: none left"):
                manager.wait()
        assert manager.all_steps() == []
        manager.save(2)
        manager.wait()
        assert manager.all_steps() == [2]


def test_memory_that_is_swapped_is_saved_as_it_was(tmp_path, gate) -> None:
    state = made(KINDS["AdamW"])
    before = facts(state)
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        for parameter in state["model"].parameters():
            parameter.data = engine.zeros_like(parameter)
        gate.of(0).set()
    checkpoint.load(state, tmp_path / "a")
    assert facts(state) == before


def test_replayed_steps_wait_too(tmp_path: Path, gate) -> None:
    """Of `engine.compile`."""
    state = made(KINDS["AdamW"])

    @engine.compile
    def step(x: engine.Tensor) -> engine.Tensor:
        state["optimizer"].zero_grad()
        loss = state["model"](x).sum()
        loss.backward()
        state["optimizer"].step()
        return loss

    x = engine.ones(1, 1024)
    for _ in range(4):
        step(x)
    state["optimizer"].register_step_pre_hook(lambda *_: gate.of(0).set())
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.step(1)
        before = facts(state)
        step(x)
        assert facts(state) != before
    checkpoint.load(state, tmp_path / "a")
    assert facts(state) == before


def test_a_state_that_is_restored_meanwhile_waits(tmp_path, gate) -> None:
    state = made(KINDS["AdamW"])
    gate.of(0).set()
    with checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager:
        manager.save(1)
        manager.wait()
        before = facts(state)
        backward(state, 2.0)
        state["optimizer"].step()
        manager.save(2)
        assert manager.restore() == 1
        assert facts(state) == before
        manager.wait()
        assert manager.all_steps() == [2, 1]


def test_a_copy_that_never_began_keeps_no_optimizer_waiting(tmp_path, monkeypatch) -> None:
    """The block ends between a save and its thread."""
    state = made(KINDS["AdamW"])

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(track, "Progress", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        checkpoint.Manager(tmp_path / "a", state, every=1, overlap=True) as manager,
    ):
        manager.step(1)
    state["optimizer"].step()
