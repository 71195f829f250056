"""The layout report: what is told, when, to whom, once per parameter; and what is no breach at all."""

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

import ddp
import engine
import engine.nn.functional as F
from engine import nn
from engine.optim import laying_out as flat
from engine.reports import layout_report as report


@pytest.fixture(autouse=True)
def fresh_report() -> Iterator[None]:
    report.reset()
    yield
    report.reset()


@pytest.fixture
def process_group() -> Iterator[None]:
    started = not ddp.is_initialized()
    with mock.patch.dict(os.environ):  # torchrun's variables stay set else, for all tests that follow
        if started:
            ddp.init_process_group()
        yield
        if started:
            ddp.destroy_process_group()


class Transposed(nn.Module):
    """Uses its weight the other way round, so that its gradient arrives column-major."""

    def __init__(self, rows: int = 6, columns: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(engine.ones(rows, columns))

    def forward(self, factor: engine.Tensor) -> engine.Tensor:
        return (self.weight.t() * factor).sum()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = Transposed()

    def forward(self, factor: engine.Tensor) -> engine.Tensor:
        return self.features(factor)


FACTOR = engine.full((4, 6), 2.0)


def silent(function: Callable[[], object]) -> None:
    """Runs `function`; no warning may come."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function()


# --- what is told, and when -------------------------------------------------------------------------------------------


def test_an_optimizer_hears_of_a_breach_once() -> None:
    model = Net()
    optimizer = engine.optim.SGD(model.parameters(), lr=0.1)
    silent(model(FACTOR).backward)  # nobody has asked for the gradient yet
    with pytest.warns(report.LayoutWarning) as told:
        optimizer.step()
    assert len(told) == 1
    assert told[0].filename == __file__
    text = str(told[0].message)
    for part in ("optimizer", "features.weight", "[6, 4]", "PermuteBackward0", "(1, 6)", "(4, 1)", "96 bytes", " ms)"):
        assert part in text
    assert "Fix: store the parameter in the order" in text
    for _ in range(3):
        optimizer.zero_grad()
        silent(model(FACTOR).backward)
        silent(optimizer.step)
    (found,) = engine.layout_report()
    assert found.copies == 4


def test_the_report_as_data() -> None:
    model = Net()
    model(FACTOR).backward()
    (found,) = engine.layout_report()
    assert isinstance(found, engine.LayoutBreach)
    assert found.name == "features.weight"
    assert found.shape == (6, 4)
    assert (found.gradient_stride, found.parameter_stride) == ((1, 6), (4, 1))
    assert found.bytes_per_step == 96
    assert found.copies == 1
    assert found.milliseconds > 0
    assert found.operator.endswith("Backward0")
    assert str(found.gradient_stride) in found.fix
    assert not found.told
    assert model.features.weight.grad.stride() == (4, 1)  # told or not, what is stored obeys


def test_the_most_expensive_comes_first_and_clear_forgets() -> None:
    small, large = Transposed(2, 3), Transposed(30, 20)
    small(engine.ones(3, 2)).backward()
    large(engine.ones(20, 30)).backward()
    assert [found.shape for found in engine.layout_report()] == [(30, 20), (2, 3)]
    assert len(engine.layout_report(clear=True)) == 2
    assert engine.layout_report() == []
    silent(engine.optim.SGD(small.parameters()).step)


def test_a_breach_goes_with_its_parameter() -> None:
    model = Transposed()
    model(FACTOR).backward()
    assert len(engine.layout_report()) == 1
    del model
    gc.collect()
    assert engine.layout_report() == []


def test_two_optimizers_hear_of_their_own_parameters() -> None:
    models = Transposed(), Transposed()
    optimizers = [
        engine.optim.SGD(model.named_parameters(prefix=name), lr=0.1) for name, model in zip("ab", models, strict=True)
    ]
    for model in models:
        model(FACTOR).backward()
    for name, optimizer in zip("ab", optimizers, strict=True):
        with pytest.warns(report.LayoutWarning, match=f"gradient of {name}.weight") as told:
            optimizer.step()
        assert len(told) == 1


def test_names_are_found_where_nobody_gave_them() -> None:
    weight = engine.ones(6, 4).requires_grad_()
    (weight.t() * FACTOR).sum().backward()
    assert engine.layout_report()[0].name == "an unnamed Tensor"
    model = nn.Sequential(Net(), nn.ReLU())
    model(FACTOR).backward()
    assert {found.name for found in engine.layout_report()} == {"an unnamed Tensor", "0.features.weight"}


def test_ddp_hears_of_a_breach_once(process_group: None) -> None:
    model = ddp.DistributedDataParallel(Net())
    with pytest.warns(report.LayoutWarning, match="on the way to the bucket: the gradient of features.weight") as told:
        model(FACTOR).backward()
    assert len(told) == 1
    optimizer = engine.optim.SGD(model.parameters(), lr=0.1)
    silent(optimizer.step)
    silent(model(FACTOR).backward)
    optimizer.zero_grad()
    silent(model(FACTOR).backward)
    (found,) = engine.layout_report()
    assert (found.copies, found.told) == (2, True)  # the middle backward added in place
    assert model.module.features.weight.grad.stride() == (4, 1)


# --- modes ------------------------------------------------------------------------------------------------------------


def test_strict_raises_every_time_and_before_the_update() -> None:
    engine.set_layout_report("strict")
    model = Transposed()
    optimizer = engine.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(FACTOR).backward()
        with pytest.raises(engine.LayoutError, match=r"optimizer.*weight"):
            optimizer.step()
        assert bool((model.weight == 1).all())


def test_strict_raises_in_the_backward_that_fills_a_bucket(process_group: None) -> None:
    engine.set_layout_report("strict")
    model = ddp.DistributedDataParallel(Net())
    with pytest.raises(engine.LayoutError, match=r"bucket.*features\.weight"):
        model(FACTOR).backward()


def test_off_counts_in_silence_and_warn_tells_later() -> None:
    engine.set_layout_report("off")
    model = Transposed()
    optimizer = engine.optim.SGD(model.parameters(), lr=0.1)
    silent(model(FACTOR).backward)
    silent(optimizer.step)
    assert [found.copies for found in engine.layout_report()] == [1]
    engine.set_layout_report("warn")
    with pytest.warns(report.LayoutWarning, match="weight"):
        optimizer.step()


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="expected one of warn, strict, off, got 'loud'"):
        engine.set_layout_report("loud")  # type: ignore[arg-type]


# --- gradients that somebody assigned ---------------------------------------------------------------------------------


def test_an_assigned_gradient_in_another_order_reaches_the_optimizer() -> None:
    parameter = nn.Parameter(engine.zeros(3, 5))
    optimizer = engine.optim.SGD([("w", parameter)], lr=1.0)
    parameter.grad = engine.arange(15.0).reshape(5, 3).t()
    before = flat.layout_copies, flat.layout_bytes
    with pytest.warns(report.LayoutWarning, match=r"gradient of w \[3, 5\], made by an assignment to .grad"):
        optimizer.step()
    assert (flat.layout_copies, flat.layout_bytes) == (before[0] + 1, before[1] + 60)
    assert parameter.tolist() == (-engine.arange(15.0).reshape(5, 3).t()).tolist()
    assert "empty_like(parameter).copy_(gradient)" in engine.layout_report()[0].fix


def test_an_assigned_gradient_in_another_order_reaches_a_bucket(process_group: None) -> None:
    linear = nn.Linear(3, 5)
    model = ddp.DistributedDataParallel(linear, gradient_as_bucket_view=False)
    silent(model(engine.ones(2, 3)).sum().backward)
    linear.weight.grad = engine.zeros(3, 5).t()
    with pytest.warns(report.LayoutWarning, match="bucket: the gradient of weight .* an assignment to .grad"):
        model(engine.ones(2, 3)).sum().backward()
    assert model.reducer.buckets.layout_bytes == 2 * 60  # into the bucket and back


def test_with_the_contract_off_gradients_are_stolen_as_they_come() -> None:
    model = Transposed()
    optimizer = engine.optim.SGD(model.parameters(), lr=0.1)
    with engine.autograd.set_layout_contract(False):
        model(FACTOR).backward()
    assert model.weight.grad.stride() == (1, 6)
    assert engine.layout_report() == []
    with pytest.warns(report.LayoutWarning):
        optimizer.step()
    optimizer.zero_grad()
    model(FACTOR).backward()
    assert model.weight.grad.stride() == (4, 1)


# --- no false alarms --------------------------------------------------------------------------------------------------


def run_strictly(model: nn.Module, inputs: engine.Tensor) -> None:
    """Trains two steps, as it is and through DDP; raises LayoutError at any breach."""
    engine.set_layout_report("strict")
    optimizer = engine.optim.AdamW(model.parameters())
    wrapped = ddp.DistributedDataParallel(model)
    before = flat.layout_copies
    for forward in (model, wrapped):
        for _ in range(2):
            optimizer.zero_grad()
            forward(inputs).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                assert parameter.grad.stride() == parameter.stride()
    assert flat.layout_copies == before
    assert engine.layout_report() == []


@pytest.mark.parametrize("stride", [(3, 1, 1), (3, 1, 7), (3, 1, 3), (3, 1, 0)])
def test_strides_of_size_1_are_no_breach(stride: tuple[int, ...], process_group: None) -> None:
    parameter = nn.Parameter(engine.zeros(6).as_strided((2, 3, 1), stride))
    assert parameter.stride() == stride
    holder = nn.ParameterList([parameter])
    model = ddp.DistributedDataParallel(holder)
    engine.set_layout_report("strict")
    weights = engine.ones(1, 2, 3).permute(1, 2, 0)
    (parameter * weights).sum().backward()
    parameter.grad = None
    (parameter * 2).sum().backward()
    engine.optim.SGD(model.parameters(), lr=0.1).step()
    assert engine.layout_report() == []


def test_expanded_gradients_are_no_breach(process_group: None) -> None:
    engine.set_layout_report("strict")
    columns = nn.Parameter(engine.zeros(4, 3).t())
    model = ddp.DistributedDataParallel(nn.ParameterList([columns]))
    for _ in range(2):
        columns.sum().backward()
        assert columns.grad.stride() == columns.stride() == (1, 3)
        engine.optim.SGD(model.parameters(), lr=0.1).step()
        columns.grad = None
    (columns.sum(0) * engine.ones(4)).sum().backward()
    assert engine.layout_report() == []


class ConvNet(nn.Module):
    """Convolutions (grouped, dilated, 1x1, one channel), batch norm, pooling, a linear layer behind a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2, bias=False),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 12, 1, stride=2),
            nn.AvgPool2d(2),
        )
        self.classifier = nn.Linear(12, 5)

    def forward(self, images: engine.Tensor) -> engine.Tensor:
        return self.classifier(F.relu(self.features(images)).mean((2, 3)))


@pytest.mark.parametrize("memory_format", [engine.contiguous_format, engine.channels_last])
def test_a_convolutional_network_is_no_breach(memory_format: engine.memory_format, process_group: None) -> None:
    model = ConvNet().to(memory_format=memory_format)
    run_strictly(model, engine.randn(3, 1, 8, 8).to(memory_format=memory_format))


def test_a_transformer_layer_and_an_lstm_are_no_breach(process_group: None) -> None:
    run_strictly(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), engine.randn(2, 3, 8))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.lstm = nn.LSTM(6, 5)

        def forward(self, tokens: engine.Tensor) -> engine.Tensor:
            return self.lstm(self.embedding(tokens))[0]

    run_strictly(Recurrent(), engine.randint(0, 7, (4, 3)))


def test_tied_weights_are_no_breach(process_group: None) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.head = nn.Linear(6, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: engine.Tensor) -> engine.Tensor:
            return self.head(self.embedding(tokens))

    run_strictly(Tied(), engine.randint(0, 7, (4, 3)))
