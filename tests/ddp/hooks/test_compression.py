"""Compressed gradients: PowerSGD, 8 bits, top-k (rows H8, H10 and H11 of the checklist)."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.hooks import (
    PowerSGDState,
    TopKState,
    allreduce_hook,
    batched_powerSGD_hook,
    bf16_compress_wrapper,
    fp16_compress_wrapper,
    noop_hook,
    powerSGD_hook,
    quantization_perchannel_hook,
    quantization_pertensor_hook,
    topk_hook,
)
from ddp.hooks.powersgd import orthogonalize
from engine.optim import SGD
from tests.ddp.models import TASKS, Weights, batch, build, gradients, loss_of

RANKS = pytest.mark.mpi(ranks=[1, 2, 3, 4])
pytestmark = pytest.mark.filterwarnings("ignore::engine.LayoutWarning")  # row-major gradients, on purpose


class Matrices(nn.Module):
    """Parameters whose gradients are what `forward` is given; one channels-last, one column-major, one a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(engine.zeros(20, 12))
        self.column = nn.Parameter(engine.zeros(12, 20).t())
        self.image = nn.Parameter(engine.zeros(8, 4, 3, 3).to(memory_format=engine.channels_last))
        self.bias = nn.Parameter(engine.zeros(20))

    def forward(self, gradients_: list[np.ndarray]) -> engine.Tensor:
        return sum((p * engine.from_numpy(g)).sum() for p, g in zip(self.parameters(), gradients_, strict=True))


def random_gradients(rank: int, step: int, of_rank: int | None = None) -> list[np.ndarray]:
    """Gradients of a rank and step; of_rank: as products of matrices with so many columns, alike on all ranks but for
    one factor, so that the mean has that rank too.
    """
    rng, shared = np.random.default_rng([rank, step]), np.random.default_rng(99)
    found = []
    for shape in [(20, 12), (20, 12), (8, 4, 3, 3), (20,)]:
        size = (shape[0], int(np.prod(shape[1:], dtype=int)))
        if of_rank is None or len(shape) == 1:
            array = rng.standard_normal(size)
        else:
            array = rng.standard_normal((size[0], of_rank)) @ shared.standard_normal((of_rank, size[1]))
        found.append(array.reshape(shape).astype(np.float32))
    return found


def backward(net: nn.Module, gradients_: list[np.ndarray]) -> list[np.ndarray]:
    net.zero_grad()
    net(gradients_).backward()
    return [parameter.grad.numpy().copy() for parameter in net.parameters()]


def mean(group: Any, step: int, of_rank: int | None = None) -> list[np.ndarray]:
    everybody = [random_gradients(rank, step, of_rank) for rank in range(group.size())]
    return [np.mean(np.stack(each).astype(np.float64), 0) for each in zip(*everybody, strict=True)]


def assert_alike(group: Any, found: list[np.ndarray]) -> None:
    mine = [array.tobytes() for array in found]
    assert all(other == mine for other in group.exchange(mine))


# --- PowerSGD ---------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("columns", [1, pytest.param(2, marks=pytest.mark.full), 4])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_what_has_low_rank_comes_through(group, columns, warm, as_view) -> None:
    """A mean of as many columns as are sent is sent exactly, whatever the layout; exact also before it starts."""
    net = DistributedDataParallel(Matrices(), bucket_cap_mb=0.002, gradient_as_bucket_view=as_view)
    state = PowerSGDState(None, columns, start_powerSGD_iter=2, warm_start=warm, use_error_feedback=False)
    net.register_comm_hook(state, powerSGD_hook)
    for step in range(4):
        found = backward(net, random_gradients(group.rank, step, columns))
        for array, expected in zip(found, mean(group, step, columns), strict=True):
            assert np.abs(array - expected).max() <= 2e-4 * np.abs(expected).max()
        assert_alike(group, found)
    rate, before, after = state.compression_stats()
    assert rate == before / after > 1
    assert state.iter == 4


@RANKS
def test_what_is_lost_is_sent_later(group) -> None:
    """The sum of what was sent, plus the mean of what each rank still holds, is the sum of all means."""
    net = DistributedDataParallel(Matrices())
    state = PowerSGDState(None, 1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook)
    sent: list[Any] = [0, 0, 0, 0]
    wanted: list[Any] = [0, 0, 0, 0]
    for step in range(12):
        found = backward(net, random_gradients(group.rank, step))
        sent = [total + array.astype(np.float64) for total, array in zip(sent, found, strict=True)]
        wanted = [total + array for total, array in zip(wanted, mean(group, step), strict=True)]
        assert np.allclose(found[3], mean(group, step)[3], atol=1e-6)  # vectors travel exactly
    (errors,) = state.error_dict.values()
    owed = [np.mean(np.stack(each), 0) for each in zip(*group.exchange(errors), strict=True)]
    assert len(owed) == 3
    assert max(np.abs(each).max() for each in owed) > 0.1
    order = [net.module.row, net.module.column, net.module.image]
    for position, parameter in enumerate(order):
        missing = (wanted[position] - sent[position]).reshape(len(parameter), -1)
        assert any(each.shape == missing.shape and np.allclose(each, missing, atol=1e-4) for each in owed)


@pytest.mark.full
@RANKS
def test_training_with_powersgd_converges(group) -> None:
    losses = []
    for hook in (allreduce_hook, powerSGD_hook):
        net = DistributedDataParallel(build(TASKS["mlp"], engine.float32))
        net.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=1), hook)
        optimizer = SGD(net.parameters(), lr=0.2)
        inputs, targets = batch(TASKS["mlp"], engine.float32, 0)
        share = slice(group.rank, None, group.size())
        for _ in range(60):
            optimizer.zero_grad()
            loss_of(net, inputs[share], targets[share]).backward()
            optimizer.step()
        with engine.no_grad():
            losses.append(loss_of(net.module, inputs, targets).item())
    assert losses[1] < 0.8  # from 1.6
    assert losses[1] < losses[0] + 0.5


@RANKS
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_h08_what_is_not_worth_it_is_exact(group, warm) -> None:
    """H8: a 5 x 1 weight gives the mean, in every step."""
    plain, net = (DistributedDataParallel(nn.Linear(1, 5, bias=False)) for _ in range(2))
    net.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2, warm_start=warm), powerSGD_hook)
    for step in range(20):
        for each in (plain, net):
            each.zero_grad()
            each(engine.full((1, 1), 12.0 * group.rank + step)).sum().backward()
        expected = sum(12.0 * rank + step for rank in range(group.size())) / group.size()
        assert net.module.weight.grad.tolist() == plain.module.weight.grad.tolist() == [[expected]] * 5


@RANKS
def test_batched_powersgd(group) -> None:
    net = DistributedDataParallel(Matrices())
    state = PowerSGDState(None, 2, start_powerSGD_iter=2)
    net.register_comm_hook(state, batched_powerSGD_hook)
    for step in range(4):
        found = backward(net, random_gradients(0, 5))  # the same in every step: what is lost comes later
        assert_alike(group, found)
        if step < 2:
            assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, random_gradients(0, 5), strict=True))
    assert state.compression_stats()[0] > 3


@pytest.mark.mpi(ranks=[2, 3])
def test_ranks_of_weight_0_lose_nothing(group) -> None:
    net = DistributedDataParallel(Matrices())
    state = PowerSGDState(None, 1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook)
    for step in range(4):
        backward(net, random_gradients(group.rank, step))
    before = [error.copy() for error in state.error_dict[0]]
    net.set_gradient_weight(0.0 if group.rank == 1 else 1.0)
    found = backward(net, [np.full_like(g, np.nan) if group.rank == 1 else g for g in random_gradients(group.rank, 9)])
    assert all(np.isfinite(array).all() for array in found)
    assert_alike(group, found)
    kept = all(np.array_equal(a, b) for a, b in zip(before, state.error_dict[0], strict=True))
    assert kept == (group.rank == 1)


@RANKS
@pytest.mark.parametrize("wrapper", [fp16_compress_wrapper, bf16_compress_wrapper], ids=["fp16", "bf16"])
def test_powersgd_in_half_precision(group, wrapper) -> None:
    """Wrapped: what a hook sees of the parameters is then in half precision, and laid out as they are."""
    net = DistributedDataParallel(Matrices())
    seen = []

    def look(state: PowerSGDState, bucket: Any) -> Any:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            seen.append((gradient.dtype.name, gradient.stride() == parameter.stride()))
        return powerSGD_hook(state, bucket)

    net.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), wrapper(look))
    for step in range(4):
        found = backward(net, random_gradients(group.rank, step, 2))
        for array, expected in zip(found, mean(group, step, 2), strict=True):
            assert np.abs(array - expected).max() <= 0.05 * np.abs(expected).max()
        assert_alike(group, found)
    assert set(seen) == {("float16" if wrapper is fp16_compress_wrapper else "bfloat16", True)}


@pytest.mark.mpi(ranks=[2])
def test_h11_pickled_state_goes_on(group) -> None:
    """H11: the process group is left out, with a warning; the rest is there."""
    net = DistributedDataParallel(Matrices())
    state = PowerSGDState(group, 2, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook)
    for step in range(3):
        backward(net, random_gradients(group.rank, step))
    with pytest.warns(UserWarning, match="the process group is not saved"):
        saved = pickle.dumps(state)
    again = pickle.loads(saved)
    assert again.process_group.size() == 2
    assert (again.iter, again.matrix_approximation_rank) == (3, 2)
    other = DistributedDataParallel(Matrices())
    other.register_comm_hook(again, powerSGD_hook)
    first, second = (backward(each, random_gradients(group.rank, 3)) for each in (net, other))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("options", [{}, {"warm_start": False}, {"use_error_feedback": False}])
@pytest.mark.parametrize("start", [0, 1])
def test_h10_the_start_is_checked(options, start) -> None:
    """H10: with error feedback or warm start it begins after two iterations."""
    with pytest.raises(ValueError, match="Expect `start_powerSGD_iter` > 1"):
        PowerSGDState(None, start_powerSGD_iter=start, **options)
    PowerSGDState(None, start_powerSGD_iter=start, warm_start=False, use_error_feedback=False)
    with pytest.raises(ValueError, match="expected a rank of at least 1, got 0"):
        PowerSGDState(None, matrix_approximation_rank=0)


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_orthogonalize(columns) -> None:
    matrix = np.random.default_rng(0).standard_normal((9, columns))
    q = orthogonalize(matrix)
    assert np.allclose(q.T @ q, np.eye(columns))
    assert np.allclose(q @ (q.T @ matrix), matrix)
    zero = orthogonalize(np.zeros((9, columns)))
    assert np.isfinite(zero).all()


# --- 8 bits -----------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize(
    ("hook", "block"),
    [
        (quantization_pertensor_hook, None),
        (quantization_perchannel_hook, 512),
        (partial(quantization_perchannel_hook, bucket_size=32), 32),
    ],
    ids=["tensor", "512", "32"],
)
def test_eight_bits(group, hook, block) -> None:
    """Each element is off by at most half a level of its block, on each rank."""
    net = DistributedDataParallel(Matrices())
    net.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    found = backward(net, random_gradients(group.rank, 0))
    assert_alike(group, found)
    largest = max(np.abs(g).max() for rank in range(group.size()) for g in random_gradients(rank, 0))
    for array, expected in zip(found, mean(group, 0), strict=True):
        assert np.abs(array - expected).max() <= largest / 254 * 1.001
        assert not np.array_equal(array, expected.astype(np.float32))


@RANKS
def test_eight_bits_of_few_levels_are_exact(group) -> None:
    """Unused parameters, zeros, weights; NaN is not hidden."""
    net = DistributedDataParallel(Weights("a", "b", "c"))
    net.register_comm_hook(None, quantization_perchannel_hook)
    net.set_gradient_weight(group.rank + 1)
    net(a=127.0, b=0).backward()
    assert gradients(net) == {"a": 127, "b": 0, "c": None}
    net.zero_grad()
    net(a=float("nan") if group.rank == 0 else 127.0, b=0).backward()
    assert np.isnan(net.module.a.grad.numpy()).all()


# --- top-k ------------------------------------------------------------------------------------------------------------


@RANKS
def test_the_largest_elements_are_sent_and_the_others_wait(group) -> None:
    net = DistributedDataParallel(Matrices())
    state = TopKState(None, ratio=0.05)
    net.register_comm_hook(state, topk_hook)
    sent: list[Any] = [0, 0, 0, 0]
    wanted: list[Any] = [0, 0, 0, 0]
    for step in range(6):
        found = backward(net, random_gradients(group.rank, step))
        assert_alike(group, found)
        elements = sum(np.count_nonzero(array) for array in found)
        count = int(0.05 * state.error_dict[0].size)
        assert count <= elements <= count * group.size()
        sent = [total + array.astype(np.float64) for total, array in zip(sent, found, strict=True)]
        wanted = [total + array for total, array in zip(wanted, mean(group, step), strict=True)]
    owed = np.mean(np.stack(group.exchange(state.error_dict[0])), 0)
    missing = sum(np.sum(w - s) for w, s in zip(wanted, sent, strict=True))
    assert owed.sum() == pytest.approx(missing, abs=1e-2)
    assert np.abs(owed).sum() == pytest.approx(
        sum(np.abs(w - s).sum() for w, s in zip(wanted, sent, strict=True)), rel=1e-4
    )


@RANKS
def test_all_elements_are_the_mean(group) -> None:
    net = DistributedDataParallel(Matrices(), bucket_cap_mb=0.001)
    net.register_comm_hook(TopKState(None, ratio=1), topk_hook)
    for array, expected in zip(backward(net, random_gradients(group.rank, 0)), mean(group, 0), strict=True):
        assert np.allclose(array, expected, atol=1e-6)


@pytest.mark.parametrize("ratio", [0, -1, 1.5, float("nan")])
def test_ratios_that_are_refused(ratio) -> None:
    with pytest.raises(ValueError, match="expected a ratio above 0 and at most 1, got"):
        TopKState(None, ratio)


# --- all of them ------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("dtype", [engine.float64, engine.float16, engine.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["powersgd", "batched", "eight", "topk"])
def test_dtypes(group, name, dtype) -> None:
    states = {
        "powersgd": (PowerSGDState(None, 4, start_powerSGD_iter=2), powerSGD_hook),
        "batched": (PowerSGDState(None, 4, start_powerSGD_iter=2), batched_powerSGD_hook),
        "eight": (None, quantization_perchannel_hook),
        "topk": (TopKState(None, 0.5), topk_hook),
    }
    net = DistributedDataParallel(Weights("a", "b", dtype=dtype))
    net.register_comm_hook(*states[name])
    for _ in range(3):
        net.zero_grad()
        net(a=127.0, b=127.0).backward()
        assert net.module.a.grad.dtype is dtype
        assert engine.isfinite(net.module.a.grad.float()).all()
    if name in ("powersgd", "eight"):
        assert gradients(net) == {"a": 127, "b": 127}


@RANKS
def test_nothing_is_reduced(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    net.register_comm_hook(None, noop_hook)
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": 12.0 * group.rank}
