"""SyncBatchNorm over several ranks is batch norm over the batch of all of them."""

import copy
from typing import Any

import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel, SyncBatchNorm
from engine.optim import SGD

RANKS = pytest.mark.mpi(ranks=[1, 2, 3])
SHAPES = {"2d": (12, 4), "3d": (12, 4, 5), "4d": (12, 4, 3, 5), "5d": (12, 4, 2, 3, 2)}
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def shares(group: ddp.ProcessGroup, count: int, sizes: Any) -> slice:
    """This rank's part of `count` samples, of the relative sizes given."""
    total = sum(sizes[: group.size()])
    ends = [count * sum(sizes[:rank]) // total for rank in range(group.size() + 1)]
    return slice(ends[group.rank], ends[group.rank + 1])


def close(found: engine.Tensor, expected: engine.Tensor, tolerance: float) -> bool:
    return engine.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@RANKS
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 3), (1, 0, 1)], ids=["even", "uneven", "one empty"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_values_statistics_and_gradients_are_those_of_the_whole_batch(group, shape, affine, sizes) -> None:
    """B7, B8, B11: even and uneven shares, one of them empty."""
    engine.manual_seed(0)
    alone = PLAIN[len(shape)](4, affine=affine, momentum=0.3, dtype=engine.float64)
    if affine:
        nn.init.normal_(alone.weight)
        nn.init.normal_(alone.bias)
    sync = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
    assert isinstance(sync, SyncBatchNorm)
    whole = (engine.randn(*shape, dtype=engine.float64) * 3 + 5).requires_grad_()
    slope = engine.randn(*shape, dtype=engine.float64)
    mine = shares(group, 12, sizes)
    part = whole.detach()[mine].clone().requires_grad_()
    for _ in range(2):
        expected, found = alone(whole), sync(part)
        assert close(found, expected[mine], 1e-12)
    expected.backward(slope)
    found.backward(slope[mine])
    assert close(part.grad, whole.grad[mine], 1e-11)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert close(getattr(sync, name), getattr(alone, name), 1e-12)
    if affine:
        for name in ("weight", "bias"):
            total = getattr(sync, name).grad
            ddp.all_reduce(total)
            assert close(total, getattr(alone, name).grad, 1e-11)
    sync.eval()
    alone.eval()
    assert close(sync(part), alone(whole)[mine], 1e-12)


@RANKS
def test_channels_last_stays_channels_last(group) -> None:
    """B9: in and out."""
    sync = SyncBatchNorm(4)
    inputs = engine.randn(2, 4, 3, 5).to(memory_format=engine.channels_last).requires_grad_()
    outputs = sync(inputs)
    assert outputs.is_contiguous(memory_format=engine.channels_last)
    outputs.square().sum().backward()
    assert inputs.grad.is_contiguous(memory_format=engine.channels_last)


@RANKS
@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_computed_in_single(group, dtype) -> None:
    engine.manual_seed(group.rank)
    inputs = engine.randn(64, 3).to(dtype)
    outputs = SyncBatchNorm(3, dtype=engine.float32)(inputs)
    assert outputs.dtype is dtype
    total = outputs.double().sum(0)
    ddp.all_reduce(total)
    assert total.abs().max().item() < 1


@RANKS
def test_training_under_ddp_is_training_on_the_whole_batch(group) -> None:
    engine.manual_seed(0)
    alone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    net = DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)))
    optimizers = [SGD(each.parameters(), lr=0.1) for each in (alone, net)]
    mine = shares(group, 12, (1, 1, 1))
    for _ in range(4):
        inputs = engine.randn(12, 2, 4, 4, dtype=engine.float64)
        for model, batch, optimizer in zip((alone, net), (inputs, inputs[mine]), optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    for found, expected in zip(net.module.state_dict().values(), alone.state_dict().values(), strict=True):
        assert close(found, expected, 1e-10)


@RANKS
def test_conversion_keeps_everything(group) -> None:
    """B10: the process group, too."""
    norm = nn.BatchNorm1d(3, eps=0.1, momentum=None)
    norm.weight.requires_grad_(False)
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(norm), nn.LayerNorm(3)).eval()
    assert SyncBatchNorm.convert_sync_batchnorm(model, group) is model
    new = model[1][0]
    assert isinstance(new, SyncBatchNorm)
    assert new.weight is norm.weight
    assert new.bias is norm.bias
    assert new.running_mean is norm.running_mean
    assert (new.eps, new.momentum, new.training, new.process_group) == (0.1, None, False, group)
    assert SyncBatchNorm.convert_sync_batchnorm(model)[1][0] is new


@pytest.mark.mpi(ranks=[2])
def test_in_eval_mode_nothing_is_communicated(group) -> None:
    """Also without running statistics: one rank may evaluate alone, and then sees its own batch."""
    norm = SyncBatchNorm(3, track_running_stats=False).eval()
    if group.rank == 0:
        inputs = engine.arange(12.0).reshape(4, 3)
        assert norm(inputs).tolist() == nn.BatchNorm1d(3, track_running_stats=False).eval()(inputs).tolist()
    group.exchange(None)


@RANKS
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2, 2), (2, 3, 0)])
def test_without_any_value_on_any_rank(group, shape) -> None:
    norm = SyncBatchNorm(3)
    norm(12.0 * engine.arange(6.0).reshape(2, 3))
    before = [buffer.tolist() for name, buffer in norm.named_buffers() if name.startswith("running")]
    inputs = engine.zeros(shape, requires_grad=True)
    outputs = norm(inputs)
    assert outputs.shape == shape
    outputs.sum().backward()
    assert inputs.grad.shape == shape
    assert norm.weight.grad.tolist() == norm.bias.grad.tolist() == [0.0] * 3
    assert [buffer.tolist() for name, buffer in norm.named_buffers() if name.startswith("running")] == before


@pytest.mark.mpi(ranks=[2])
def test_errors(group) -> None:
    norm = SyncBatchNorm(3)
    with pytest.raises(ValueError, match="expected at least 2D input"):
        norm(engine.ones(3))
    with pytest.raises(ValueError, match="expected 3 channels, got 4"):
        norm(engine.ones(2, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        norm(engine.ones(1 - group.rank, 3))
    inputs = engine.randn(2, 3).requires_grad_()
    with pytest.warns(UserWarning, match="create_graph"):
        norm(inputs).square().sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        inputs.grad.sum().backward()


def test_without_a_process_group_it_is_batch_norm() -> None:
    engine.manual_seed(0)
    inputs = engine.randn(5, 3)
    assert SyncBatchNorm(3)(inputs).tolist() == nn.BatchNorm1d(3)(inputs).tolist()
