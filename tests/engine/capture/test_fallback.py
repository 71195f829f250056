"""What cannot be captured runs eagerly, after one warning that says why; what changes is recorded again."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn as nn
import engine.nn.functional as F
from engine import optim
from engine.autograd.graph import saved_tensors_hooks
from engine.utils.checkpoint import checkpoint

Step = Callable[..., Any]
X, Y = engine.randn(4, 6), engine.tensor([0, 1, 2, 0])


def model_and_step() -> tuple[nn.Module, Any, Step]:
    engine.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


MODEL, OPTIMIZER, STEP = model_and_step()
KEPT: list[Any] = []


def loss_of(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
    OPTIMIZER.zero_grad()
    return F.cross_entropy(MODEL(inputs), targets)


def reads_item(inputs: engine.Tensor, targets: engine.Tensor) -> Any:
    loss = loss_of(inputs, targets)
    loss.backward()
    return loss.item()


def reads_truth(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss = loss_of(inputs, targets)
    if loss > 0:
        loss.backward()


def reads_array(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    inputs.numpy().sum()


def reads_list(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    inputs.tolist()


def reads_repr(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    f"{inputs.sum():.3f}"


def compares_wholes(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    engine.equal(inputs, inputs * 2)


def creates_graph(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    x = inputs.detach().requires_grad_()
    (slope,) = engine.autograd.grad(loss_of(x, targets), x, create_graph=True)
    slope.square().sum().backward()


def hooks_a_tensor(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    hidden = MODEL(inputs)
    hidden.register_hook(lambda g: g * 2)
    F.cross_entropy(hidden, targets).backward()


def retains(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    hidden = MODEL(inputs)
    hidden.retain_grad()
    F.cross_entropy(hidden, targets).backward()


def packs(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        loss = loss_of(inputs, targets)
    loss.backward()


def checkpoints(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    hidden = checkpoint(MODEL, inputs, use_reentrant=False)
    F.cross_entropy(hidden, targets).backward()


def keeps_the_loss(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss = loss_of(inputs, targets)
    loss.backward()
    KEPT.append(loss.detach())


def carries_state(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    hidden = KEPT[-1] if KEPT and isinstance(KEPT[-1], engine.Tensor) else inputs
    F.cross_entropy(MODEL(inputs + 0 * hidden.sum()), targets).backward()
    KEPT.append(inputs * 2)


def sets_an_attribute(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    MODEL.last = inputs * 2
    loss_of(inputs, targets).backward()


def uses_a_number_that_changes(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    KEPT.append(1.0)
    (loss_of(inputs, targets) * len(KEPT)).backward()


def branches(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    KEPT.append(1.0)
    loss = loss_of(inputs, targets)
    (loss.exp() if len(KEPT) % 2 else loss).backward()


def makes_data(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    noise = engine.from_numpy(np.ones((4, 6), np.float32))
    loss_of(inputs + noise, targets).backward()


def has_no_backward(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
    return loss_of(inputs, targets)


def nonzero(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    inputs[inputs > 0].sum()


def assigns_data(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    loss_of(inputs, targets).backward()
    for parameter in MODEL.parameters():
        parameter.data = parameter.data * 0.9


def sets_the_rate(inputs: engine.Tensor, targets: engine.Tensor) -> None:
    KEPT.append(1)
    OPTIMIZER.param_groups[0]["lr"] = 0.1 / len(KEPT)
    loss_of(inputs, targets).backward()
    OPTIMIZER.step()


def returns_number(inputs: engine.Tensor, targets: engine.Tensor) -> int:
    loss_of(inputs, targets).backward()
    KEPT.append(1)
    return len(KEPT)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (reads_item, r"reads the value of a tensor into Python.*test_fallback.py:\d+"),
        (reads_truth, "reads the value"),
        (reads_array, "reads the value"),
        (reads_list, "reads the value"),
        (reads_repr, "reads the value"),
        (compares_wholes, "reads the value"),
        (creates_graph, "create_graph"),
        (hooks_a_tensor, "has hooks"),
        (retains, "has hooks"),
        (packs, "saved_tensors_hooks"),
        (checkpoints, "saved_tensors_hooks"),
        (keeps_the_loss, "keeps a tensor of shape"),
        (carries_state, "kept from the call before|from elsewhere"),
        (sets_an_attribute, "sets attribute 'last'"),
        (uses_a_number_that_changes, "mul is given another value at every call"),
        (branches, "does not do the same things"),
        (makes_data, "made from Python or NumPy data inside the step"),
        (has_no_backward, "calls no backward"),
        (nonzero, "another one at every call"),
        (assigns_data, "assigns .data"),
        (sets_the_rate, "sets option 'lr' of an optimizer"),
        (returns_number, "another value at every call"),
    ],
)
def test_refused(step: Step, reason: str) -> None:
    KEPT.clear()
    compiled = engine.compile(step)
    with pytest.warns(engine.CaptureWarning, match=reason) as caught:
        repeat(compiled, 5)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(X, Y)


def test_fullgraph_raises() -> None:
    compiled = engine.compile(reads_item, fullgraph=True)
    compiled(X, Y)
    with pytest.raises(RuntimeError, match=r"fullgraph=True asks for it.*reads the value"):
        compiled(X, Y)


def test_refused_step_gives_eager_numbers() -> None:
    """The calls that were recorded before the refusal, and those after it, are ordinary steps."""
    _, _, step = model_and_step()
    expected = [step(X, Y).item() for _ in range(6)]
    _, _, other = model_and_step()
    compiled = engine.compile(lambda x, y: other(x, y).item())
    with pytest.warns(engine.CaptureWarning):
        got = [compiled(X, Y) for _ in range(6)]
    assert got == expected


def repeat(compiled: Step, times: int = 4) -> list[Any]:
    return [compiled(X, Y) for _ in range(times)]


def programs(compiled: Any) -> int:
    return sum(len(entry.programs) for entry in compiled._entries.values())


def equal_to_eager(change: Callable[[nn.Module, Any], Any], reason: str | None) -> None:
    """Changes something after a capture and compares what follows with an eager run of the same changes."""
    model, optimizer, step = model_and_step()
    for _ in range(4):
        step(X, Y)
    change(model, optimizer)
    expected = [step(X, Y).detach() for _ in range(4)]
    model, optimizer, step = model_and_step()
    compiled = engine.compile(step)
    repeat(compiled)
    assert programs(compiled) == 1
    change(model, optimizer)
    if reason is None:
        got = [compiled(X, Y) for _ in range(4)]
        assert programs(compiled) == 1
    else:
        with pytest.warns(engine.CaptureWarning, match=f"is recorded again: .*{reason}"):
            got = [compiled(X, Y) for _ in range(4)]
        assert programs(compiled) == 2
    for a, b in zip(expected, got, strict=True):
        assert engine.equal(a, b.detach())


def replace_parameter(model: Any, optimizer: Any) -> None:
    model[0].weight = nn.Parameter(engine.ones(8, 6))
    optimizer.param_groups[0]["params"][0] = model[0].weight


def swap_data(model: Any, optimizer: Any) -> None:
    model[0].weight.data = engine.ones(8, 6)


def evaluate(model: Any, optimizer: Any) -> None:
    model.eval()


def freeze(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(False)


def change_probability(model: Any, optimizer: Any) -> None:
    model[1].p = 0.25


def exchange_layer(model: Any, optimizer: Any) -> None:
    model[1] = nn.Tanh()


def change_rate(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.01


def write_parameters(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.detach().mul_(0.5)


def load(model: Any, optimizer: Any) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def seed(model: Any, optimizer: Any) -> None:
    engine.manual_seed(5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (evaluate, "training of a"),
        (freeze, "requires_grad of a tensor"),
        (change_probability, "p of a Dropout changed"),
        (replace_parameter, "weight of a Linear was exchanged"),
        (swap_data, ".data of a tensor of shape"),
        (exchange_layer, "1 of a Sequential was exchanged"),
        (change_rate, None),
        (write_parameters, None),
        (load, None),
        (seed, None),
    ],
)
def test_changes(change: Callable[[nn.Module, Any], Any], reason: str | None) -> None:
    """What a replay depends on is noticed; what real calls and memory take care of needs no new recording."""
    equal_to_eager(change, reason)


def test_train_and_eval_in_turn_keep_a_recording_each() -> None:
    model, _, step = model_and_step()
    compiled = engine.compile(step)
    for number in range(20):
        model.train(number % 4 < 2)
        compiled(X, Y)
    assert programs(compiled) == 2


def test_numbers_and_names_the_step_refers_to() -> None:
    """Closures, globals and arguments that are numbers belong to a recording."""
    scale = 1.0

    def step(inputs: engine.Tensor, targets: engine.Tensor, more: float = 1.0) -> engine.Tensor:
        loss = loss_of(inputs, targets) * scale * more
        loss.backward()
        return loss

    MODEL.eval()
    compiled = engine.compile(step)
    first = repeat(compiled)[-1].item()
    assert compiled(X, Y, 2.0).item() == 2 * first
    scale = 4.0
    with pytest.warns(engine.CaptureWarning, match="recorded again: scale changed"):
        again = repeat(compiled)
    assert [loss.item() for loss in again] == [4 * first] * 4
    MODEL.train()


@pytest.mark.full
def test_too_many_shapes() -> None:
    _, _, step = model_and_step()
    compiled = engine.compile(step)
    batches = [(engine.randn(size, 6), engine.zeros(size, dtype=engine.int64)) for size in range(1, 12)]
    with pytest.warns(engine.CaptureWarning, match="recorded 8 times already"):
        assert len([compiled(*batch) for batch in batches for _ in range(3)]) == 33


def test_hooks_are_noticed() -> None:
    model, _, step = model_and_step()
    compiled = engine.compile(step)
    repeat(compiled)
    handle = model.register_forward_hook(lambda *given: None)
    with pytest.warns(engine.CaptureWarning) as caught:
        compiled(X, Y)
    assert "has a hook now" in str(caught[0].message)
    assert "Sequential has hooks" in str(caught[1].message)
    handle.remove()


def test_modes_run_eagerly() -> None:
    """Tracing sees operators; grad mode is part of what a recording is for."""
    _, _, step = model_and_step()
    compiled = engine.compile(step)
    repeat(compiled)
    with pytest.warns(engine.CaptureWarning, match="trace is active"), engine.trace() as calls:
        compiled(X, Y)
    assert any(call.operator == "linear" for call in calls.calls)
    with (
        pytest.warns(UserWarning, match="anomaly or saved-tensor modes are on"),
        engine.autograd.set_detect_anomaly(True),
    ):
        compiled(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(X, Y)
    with pytest.raises(RuntimeError, match="does not require grad"), engine.no_grad():
        compiled(X, Y)


def test_arguments_that_require_grad() -> None:
    compiled = engine.compile(lambda x: (x * 2).sum().backward())
    x = engine.ones(3, requires_grad=True)
    with pytest.warns(engine.CaptureWarning, match="an argument requires grad"):
        assert [compiled(x) for _ in range(4)] == [None] * 4
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0, 8.0]


def test_arguments_without_memory() -> None:
    compiled = engine.compile(lambda x: x * 2)
    x = engine.empty(3, device="meta")
    with pytest.warns(engine.CaptureWarning, match="is on device .meta."):
        assert [compiled(x).shape for _ in range(4)] == [(3,)] * 4


def test_an_argument_is_not_taken_for_a_global() -> None:
    def step(inputs: engine.Tensor) -> engine.Tensor:
        return (inputs + X).sum()

    compiled = engine.compile(step)
    for _ in range(4):
        compiled(X)
    assert engine.equal(compiled(X * 3), step(X * 3))


def test_returned_tensors_have_no_history() -> None:
    _, _, step = model_and_step()
    compiled = engine.compile(step)
    repeat(compiled)
    loss = compiled(X, Y)
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="call backward\\(\\) inside the step"):
        loss.backward()


def test_errors_of_kernels_come_through_and_the_next_step_works() -> None:
    _, _, step = model_and_step()
    compiled = engine.compile(step)
    repeat(compiled)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(X, Y + 5)
    assert engine.is_grad_enabled()
    compiled(X, Y)


def test_a_step_cannot_run_twice_at_once() -> None:
    entered, leave = threading.Event(), threading.Event()

    def step(x: engine.Tensor) -> None:
        entered.set()
        leave.wait(10)

    compiled = engine.compile(step)
    thread = threading.Thread(target=compiled, args=(X,))
    thread.start()
    entered.wait(10)
    with pytest.raises(RuntimeError, match="cannot be called while it runs"):
        compiled(X)
    leave.set()
    thread.join()


def test_other_threads_are_not_recorded() -> None:
    """Operators of another thread, while a step is recorded, do not end up in it."""
    stop = threading.Event()

    def work() -> None:
        weights = engine.ones(8, 8, requires_grad=True)
        while not stop.is_set():
            (weights @ weights).sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        _, _, step = model_and_step()
        expected = [step(X, Y).item() for _ in range(8)]
        _, _, step = model_and_step()
        compiled = engine.compile(step)
        assert [compiled(X, Y).item() for _ in range(8)] == expected
        assert programs(compiled) == 1
    finally:
        stop.set()
        thread.join()


# --- the public call --------------------------------------------------------------------------------------------------


def test_modules_are_returned_as_they_are() -> None:
    model = nn.Linear(2, 2)
    with pytest.warns(engine.CaptureWarning, match="a module runs eagerly"):
        assert engine.compile(model, mode="reduce-overhead", dynamic=True) is model


def test_decorator_with_and_without_arguments() -> None:
    @engine.compile
    def first(x: engine.Tensor) -> engine.Tensor:
        """What it does."""
        return x + 1

    @engine.compile(fullgraph=True, mode="default")
    def second(x: engine.Tensor, more: dict[str, Any]) -> tuple[engine.Tensor, dict[str, Any]]:
        return x * 2, {"sum": x.sum() + more["y"][0], "same": x}

    assert first.__name__ == "first"
    assert first.__doc__ == "What it does."
    for _ in range(6):
        assert first(X).tolist() == (X + 1).tolist()
        doubled, rest = second(X, more={"y": [X]})
        assert doubled.tolist() == (X * 2).tolist()
        assert rest["same"] is X
        assert rest["sum"].tolist() == (X.sum() + X).tolist()


def test_methods() -> None:
    class Trainer:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @engine.compile
        def step(self, x: engine.Tensor) -> engine.Tensor:
            return x * self.factor

    two, three = Trainer(2.0), Trainer(3.0)
    for _ in range(5):
        assert two.step(X).tolist() == (X * 2).tolist()
        assert three.step(X).tolist() == (X * 3).tolist()
    two.factor = 5.0
    with pytest.warns(engine.CaptureWarning, match="factor"):
        results = [two.step(X).tolist() for _ in range(4)]
    assert results == [(X * 5).tolist()] * 4


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"backend": "tensorrt"}, "expected backend"),
        ({"mode": "fast"}, "expected one of"),
        ({"options": {"max_autotune": True}}, "no options of backends"),
    ],
)
def test_unknown_options(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        engine.compile(lambda x: x, **options)


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="expected a function or a Module, got int"):
        engine.compile(3)


@pytest.mark.parametrize("options", [{"disable": True}, {"backend": "eager"}])
def test_switched_off(options: dict[str, Any]) -> None:
    assert engine.compile(reads_item, **options) is reads_item


class Setting:
    factor = 1.0


def doubled(x: engine.Tensor) -> engine.Tensor:
    return x * (2.0 * Setting.factor)


def test_names_that_helpers_refer_to() -> None:
    """A helper's own globals and the attributes it looks at belong to a recording, too."""
    compiled = engine.compile(lambda x: doubled(x))
    for _ in range(4):
        assert compiled(X).tolist() == (X * 2).tolist()
    Setting.factor = 2.0
    with pytest.warns(engine.CaptureWarning, match="factor of Setting changed"):
        results = [compiled(X).tolist() for _ in range(4)]
    assert results == [(X * 4).tolist()] * 4


def test_default_dtype() -> None:
    """Factories inside a step follow the default dtype of the moment."""
    compiled = engine.compile(lambda x: x + engine.ones(6))
    for _ in range(4):
        assert compiled(X).dtype is engine.float32
    engine.set_default_dtype(engine.float64)
    try:
        with pytest.warns(engine.CaptureWarning, match="default dtype changed"):
            assert [compiled(X).dtype for _ in range(4)] == [engine.float64] * 4
    finally:
        engine.set_default_dtype(engine.float32)


def test_an_error_while_recording_leaves_everything_as_it_was() -> None:
    def step(x: engine.Tensor) -> engine.Tensor:
        if fails:
            raise KeyError("no")
        return x * 2

    fails = False
    compiled = engine.compile(step)
    compiled(X)
    fails = True
    with pytest.raises(KeyError):
        compiled(X)
    fails = False
    for _ in range(4):
        assert compiled(X).tolist() == (X * 2).tolist()
    assert programs(compiled) == 1


def test_arguments_written_in_place() -> None:
    """The argument's memory changes and its version counts, whichever tensor it is."""
    compiled = engine.compile(lambda x: x.add_(1.0))
    for number in range(6):
        x = engine.full((3,), float(number))
        assert compiled(x) is x
        assert x.tolist() == [number + 1.0] * 3
        assert x._version == 1
