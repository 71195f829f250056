"""Captured steps give the numbers of eager ones, bit for bit, and leave the same state."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn as nn
import engine.nn.functional as F
from engine import optim
from engine.capture.compiled import CompiledStep

Setup = tuple[nn.Module, Any, Callable[..., Any]]  # model, optimizer, step


def same(first: Any, second: Any) -> bool:
    """Whether two results are equal to the last bit, with equal strides."""
    if isinstance(first, engine.Tensor):
        equal = np.array_equal(first.numpy(force=True), second.numpy(force=True), equal_nan=True)
        return equal and first.stride() == second.stride() and first.requires_grad == second.requires_grad
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return first == second


def compare(
    build: Callable[[], Setup], batches: Callable[[int], tuple[Any, ...]], steps: int = 20, captured: bool = True
) -> CompiledStep:
    """Trains two copies, one eagerly and one captured, and compares all there is after each step."""
    runs = []
    for _ in range(2):
        engine.manual_seed(0)
        runs.append((build(), engine.get_rng_state()))
    (model, optimizer, step), _ = runs[0]
    (other, other_optimizer, plain), state = runs[1]
    compiled = engine.compile(plain)
    mine = state
    for number in range(steps):
        batch = batches(number)
        engine.set_rng_state(state)
        expected = step(*batch)
        state = engine.get_rng_state()
        engine.set_rng_state(mine)
        got = compiled(*batch)
        mine = engine.get_rng_state()
        assert same(expected, got), f"results at step {number}"
        assert same(state, mine), f"random numbers at step {number}"
        assert same(dict(model.state_dict()), dict(other.state_dict())), f"state of the model at step {number}"
        for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), f"{name} at step {number}"
            assert a.grad is None or same(a.grad, b.grad), f"gradient of {name} at step {number}"
            assert a._version == b._version, f"version of {name} at step {number}"
        assert same(optimizer.state_dict(), other_optimizer.state_dict()), f"optimizer at step {number}"
    assert replays(compiled) == captured
    return compiled


def replays(compiled: CompiledStep) -> bool:
    """Whether there is something to replay."""
    return any(entry.programs for entry in compiled._entries.values())


def classes(shape: tuple[int, ...], kinds: int) -> Callable[[int], tuple[engine.Tensor, engine.Tensor]]:
    """Batches of normal inputs and class indices."""

    def batch(number: int) -> tuple[engine.Tensor, engine.Tensor]:
        generator = engine.Generator().manual_seed(number)
        inputs = engine.randn(*shape, generator=generator)
        return inputs, engine.randint(0, kinds, (shape[0],), generator=generator)

    return batch


def training(model: nn.Module, optimizer: Any) -> Setup:
    def step(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def mlp(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), activation(), nn.Linear(16, 16), activation(), nn.Linear(16, 5))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate="tanh"), nn.Linear(32, 16), nn.Dropout(0.2))

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: engine.Tensor) -> engine.Tensor:
        x = self.token(tokens) + self.position(engine.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(F.dropout(x, 0.1, self.training)))).flatten(0, 1)


def cnn() -> nn.Module:
    convolutions = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Dropout2d(0.2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 4 * 4, 5))


def test_mlp() -> None:
    def build() -> Setup:
        model = mlp()
        return training(model, optim.AdamW(model.parameters(), lr=1e-2))

    compare(build, classes((7, 12), 5))


def test_tiny() -> None:
    def build() -> Setup:
        model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())], nn.Linear(16, 10))
        return training(model, optim.AdamW(model.parameters(), lr=1e-3))

    compare(build, classes((8, 16), 10))


def test_layers_whose_forward_and_backward_take_different_products() -> None:
    """BLAS has a kernel for small products of one kind only (`engine.ops.matmul.kernels.product`)."""

    def build() -> Setup:
        model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 10))
        return training(model, optim.AdamW(model.parameters(), lr=1e-3))

    compare(build, classes((32, 128), 10), steps=6)


@pytest.mark.full
@pytest.mark.parametrize("memory_format", [engine.contiguous_format, engine.channels_last])
def test_cnn_with_batch_norm_and_dropout(memory_format: engine.memory_format) -> None:
    def build() -> Setup:
        model = cnn().to(memory_format=memory_format)
        return training(model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9))

    compare(build, classes((6, 1, 8, 8), 5))


def test_language_model_with_dropout_and_tied_weight() -> None:
    def build() -> Setup:
        model = Language()
        return training(model, optim.AdamW(model.parameters(), lr=1e-2))

    def batch(number: int) -> tuple[engine.Tensor, engine.Tensor]:
        tokens = engine.randint(0, 11, (3, 7), generator=engine.Generator().manual_seed(number))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    compare(build, batch)


@pytest.mark.full
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(kind: Callable[..., nn.Module]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            return self.head(self.cells(x)[0][:, -1])

    def build() -> Setup:
        model = Model()
        return training(model, optim.RMSprop(model.parameters(), lr=1e-2))

    compare(build, classes((3, 5, 4), 5), steps=8)


def all_optimizers() -> list[str]:
    return [name for name in optim.__all__ if isinstance(getattr(optim, name), type)]


@pytest.mark.full
@pytest.mark.parametrize("name", all_optimizers())
def test_optimizer(name: str) -> None:
    """Every optimizer whose step() needs no closure."""
    if name in ("Optimizer", "LBFGS", "SparseAdam"):
        pytest.skip("an abstract class" if name == "Optimizer" else "needs a closure or sparse gradients")

    def build() -> Setup:
        model = mlp(nn.Tanh)
        return training(model, getattr(optim, name)(model.parameters(), lr=1e-2))

    compare(build, classes((4, 12), 5), steps=10)


def test_closure_runs_for_real() -> None:
    """optimizer.step(closure) is called at every replay, and the closure with it."""

    def build() -> Setup:
        model = mlp(nn.Tanh)
        optimizer = optim.LBFGS(model.parameters(), max_iter=2)

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> None:
            def closure() -> engine.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)

        return model, optimizer, step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", engine.CaptureWarning)
        compare(build, classes((4, 12), 5), steps=4, captured=False)


def test_accumulation_clipping_and_scheduler() -> None:
    """Two backward calls and two losses a step, a clipped norm that is returned, a scheduler inside."""

    def build() -> Setup:
        model = mlp(nn.Sigmoid)
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> dict[str, Any]:
            optimizer.zero_grad(set_to_none=False)
            logits = model(inputs)
            first = F.cross_entropy(logits, targets)
            second = logits.square().mean() * 0.1
            (first + second).backward(retain_graph=True)
            (model(inputs * 0.5).sum() * 0.01).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            return {"losses": [first.detach(), second.detach()], "norm": norm, "hits": logits.argmax(1) == targets}

        return model, optimizer, step

    compare(build, classes((4, 12), 5), steps=10)


def test_scheduler_outside() -> None:
    def build() -> Setup:
        model = mlp()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        _, _, inner = training(model, optimizer)
        scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        calls: list[Any] = []

        def outer(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
            if not calls:
                calls.append(inner)
            result = calls[0](inputs, targets)
            scheduler.step()
            return result

        outer.inner = (inner, calls)  # type: ignore[attr-defined]
        return model, optimizer, outer

    # The scheduler is stepped by code around the compiled step.
    engine.manual_seed(0)
    model, optimizer, step = build()
    engine.manual_seed(0)
    other, other_optimizer, outer = build()
    inner, calls = outer.inner  # type: ignore[attr-defined]
    calls.append(engine.compile(inner))
    batch = classes((4, 12), 5)
    for number in range(12):
        assert same(step(*batch(number)), outer(*batch(number)))
        assert optimizer.param_groups[0]["lr"] == other_optimizer.param_groups[0]["lr"]
        assert same(dict(model.state_dict()), dict(other.state_dict()))
    assert replays(calls[0])


@pytest.mark.full
def test_in_place_operators_gradients_by_hand_and_frozen_parts() -> None:
    """A hand-written update under no_grad, an exponential average, masks, views and indexing."""

    def build() -> Setup:
        model = mlp(nn.Tanh)
        average = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        next(iter(model.parameters())).requires_grad_(False)

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> Any:
            for parameter in model.parameters():
                parameter.grad = None
            x = inputs.clone()
            x[:, 1:3] = 0.5
            x[0].mul_(2.0).add_(inputs[1], alpha=0.5)
            logits = model(engine.where(x > 1, x * 0.5, x))
            scores = F.log_softmax(logits, 1)[engine.arange(4), targets]
            noise = engine.zeros_like(scores).uniform_(0.0, 0.1)
            loss = -(scores + noise).mean()
            loss.backward()
            with engine.no_grad():
                for parameter, kept in zip(model.parameters(), average, strict=True):
                    if parameter.requires_grad:
                        parameter -= 0.1 * parameter.grad
                    kept.lerp_(parameter, 0.25)
            return loss, average[2].sum(), engine.tensor([1.0, 2.0]), inputs

        return model, optimizer, step

    compare(build, classes((4, 12), 5), steps=8)


def test_grad_mode_of_real_calls() -> None:
    """Random values written into parameters under no_grad, gradients clipped there, hooks that ask for the mode."""
    modes: list[bool] = []

    def build() -> Setup:
        model = mlp(nn.Tanh)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: modes.append(engine.is_grad_enabled()))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *given: modes.append(engine.is_grad_enabled()))

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            with engine.no_grad():
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                model[4].bias.uniform_(-0.1, 0.1)
                optimizer.step()
            optimizer.step()
            return loss

        return model, optimizer, step

    compare(build, classes((4, 12), 5), steps=6)
    assert modes == [*[False] * 6, False, True] * 12


@pytest.mark.full
def test_autograd_grad_inside() -> None:
    """A gradient penalty of first order by autograd.grad, with an argument that is made to require grad."""

    def build() -> Setup:
        model = mlp(nn.Tanh)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> Any:
            optimizer.zero_grad()
            x = inputs.detach().requires_grad_()
            (slope,) = engine.autograd.grad(F.cross_entropy(model(x), targets), x)
            loss = F.cross_entropy(model(inputs + 0.1 * slope.sign()), targets)
            loss.backward()
            optimizer.step()
            return loss.detach(), slope

        return model, optimizer, step

    compare(build, classes((4, 12), 5), steps=8)


@pytest.mark.full
def test_custom_function() -> None:
    """A Function made of operators: what these do is recorded like the rest."""

    class Scale(engine.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: engine.Tensor) -> engine.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: engine.Tensor) -> engine.Tensor:
            (x,) = ctx.saved_tensors
            return g * x * 2.0

    def build() -> Setup:
        model = mlp(nn.Tanh)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(Scale.apply(model(inputs)), targets)
            loss.backward()
            optimizer.step()
            return loss

        return model, optimizer, step

    compare(build, classes((4, 12), 5), steps=8)


@pytest.mark.full
def test_shapes_back_and_forth() -> None:
    """Each shape gets a recording; both are replayed in turn."""

    def build() -> Setup:
        model = mlp()
        return training(model, optim.AdamW(model.parameters(), lr=1e-2))

    def batch(number: int) -> tuple[engine.Tensor, engine.Tensor]:
        return classes((7 if number % 3 else 4, 12), 5)(number)

    compiled = compare(build, batch, steps=20)
    assert sum(len(entry.programs) for entry in compiled._entries.values()) == 2


@pytest.mark.full
def test_float64_and_bfloat16() -> None:
    for kind in (engine.float64, engine.bfloat16):

        def build(kind: engine.dtype = kind) -> Setup:
            model = mlp().to(kind)
            return training(model, optim.SGD(model.parameters(), lr=0.1))

        def batch(number: int, kind: engine.dtype = kind) -> tuple[Any, ...]:
            inputs, targets = classes((4, 12), 5)(number)
            return inputs.to(kind), targets

        compare(build, batch, steps=6)


def test_hooks_after_accumulation_run() -> None:
    """Hooks that see finished gradients are called for real."""
    seen: list[int] = []

    def build() -> Setup:
        model = mlp()
        for number, parameter in enumerate(model.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda p, number=number: seen.append(number))
        return training(model, optim.SGD(model.parameters(), lr=0.1))

    compare(build, classes((4, 12), 5), steps=6)
    assert len(seen) == 2 * 6 * 6
    assert seen[:6] == seen[-6:]


@pytest.mark.full
def test_gradients_are_taken_over_without_a_copy_and_nothing_piles_up() -> None:
    """What a replay leaves is what an eager step leaves: as many arrays alive, gradients that own their memory."""
    model, _, step = training(net := mlp(), optim.SGD(net.parameters(), lr=0.1))
    compiled = engine.compile(step)
    batch = classes((4, 12), 5)(0)
    for _ in range(5):
        compiled(*batch)
    assert replays(compiled)
    counts = []
    for _ in range(3):
        for _ in range(5):
            compiled(*batch)
        gc.collect()
        counts.append(sum(isinstance(each, engine.Tensor) for each in gc.get_objects()))
    assert counts[0] == counts[1] == counts[2]
    assert all(parameter.grad is not None and parameter.grad._version == 0 for parameter in model.parameters())
