"""verify_replicas: models that are no longer the same are found, by tensor and rank."""

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel, verify_replicas
from ddp.training.divergence import differences


def model() -> nn.Module:
    engine.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 3, 3).to(memory_format=engine.channels_last), nn.BatchNorm2d(3), nn.Linear(4, 4))


def test_the_minority_is_named() -> None:
    assert differences([{"a": 1, "b": 2}] * 3) == []
    assert differences([{"a": 1}, {"a": 1}, {"a": 2}]) == ["a on rank 2"]
    assert differences([{"a": 3}, {"a": 1}, {"a": 1}]) == ["a on rank 0"]
    assert differences([{"a": 1}, {"a": 2}]) == ["a on rank 1"]
    assert differences([{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]) == ["b on rank 0"]
    assert differences([{"a": 1}, {"a": 2}, {"a": 3}]) == ["a on ranks 1, 2"]


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("wrapped", [True, False])
def test_equal_replicas_pass(group, wrapped) -> None:
    net = DistributedDataParallel(model()) if wrapped else model()
    verify_replicas(net, buffers=True)


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("wrapped", [True, False])
def test_one_bit_on_one_rank_is_told_on_all(group, wrapped) -> None:
    net = DistributedDataParallel(model()) if wrapped else model()
    inner = net.module if wrapped else net
    if group.rank == group.size() - 1:
        with engine.no_grad():
            weight = inner[0].weight
            weight[1, 0, 2, 1] = engine.nextafter(weight[1, 0, 2, 1], engine.tensor(9.0))
    with pytest.raises(RuntimeError, match=rf"different models: 0\.weight on rank {group.size() - 1}\. Every rank"):
        verify_replicas(net)


@pytest.mark.mpi(ranks=[2])
def test_what_may_differ(group) -> None:
    """Buffers unless asked for; what is ignored."""
    net = model()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["2.bias"])
    net = DistributedDataParallel(net)
    with engine.no_grad():
        net.module[2].bias.fill_(group.rank)
        net.module[1].running_mean.fill_(group.rank)
    verify_replicas(net)
    with pytest.raises(RuntimeError, match=r"1\.running_mean on rank 1"):
        verify_replicas(net, buffers=True)
