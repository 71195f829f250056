"""Collectives, messages and SyncBatchNorm with tensors on GPUs: the results are those of host memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel, SyncBatchNorm
from ddp.training.zero import ZeroRedundancyOptimizer
from engine.optim import SGD, AdamW
from tests import cuda_device


@pytest.fixture
def start(cuda: engine.device) -> Iterator[Callable[..., Any]]:
    begun = []

    def begin(name: str | None = None) -> Any:
        ddp.init_process_group(transport=name)
        begun.append(True)
        return ddp.groups.group.resolve(None), cuda

    yield begin
    if begun:
        ddp.destroy_process_group()


def numbers(rank: int, *shape: int) -> engine.Tensor:
    return engine.from_numpy(np.random.default_rng(rank).integers(-8, 9, shape).astype(np.float32))


def layouts(tensor: engine.Tensor) -> list[engine.Tensor]:
    """The tensor in several memory layouts: row-major, transposed, with gaps."""
    gaps = engine.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], device=tensor.device)[..., ::2]
    gaps.copy_(tensor)
    return [tensor, tensor.T.contiguous().T, gaps]


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_all_reduce_broadcast_and_gathering(start) -> None:
    group, device = start()
    everyone = [numbers(rank, 3, 4).numpy() for rank in range(group.size())]
    for own in layouts(numbers(group.rank, 3, 4).to(device)):
        summed = own.clone()
        ddp.all_reduce(summed)
        assert summed.device is device
        assert np.array_equal(summed.cpu().numpy(), sum(everyone))
        ddp.broadcast(own, src=group.size() - 1)
        assert np.array_equal(own.cpu().numpy(), everyone[-1])
    scalar = engine.tensor(group.rank + 1.0, device=device)
    ddp.all_reduce(scalar, ddp.ReduceOp.MAX)
    assert scalar.item() == group.size()
    mine = numbers(group.rank, 3, 4).to(device)
    parts = [engine.zeros(3, 4, device=device) for _ in everyone]
    ddp.all_gather(parts, mine)
    assert all(np.array_equal(part.cpu().numpy(), one) for part, one in zip(parts, everyone, strict=True))
    whole = engine.zeros(3 * group.size(), 4, device=device)
    ddp.all_gather_into_tensor(whole, mine)
    assert np.array_equal(whole.cpu().numpy(), np.concatenate(everyone))
    share = engine.zeros(3, 4, device=device)
    ddp.reduce_scatter_tensor(share, whole)
    assert np.array_equal(share.cpu().numpy(), everyone[group.rank] * group.size())
    work = ddp.all_reduce(mine, async_op=True)
    work.wait()
    assert np.array_equal(mine.cpu().numpy(), sum(everyone))


@pytest.mark.mpi(ranks=[2, 3])
def test_the_other_collectives(start) -> None:
    group, device = start()
    size, rank = group.size(), group.rank
    everyone = [numbers(other, size, 2).numpy() for other in range(size)]
    own = numbers(rank, size, 2).to(device)
    to = engine.zeros(size, 2, device=device)
    ddp.all_to_all_single(to, own)
    assert np.array_equal(to.cpu().numpy(), np.stack([one[rank] for one in everyone]))
    parts = [engine.zeros(2, device=device) for _ in range(size)]
    ddp.all_to_all(parts, list(own))
    assert np.array_equal(engine.stack(parts).cpu().numpy(), to.cpu().numpy())
    lists = [engine.zeros(size, 2, device=device) for _ in range(size)] if rank == 0 else None
    ddp.gather(own, lists, dst=0)
    if lists is not None:
        assert all(np.array_equal(part.cpu().numpy(), one) for part, one in zip(lists, everyone, strict=True))
    got = engine.zeros(2, device=device)
    ddp.scatter(got, list(own) if rank == 0 else None, src=0)
    assert np.array_equal(got.cpu().numpy(), everyone[0][rank])
    reduced = own.clone()
    ddp.reduce(reduced, dst=0)
    assert np.array_equal(reduced.cpu().numpy(), sum(everyone) if rank == 0 else everyone[rank])
    half = own.to(engine.bfloat16)
    ddp.all_reduce(half)
    assert np.array_equal(half.float().cpu().numpy(), sum(everyone))
    seen = own.clone().requires_grad_()
    ddp.nn.functional.all_reduce(seen).sum().backward()
    assert seen.grad.device is device
    assert set(seen.grad.cpu().numpy().reshape(-1).tolist()) == {size}
    ddp.barrier(device_ids=[0])


@pytest.mark.mpi(ranks=[2, 3])
def test_messages_and_objects(start) -> None:
    group, device = start()
    after, before = (group.rank + 1) % group.size(), (group.rank - 1) % group.size()
    got = engine.zeros(5, device=device)
    sending = ddp.isend(engine.full((5,), float(group.rank), device=device), after)
    ddp.recv(got, before)
    sending.wait()
    assert got.cpu().numpy().tolist() == [before] * 5
    objects = [{"weights": engine.full((2,), 7.0, device=device)} if group.rank == 0 else None]
    ddp.broadcast_object_list(objects, src=0)
    assert objects[0]["weights"].device is device
    assert objects[0]["weights"].cpu().numpy().tolist() == [7, 7]


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("name", [None, "staged"])
def test_sync_batch_norm(start, name: str | None) -> None:
    group, device = start(name if engine.cuda.is_available() else None)
    whole = engine.from_numpy(np.random.default_rng(0).standard_normal((12, 4, 3)))
    part = slice(group.rank, None, group.size())
    results = []
    for where in ("cpu", device):
        norm = SyncBatchNorm(4, dtype=engine.float64).to(where)
        x = whole[part].clone().to(where).requires_grad_()
        for _ in range(2):
            out = norm(x)
        (out * out * out).sum().backward()
        results.append([t.detach().cpu().numpy() for t in (out, x.grad, norm.weight.grad, norm.running_var)])
    for expected, found in zip(*results, strict=True):
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.mpi(ranks=[2])
def test_no_host_waits_in_sync_batch_norm(start) -> None:
    if not cuda_device.ours():
        pytest.skip("only the CPU driver counts synchronisations")
    _, device = start()
    norm = SyncBatchNorm(4).to(device)
    x = numbers(1, 6, 4).to(device).requires_grad_()
    norm(x).sum().backward()
    with cuda_device.counters() as count:
        norm(x).sum().backward()
    assert count.synchronizations == 0, count.waits


@pytest.mark.mpi(ranks=[2])
def test_sharded_optimizer_states(start) -> None:
    group, device = start()
    results = []
    for where in ("cpu", device):
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        with engine.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(numbers(number, *parameter.shape) / 8)
        net = DistributedDataParallel(model.to(where))
        optimizer = ZeroRedundancyOptimizer(net.parameters(), AdamW, lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            net(numbers(step + group.rank, 3, 4).to(where)).square().sum().backward()
            optimizer.step()
        results.append([p.detach().cpu().numpy() for p in net.parameters()])
    for expected, found in zip(*results, strict=True):
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.mpi(ranks=[2])
def test_uneven_inputs_and_checkpoints(start, shared_tmp_path) -> None:
    group, device = start()
    net = DistributedDataParallel(nn.Linear(4, 2).to(device))
    optimizer = SGD(net.parameters(), lr=0.1)
    with net.join():
        for step in range(2 + group.rank):
            optimizer.zero_grad()
            net(numbers(step, 3, 4).to(device)).sum().backward()
            optimizer.step()
    own = [p.detach().cpu().numpy().tobytes() for p in net.parameters()]
    assert all(other == own for other in group.exchange(own))
    if group.rank == 0:
        engine.save(net.module.state_dict(), shared_tmp_path / "state")
    ddp.barrier()
    again = nn.Linear(4, 2).to(device)
    again.load_state_dict(engine.load(shared_tmp_path / "state", map_location=device))
    assert [p.detach().cpu().numpy().tobytes() for p in again.parameters()] == own


@pytest.mark.mpi(ranks=[2])
def test_a_hook_that_computes_in_host_memory_says_so(start) -> None:
    _, device = start()
    net = DistributedDataParallel(nn.Linear(4, 4).to(device))
    net.register_comm_hook(ddp.hooks.TopKState(ratio=0.5), ddp.hooks.topk_hook)
    loss = net(numbers(0, 3, 4).to(device)).sum()
    with pytest.raises(NotImplementedError, match="topk_hook computes in host memory, but the gradients are on cuda:0"):
        loss.backward()


COMPRESSION: dict[str, tuple[Callable[[], Any], Any]] = {
    "rank 1": (lambda: ddp.hooks.PowerSGDState(None, 1, start_powerSGD_iter=2), ddp.hooks.powerSGD_hook),
    "rank 3": (lambda: ddp.hooks.PowerSGDState(None, 3, start_powerSGD_iter=2), ddp.hooks.powerSGD_hook),
    "batched": (lambda: ddp.hooks.PowerSGDState(None, 2, start_powerSGD_iter=2), ddp.hooks.batched_powerSGD_hook),
    "8 bits": (lambda: None, ddp.hooks.quantization_perchannel_hook),
}


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("kind", COMPRESSION)
def test_compression_on_a_gpu_is_that_of_the_host(start, kind: str) -> None:
    group, device = start("cuda_ipc")
    make, hook = COMPRESSION[kind]
    results = []
    for where in ("cpu", device):
        model = nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 8)).to(where)
        with engine.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(numbers(number, *parameter.shape) / 8)
        net = DistributedDataParallel(model)
        net.register_comm_hook(make(), hook)
        for step in range(4):
            net.zero_grad()
            net((numbers(10 * step + group.rank, 6, 12) / 8).to(where)).square().sum().backward()
        results.append([p.grad.cpu().numpy() for p in model.parameters()])
    for expected, found in zip(*results, strict=True):
        assert np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.mpi(ranks=[2])
def test_local_sgd(start) -> None:
    """Gradients averaged by the hook at first and in the subgroup later, parameters by the averager."""
    group, device = start()
    results = []
    for where in ("cpu", device):
        model = nn.Linear(4, 2).to(where)
        with engine.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(numbers(number, *parameter.shape))
        net = DistributedDataParallel(model)
        net.register_comm_hook(ddp.hooks.PostLocalSGDState(None, None, 1), ddp.hooks.post_localSGD_hook)
        for step in range(2):
            net.zero_grad()
            net(numbers(step + group.rank, 3, 4).to(where)).sum().backward()
        with engine.no_grad():
            model.weight.add_(group.rank)
        ddp.training.local_sgd.average_parameters(model.parameters())
        results.append([t.detach().cpu().numpy() for p in model.parameters() for t in (p, p.grad)])
    for expected, found in zip(*results, strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
def test_the_optimizer_steps_in_backward(start, name: str) -> None:
    group, device = start(name)
    results = []
    for where in ("cpu", device):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(where)
        with engine.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(numbers(number, *parameter.shape) / 4)
        net = DistributedDataParallel(model, bucket_cap_mb=0.00002)
        optimizer = SGD(net.parameters(), lr=0.25)
        ddp.step_in_backward(optimizer, net)
        for step in range(3):
            optimizer.zero_grad()
            net((numbers(step + group.rank, 3, 4) / 4).to(where)).sum().backward()
        results.append([p.detach().cpu().numpy() for p in model.parameters()])
    for expected, found in zip(*results, strict=True):
        assert np.allclose(found, expected, rtol=1e-6)
