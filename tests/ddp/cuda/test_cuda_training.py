"""Training on GPUs over several ranks: the numbers are those of the CPU and of one process, and no host waits."""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.gradients.reducer import Reducer
from engine.optim import SGD, AdamW
from engine.optim.cuda import Members
from tests import cuda_device

NAMES = ["cuda_ipc", "staged", "mpi", "nccl"]  # "mpi": staged with that in the middle


@pytest.fixture
def start(cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], Any]]:
    """`group, device = start(transport)`: the world, left at the end of the test, and this rank's GPU."""
    from mpi4py import MPI

    begun = []

    def begin(name: str | None) -> Any:
        device = cuda
        if name == "nccl" and MPI.COMM_WORLD.size > 1:
            if not cuda_device.ours():
                pytest.skip("NCCL wants a GPU for each rank")
            cuda_device.several(monkeypatch, MPI.COMM_WORLD.size)
            device = engine.device("cuda", MPI.COMM_WORLD.rank)
            engine.cuda.set_device(device)
        ddp.init_process_group(transport=None if MPI.COMM_WORLD.size == 1 else name)
        begun.append(True)
        return ddp.groups.group.resolve(None), device

    yield begin
    if begun:
        ddp.destroy_process_group()
    if cuda_device.ours():
        engine.cuda.set_device(0)


class Whole(nn.Module):
    """Layers whose weights, and with whole inputs also gradients, are whole numbers or halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.conv = nn.Conv2d(2, 4, (1, 2)).to(memory_format=engine.channels_last)
        self.last = nn.Linear(12, 3)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        hidden = self.first(x).relu()
        return self.last(self.conv(hidden.reshape(-1, 2, 1, 4)).relu().flatten(1))


def whole_model(seed: int = 0) -> nn.Module:
    rng = np.random.default_rng(seed)
    model = Whole()
    with engine.no_grad():
        for parameter in model.parameters():
            parameter.copy_(engine.from_numpy(rng.integers(-2, 3, tuple(parameter.shape)).astype(np.float32)))
    return model


def whole_batch(step: int) -> engine.Tensor:
    return engine.from_numpy(np.random.default_rng([1, step]).integers(-2, 3, (12, 6)).astype(np.float32))


def gradients(model: nn.Module) -> list[np.ndarray]:
    return [p.grad.detach().cpu().numpy().copy() for p in model.parameters() if p.grad is not None]


def sum_of_outputs(model: nn.Module, x: engine.Tensor) -> engine.Tensor:
    return model(x).sum()


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_gradients_equal_one_process_exactly(start, name: str, as_view: bool) -> None:
    group, device = start(name)
    alone = whole_model()
    net = DistributedDataParallel(
        whole_model(group.rank).to(device), bucket_cap_mb=0.0002, gradient_as_bucket_view=as_view
    )
    used = net.reducer.buckets.all[0].transport
    assert used.name == ("loopback" if group.size() == 1 else "staged" if name == "mpi" else name)
    steps = [SGD(model.parameters(), lr=0.25) for model in (alone, net)]
    for step in range(3):
        share = slice(group.rank, None, group.size())
        for model, x, optimizer in zip(
            (alone, net), (whole_batch(step), whole_batch(step)[share].to(device)), steps, strict=True
        ):
            optimizer.zero_grad()
            sum_of_outputs(model, x).backward()
        for expected, found, parameter in zip(gradients(alone), gradients(net), net.parameters(), strict=True):
            assert np.array_equal(found * np.float32(group.size()), expected)
            assert parameter.grad.device is device
            assert parameter.grad.stride() == parameter.stride()
        for parameter, other in zip(alone.parameters(), net.parameters(), strict=True):
            with engine.no_grad():  # the next step starts from whole numbers again, on both sides
                new = (parameter - parameter.grad).clamp(-2, 2).round()
                parameter.copy_(new)
                other.copy_(new.to(device))
    own = [gradient.tobytes() for gradient in gradients(net)]
    assert all(other == own for other in group.exchange(own))


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize("name", NAMES)
def test_training_has_the_bits_of_the_cpu(start, name: str) -> None:
    """The same model on host memory beside it, in the same group: sums have the same bits, whatever sums them."""
    group, device = start(name)
    host = DistributedDataParallel(whole_model(), bucket_cap_mb=0.0002)
    net = DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002)
    rng = np.random.default_rng(group.rank)
    for _ in range(3):
        for parameter, other in zip(host.parameters(), net.parameters(), strict=True):
            noise = engine.from_numpy(rng.standard_normal(tuple(parameter.shape)).astype(np.float32))
            parameter.grad = engine.empty_like(parameter).copy_(noise).detach()
            other.grad = parameter.grad.to(device)
        for model, x in ((host, whole_batch(0)[:0]), (net, whole_batch(0)[:0].to(device))):
            sum_of_outputs(model, x).backward()  # an empty batch adds zeros
        for expected, found in zip(gradients(host), gradients(net), strict=True):
            assert found.tobytes() == expected.tobytes()


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_no_host_waits_in_a_step(start, name: str) -> None:
    if not cuda_device.ours():
        pytest.skip("only the CPU driver counts synchronisations")
    group, device = start(name)
    net = DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002)
    optimizer = SGD(net.parameters(), lr=0.25)
    x = whole_batch(0)[group.rank :: group.size()].to(device)

    def step() -> None:
        optimizer.zero_grad()
        sum_of_outputs(net, x).backward()
        optimizer.step()

    for _ in range(3):
        step()
    with cuda_device.counters() as count:
        step()
    assert (count.synchronizations, count.pageable, count.raw_allocations) == (0, 0, 0), count.waits
    buckets = len(net.reducer.buckets.sizes())
    assert buckets > 1
    staged = group.size() > 1 and name in ("staged", "mpi")
    assert count.pinned == (2 * buckets if staged else 0)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
def test_gradients_of_other_streams(start, name: str) -> None:
    """D11: forward on a stream of its own: backward runs there, and the caller's stream is ordered behind the mean."""
    group, device = start(name)
    net = DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002)
    alone = whole_model()
    side = engine.cuda.Stream()
    for step in range(3):
        x = whole_batch(step)[group.rank :: group.size()].to(device)
        side.wait_stream(engine.cuda.current_stream())
        with engine.cuda.stream(side):
            x.record_stream(side)
            loss = sum_of_outputs(net, x)
        loss.backward()
        found = gradients(net)  # on the current stream
        alone.zero_grad()
        sum_of_outputs(alone, whole_batch(step)).backward()
        for expected, got in zip(gradients(alone), found, strict=True):
            assert np.array_equal(got * np.float32(group.size()), expected)
        net.zero_grad()
        engine.cuda.synchronize()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged", "nccl"])
def test_unused_parameters_no_sync_and_weights(start, name: str) -> None:
    group, device = start(name)
    results = []
    for where in (engine.device("cpu"), device):
        layers = nn.ModuleList([whole_model(), nn.Linear(3, 3), nn.Linear(2, 2)])
        with engine.no_grad():
            for parameter in layers[1].parameters():
                parameter.fill_(2)
        net = DistributedDataParallel(layers.to(where), bucket_cap_mb=0.0002)

        def loss(part: slice, net: Any = net, where: Any = where) -> engine.Tensor:
            out = net.module[0](whole_batch(0)[part].to(where))
            if group.rank == 0:  # the second one is used on one rank, the third on none
                out = net.module[1](out)
            return out.sum()

        net.forward = lambda part, loss=loss: loss(part)
        with net.no_sync():
            net(slice(group.rank, group.rank + 1)).backward()
        net.set_gradient_weight(group.rank + 1.0)
        net(slice(group.rank + 4, group.rank + 6)).backward()
        assert net.module[2].weight.grad is None
        assert net.module[1].weight.grad is not None
        results.append(gradients(net))
    for expected, found in zip(*results, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}], ids=str)
def test_options(start, name: str, options: dict[str, Any]) -> None:
    group, device = start(name)
    alone = whole_model()
    net = DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002, **options)
    for step in range(3):
        alone.zero_grad()
        net.zero_grad()
        sum_of_outputs(alone, whole_batch(step)).backward()
        sum_of_outputs(net, whole_batch(step)[group.rank :: 2].to(device)).backward()
        for expected, found in zip(gradients(alone), gradients(net), strict=True):
            assert np.array_equal(found * np.float32(2), expected)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "noop_hook"])
def test_communication_hooks(start, name: str, hook: str) -> None:
    """Small whole numbers are exact in half precision."""
    group, device = start(name)
    results = []
    for where in (engine.device("cpu"), device):
        net = DistributedDataParallel(whole_model().to(where), bucket_cap_mb=0.0002)
        net.register_comm_hook(None, getattr(ddp.hooks, hook))
        for step in range(2):
            net.zero_grad()
            sum_of_outputs(net, whole_batch(step)[group.rank :: 2].to(where)).backward()
        results.append(gradients(net))
    for expected, found in zip(*results, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("hook", ["quantization_perchannel_hook", "quantization_pertensor_hook"])
def test_eight_bits_have_the_bits_of_the_cpu(start, hook: str) -> None:
    group, device = start("staged")
    results = []
    for where in (engine.device("cpu"), device):
        net = DistributedDataParallel(whole_model().to(where), bucket_cap_mb=0.0002)
        net.register_comm_hook(None, getattr(ddp.hooks, hook))
        sum_of_outputs(net, whole_batch(0)[group.rank :: 2].to(where)).backward()
        results.append(gradients(net))
    for expected, found in zip(*results, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.mpi(ranks=[2])
def test_a_users_hook_runs_on_device_tensors(start) -> None:
    group, device = start("cuda_ipc")
    net = DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002)

    def clipped(state: Any, bucket: Any) -> Any:
        assert bucket.buffer().device is device
        bucket.buffer().clamp_(-1, 1)
        return bucket.average()

    net.register_comm_hook(None, clipped)
    sum_of_outputs(net, whole_batch(0)[group.rank :: 2].to(device)).backward()
    local = whole_model()
    sum_of_outputs(local, whole_batch(0)[group.rank :: 2]).backward()
    everyones = group.exchange([np.clip(gradient, -1, 1) for gradient in gradients(local)])
    for found, *ranks in zip(gradients(net), *everyones, strict=True):
        assert np.array_equal(found, sum(ranks) / np.float32(2))


@pytest.mark.mpi(ranks=[2])
def test_parameters_in_host_memory_and_on_a_gpu(start) -> None:
    """Buckets are by device, and each has the transport of its memory."""
    group, device = start(None)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(6, 6)  # stays on the host
            self.body = whole_model().to(device)
            with engine.no_grad():
                for parameter in self.embedding.parameters():
                    parameter.copy_(engine.ones_like(parameter))

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            return self.body(self.embedding(x).to(device))

    net = DistributedDataParallel(Mixed(), bucket_cap_mb=0.0002)
    assert {bucket.transport.name for bucket in net.reducer.buckets.all} == {"shared", "cuda_ipc"}
    assert ddp.groups.group.describe()["on_devices"] == {"cuda:0": "cuda_ipc"}
    alone = copy.deepcopy(Mixed())
    for step in range(3):
        for model in (alone, net):
            model.zero_grad()
        sum_of_outputs(alone, whole_batch(step)).backward()
        sum_of_outputs(net, whole_batch(step)[group.rank :: 2]).backward()
        for expected, found in zip(gradients(alone), gradients(net), strict=True):
            assert np.array_equal(found * np.float32(2), expected)


@pytest.mark.mpi(ranks=[2])
def test_gradients_of_two_threads_take_turns(start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of the GPU and the thread that called backward: a Reducer and MPI know one at a time."""
    _, device = start(None)

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there, self.here = nn.Linear(3, 1, device=device), nn.Linear(3, 1)

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            return self.there(x.to(device)).sum() + self.here(x).sum().to(device)

    net = DistributedDataParallel(Apart(), bucket_cap_mb=1e-6)
    inside: list[str] = []
    most: list[int] = []
    begun = Reducer.start_full_buckets

    def slowly(reducer: Reducer) -> None:
        inside.append(threading.current_thread().name)
        most.append(len(set(inside)))
        time.sleep(0.05)
        begun(reducer)
        inside.remove(threading.current_thread().name)

    monkeypatch.setattr(Reducer, "start_full_buckets", slowly)
    net(engine.ones(2, 3)).backward()
    assert most
    assert max(most) == 1


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
def test_buffers_become_those_of_the_first_rank(start, name: str) -> None:
    group, device = start(name)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).to(device)
    with engine.no_grad():
        model[1].running_mean.fill_(group.rank + 5)
        model[1].num_batches_tracked.fill_(group.rank + 7)
    net = DistributedDataParallel(model)
    assert set(model[1].running_mean.cpu().numpy().tolist()) == {5}
    assert int(model[1].num_batches_tracked.cpu()) == 7
    with engine.no_grad():
        model[1].running_var.fill_(group.rank + 2)
    net(whole_batch(0).to(device)).sum().backward()
    assert len(set(group.exchange(model[1].running_var.cpu().numpy().tobytes()))) == 1
    if cuda_device.ours():
        x = whole_batch(0).to(device)
        with cuda_device.counters() as count:
            net(x)
        assert count.synchronizations == 0, count.waits


@pytest.mark.mpi(ranks=[1, 2])
def test_device_ids(start) -> None:
    """D4: numbers and devices alike."""
    _, device = start(None)
    net = DistributedDataParallel(nn.Linear(6, 2).to(device), device_ids=[0], output_device=0)
    assert net.device_ids == [device]
    assert DistributedDataParallel(nn.Linear(6, 2).to(device), device_ids=[device]).device_ids == [device]
    assert net(whole_batch(0)).device is device  # inputs are moved
    x = {"input": whole_batch(0)}
    assert net(**x).device is device
    assert DistributedDataParallel(nn.Linear(2, 2).to(device)).device_ids is None
    for given, message in (
        ({"device_ids": [0, 1]}, "device_ids can only be None or contain a single element"),
        ({"device_ids": [1]}, "device_ids names cuda:1, but the module is on cuda:0"),
        ({"output_device": "cuda:1"}, "output_device names cuda:1, but the module is on cuda:0"),
    ):
        with pytest.raises(ValueError, match=message):
            DistributedDataParallel(nn.Linear(2, 2).to(device), **given)
    with pytest.raises(ValueError, match="device_ids and output_device have no meaning here"):
        DistributedDataParallel(nn.Linear(2, 2), device_ids=[0])


@pytest.mark.mpi(ranks=[1, 2])
def test_a_rank_trains_on_one_gpu(start) -> None:
    start(None)
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    model = nn.ModuleList([nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2).to("cuda:1")])
    with pytest.raises(
        ValueError, match=r"a rank trains on one GPU, but parameter 0.weight is on cuda:0 and parameter"
    ):
        DistributedDataParallel(model)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged"])
def test_a_captured_step_has_the_bits_of_an_eager_one(start, name: str) -> None:
    """CUDA graphs between the sums of buckets."""
    group, device = start(name)
    nets = [DistributedDataParallel(whole_model().to(device), bucket_cap_mb=0.0002) for _ in range(2)]

    def make_step(net: nn.Module) -> Callable[[engine.Tensor], engine.Tensor]:
        optimizer = SGD(net.parameters(), lr=2**-6)

        def step(x: engine.Tensor) -> engine.Tensor:
            optimizer.zero_grad()
            loss = sum_of_outputs(net, x)
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, captured = make_step(nets[0]), engine.compile(make_step(nets[1]))
    for step in range(6):
        x = whole_batch(step)[group.rank :: group.size()].to(device)
        with cuda_device.counters() as count:
            found = captured(x)
        assert found.item() == eager(x).item()
    if cuda_device.ours():
        assert count.graph_launches > 0
        assert count.synchronizations == 0, count.waits
    for parameter, other in zip(*(net.parameters() for net in nets), strict=True):
        assert np.array_equal(parameter.detach().cpu().numpy(), other.detach().cpu().numpy())


@pytest.mark.mpi(ranks=[1, 2])
def test_gradients_in_buckets_are_looked_at_as_long_as_they_move(
    start: Callable[[str | None], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the same tensors in each step, though `zero_grad` drops them."""
    _, device = start("staged")
    looks = []
    look = Members.point_at
    monkeypatch.setattr(Members, "point_at", lambda self, addresses: (looks.append(addresses), look(self, addresses)))
    net = DistributedDataParallel(whole_model().to(device))
    optimizer = AdamW(net.parameters(), lr=0.1)
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        net(engine.ones(3, 6, device=device)).sum().backward()
        looks.clear()
        optimizer.step()
        found.append(bool(looks))
    assert found == [True, True, False, False, False, False]  # the first remembers the first gradient, the second all
