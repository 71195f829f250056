"""`engine.compile` on a GPU: the eager step, bit for bit, in CUDA graphs; when these hold, and when not."""

import gc
import warnings

import pytest

import ddp
import engine
import engine.nn as nn
from engine.capture.compiled import CaptureWarning, CompiledStep
from engine.memory import blocks
from engine.nn.utils import clip_grad_norm_
from engine.optim import SGD, Adam, AdamW
from engine.optim.lr_scheduler import ExponentialLR
from tests import cuda_device

F = nn.functional


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.dropout(self.hidden(x).tanh()))


def batches(where, number=8, size=5):
    engine.manual_seed(1)
    return [(engine.randn(size, 4).to(where), engine.randint(0, 3, (size,)).to(where)) for _ in range(number)]


def train(where, compiled, make_optimizer=lambda p: AdamW(p, lr=0.1), dropout=0.0, around=None, data=None, wrap=None):
    """The losses and parameters after training with a step that `around(optimizer, model)` may extend."""
    engine.manual_seed(0)
    model = Net(dropout).to(where)
    model = wrap(model) if wrap else model
    optimizer = make_optimizer(model.parameters())
    inside, outside = around(optimizer, model) if around else (None, None)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if inside:
            inside()
        optimizer.step()
        return loss

    run = engine.compile(step) if compiled else step
    losses = []
    engine.cuda.manual_seed(3)
    for x, y in data or batches(where):
        losses.append(run(x, y).item())
        if outside:
            outside()
    return losses, [parameter.tolist() for parameter in model.parameters()]


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_is_the_eager_step(name, cuda):
    assert train(cuda, True, OPTIMIZERS[name]) == train(cuda, False, OPTIMIZERS[name])


def test_random_numbers_go_on(cuda):
    captured = train(cuda, True, dropout=0.5)
    assert captured == train(cuda, False, dropout=0.5)
    assert len(set(captured[0])) == 8


def test_clipping_is_captured(cuda):
    def around(optimizer, model):
        return (lambda: clip_grad_norm_(model.parameters(), 0.1)), None

    assert train(cuda, True, around=around) == train(cuda, False, around=around)


def test_a_scheduler_outside_the_step(cuda):
    """Options of the optimizer change: its step is called between graphs from then on."""

    def around(optimizer, model):
        return None, ExponentialLR(optimizer, 0.5).step

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        captured = train(cuda, True, around=around, data=batches(cuda, 14))
    assert captured == train(cuda, False, around=around, data=batches(cuda, 14))
    told = [str(warning.message) for warning in seen if warning.category is CaptureWarning]
    assert len(told) == 1
    assert "is recorded again: options of AdamW changed, which is called outside CUDA graphs from now on" in told[0]


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_mixed_precision_is_captured(kind, cuda):
    def run(compiled):
        engine.manual_seed(0)
        model = Net(0.3).to(cuda)
        optimizer = AdamW(model.parameters(), lr=0.1)
        scaler = engine.amp.GradScaler("cuda", enabled=kind == "float16", init_scale=8.0, growth_interval=3)

        def step(x, y):
            optimizer.zero_grad()
            with engine.autocast("cuda", dtype=getattr(engine, kind)):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        call = engine.compile(step, fullgraph=True) if compiled else step
        engine.cuda.manual_seed(3)
        losses = [call(x, y).item() for x, y in batches(cuda)]
        return losses, [parameter.tolist() for parameter in model.parameters()], scaler.get_scale()

    captured = run(True)
    assert captured == run(False)
    assert captured[2] == (32.0 if kind == "float16" else 1.0)


def test_a_learning_rate_on_the_gpu_needs_no_new_capture(cuda):
    rates = []

    def make(parameters):
        rates.append(engine.tensor(0.1, device=cuda))
        return AdamW(parameters, lr=rates[-1], capturable=True)

    def around(optimizer, model):
        return None, lambda: rates[-1].mul_(0.5)

    assert train(cuda, True, make, around=around) == train(cuda, False, make, around=around)


def test_a_step_is_one_graph(on_driver):
    model = Net().to(on_driver)
    optimizer = AdamW(model.parameters(), lr=0.1)

    @engine.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    data = batches(on_driver)
    for x, y in data[:4]:
        step(x, y)
    for x, y in data[4:]:
        with cuda_device.counters() as count:
            step(x, y)
        assert count.graph_launches == 1
        assert count.synchronizations == 0
        assert count.pageable == 0


def test_results_hold_until_the_next_call(cuda):
    weight = engine.ones(3, device=cuda, requires_grad=True)

    @engine.compile
    def step(x):
        weight.grad = None
        loss = (x * weight).sum()
        loss.backward()
        return loss, {"double": x * 2, "argument": x}

    kept = []
    for number in range(6):
        x = engine.full((3,), float(number), device=cuda)
        loss, others = step(x)
        assert loss.item() == 3.0 * number
        assert others["double"].tolist() == [2.0 * number] * 3
        assert others["argument"] is x
        assert weight.grad.tolist() == [float(number)] * 3
        kept.append(others["double"])
    assert kept[-1].tolist() == kept[-2].tolist() == [10.0] * 3
    with pytest.raises(RuntimeError, match=r"returned by a step that engine\.compile replays"):
        loss.backward()


def test_gradients_that_are_not_cleared_accumulate(cuda):
    def run(compiled):
        weight = engine.ones(3, device=cuda, requires_grad=True)

        def step(x):
            (x * weight).sum().backward()

        call = engine.compile(step) if compiled else step
        found = []
        for number in range(7):
            call(engine.full((3,), float(number), device=cuda))
            found.append(weight.grad.tolist())
        return found

    assert run(True) == run(False)


def test_inputs_that_the_step_writes_are_the_callers(cuda):
    weight = engine.ones(3, device=cuda, requires_grad=True)

    @engine.compile
    def step(x):
        weight.grad = None
        (x * weight).sum().backward()
        x.add_(1)

    for _ in range(6):
        x = engine.zeros(3, device=cuda)
        step(x)
        assert x.tolist() == [1.0] * 3
        assert x._version == 1


def test_buffers_are_written(cuda):
    def run(compiled):
        engine.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(cuda)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        call = engine.compile(step) if compiled else step
        losses = [call(x, y).item() for x, y in batches(cuda)]
        return losses, [buffer.tolist() for buffer in model.buffers()]

    assert run(True) == run(False)


# --- what changes -----------------------------------------------------------------------------------------------------


def test_other_shapes_have_graphs_of_their_own(cuda):
    data = []
    for number in range(6):
        data += [batches(cuda, 6, 5)[number], batches(cuda, 6, 3)[number]]
    assert train(cuda, True, data=data) == train(cuda, False, data=data)


def test_a_python_value_that_changes_is_recorded_again(cuda):
    class Scale:
        value = 1.0

    def run(compiled):
        weight = engine.ones(3, device=cuda, requires_grad=True)
        scale = Scale()

        def step(x):
            weight.grad = None
            (x * weight * scale.value).sum().backward()

        call = engine.compile(step) if compiled else step
        found = []
        for number in range(10):
            scale.value = 1.0 if number < 5 else 2.0
            call(engine.full((3,), float(number), device=cuda))
            found.append(weight.grad.tolist())
        return found

    with pytest.warns(CaptureWarning, match="is recorded again: value of a Scale changed"):
        captured = run(True)
    assert captured == run(False)


def test_a_parameter_that_was_replaced_is_recorded_again(cuda):
    model = nn.Linear(3, 1, bias=False).to(cuda)

    @engine.compile
    def step(x):
        model.zero_grad()
        model(x).sum().backward()

    x = engine.ones(2, 3, device=cuda)
    for _ in range(5):
        step(x)
    model.weight.data = engine.zeros(1, 3, device=cuda)
    with pytest.warns(CaptureWarning, match="is recorded again"):
        step(x * 2)
    for _ in range(3):
        step(x * 2)
    assert model.weight.grad.tolist() == [[4.0] * 3]


# --- what cannot be captured ------------------------------------------------------------------------------------------

WEIGHT: dict[str, engine.Tensor] = {}


def reads(x):
    loss = (x * WEIGHT["w"]).sum()
    loss.backward()
    return loss.item()


def makes(x):
    (x * WEIGHT["w"] * engine.tensor([1.0, 2.0, 3.0], device=x.device)).sum().backward()


def mixes(x):
    (x * WEIGHT["w"]).cpu().sum().backward()


REFUSED = {
    "reads the value of a tensor into Python": reads,
    r"tensor\(\) copies Python data to the GPU": makes,
    "computes both in host memory and on a GPU": mixes,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_captured_runs_eagerly_after_a_warning(reason, cuda):
    WEIGHT["w"] = engine.ones(3, device=cuda, requires_grad=True)
    step = engine.compile(REFUSED[reason])
    x = engine.ones(3, device=cuda)
    step(x)
    with pytest.warns(CaptureWarning, match=reason):
        step(x)
    for _ in range(2):
        step(x)
    assert WEIGHT["w"].grad[0].item() == 4.0
    WEIGHT.clear()


def test_a_capture_that_fails_leaves_an_eager_step(cuda, monkeypatch):
    """Nothing of the step has happened by then: it runs once, eagerly, and from then on."""
    weight = engine.ones(3, device=cuda, requires_grad=True)
    calls = []

    @engine.compile
    def step(x):
        calls.append(len(calls))
        (x * weight).sum().backward()
        if engine.cuda.is_current_stream_capturing():
            raise ValueError("not while a stream is captured")

    x = engine.ones(3, device=cuda)
    for _ in range(3):
        step(x)
    with pytest.warns(CaptureWarning, match="a CUDA graph cannot be made of it: not while a stream is captured"):
        step(x)
    step(x)
    assert weight.grad.tolist() == [5.0] * 3


def test_fullgraph_raises(cuda):
    WEIGHT["w"] = engine.ones(3, device=cuda, requires_grad=True)
    step = engine.compile(reads, fullgraph=True)
    x = engine.ones(3, device=cuda)
    step(x)
    with pytest.raises(RuntimeError, match="fullgraph=True asks for it"):
        step(x)
    WEIGHT.clear()


# --- with DistributedDataParallel -------------------------------------------------------------------------------------


def test_with_distributed_data_parallel(cuda):
    """Sums over ranks are made between graphs."""
    ddp.init_process_group()
    try:
        wrap = ddp.DistributedDataParallel
        assert train(cuda, True, wrap=wrap) == train(cuda, False, wrap=wrap)
    finally:
        ddp.destroy_process_group()


def test_a_step_on_another_stream(cuda):
    side = engine.cuda.Stream()
    side.wait_stream(engine.cuda.current_stream())
    with engine.cuda.stream(side):
        captured = train(cuda, True)
    engine.cuda.current_stream().wait_stream(side)
    assert captured == train(cuda, False)
    assert isinstance(engine.compile(lambda x: x), CompiledStep)


def test_on_another_gpu_than_the_one_in_use(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    where = engine.device("cuda", 1)
    assert train(where, True) == train(cuda, False)
    assert engine.cuda.current_device() == 0


def test_memory_of_graphs_that_will_never_run_again_is_freed(cuda):
    weight = engine.ones(1 << 18, device=cuda, requires_grad=True)
    optimizer = SGD([weight], lr=0.1)

    @engine.compile
    def step(x):
        optimizer.zero_grad()
        loss = (x * weight).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = engine.ones(1 << 18, device=cuda)
    for _ in range(5):
        step(x)
    gc.collect()
    pools = len(blocks.living_pools)
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.warns(CaptureWarning, match="options of SGD changed"):
        step(x)
    for _ in range(3):
        step(x)
    gc.collect()
    assert len(blocks.living_pools) == pools
