"""Numerics, construction and buffers: rows D and B of the checklist that no other test of this folder names.

D4 and D11 (CUDA devices and streams) are in tests/ddp/cuda. There are no sharded and no sparse tensors: D16 and D24 say
what there is instead.
"""

import copy
import io
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel, Future, SyncBatchNorm
from ddp.gradients.plan import DEFAULT_CAP_BYTES, FIRST_CAP_BYTES
from ddp.gradients.reducer import Reducer
from ddp.hooks import allreduce_hook
from ddp.training.buffers import _BufferCommHookLocation
from ddp.transport.loopback import LoopbackTransport
from engine.optim import SGD
from tests.ddp.models import TASKS, Weights, batch, build, gradients, loss_of, mean

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own

Pair = namedtuple("Pair", "left right")


@dataclass
class Both:
    left: Any
    right: Any


def share(group: ddp.ProcessGroup, step: int) -> tuple[engine.Tensor, engine.Tensor]:
    inputs, targets = batch(TASKS["mlp"], engine.float64, step)
    mine = slice(group.rank, None, group.size())
    return inputs[mine], targets[mine]


# --- construction -----------------------------------------------------------------------------------------------------


@RANKS
def test_d16_an_ignored_parameter_may_be_of_any_kind(group) -> None:
    """D16: one without memory, which nobody could average, is refused by name unless it is ignored."""

    def model() -> nn.Module:
        made = Weights("a")
        made.foreign = nn.Parameter(engine.empty(3, device="meta"))
        return made

    with pytest.raises((ValueError, RuntimeError), match="foreign"):
        DistributedDataParallel(model())
    kept = model()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(kept, ["foreign"])
    net = DistributedDataParallel(kept)
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "foreign": None}


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hook"])
def test_d24_h05_h06_gradients_of_embeddings_are_dense(group, as_view, hooked) -> None:
    """D24, H5, H6: sparse ones are refused in backward; rows that no rank used are zeros."""
    net = DistributedDataParallel(nn.Embedding(8, 2, sparse=True), gradient_as_bucket_view=as_view)
    with pytest.raises(RuntimeError, match=r"DistributedDataParallel: the gradient of .*is sparse.*sparse=False"):
        net(engine.tensor([1])).sum().backward()
    net = DistributedDataParallel(nn.Embedding(8, 2), gradient_as_bucket_view=as_view)
    if hooked:
        net.register_comm_hook(None, allreduce_hook)
    for _ in range(2):
        net.zero_grad()
        (12 * net(engine.tensor([group.rank, group.rank, 7]))).sum().backward()
        rows = [24 / group.size()] * group.size() + [0.0] * (7 - group.size()) + [12.0]
        assert net.module.weight.grad.tolist() == [[row, row] for row in rows]


@RANKS
def test_d30_what_is_wrong_on_one_rank_is_raised_on_all(group) -> None:
    """D30: there is no logger for errors; the rank that has the problem is named on every rank."""
    model = Weights("a")
    model.a.requires_grad_(group.rank != 1)
    with pytest.raises(RuntimeError, match=r"doesn't have any parameter|rank 1 says: .*doesn't have any parameter"):
        DistributedDataParallel(model)


@RANKS
def test_d05_logged_as_one_device(group) -> None:
    """D5: there are no multi-device modules."""
    assert DistributedDataParallel(Weights("a"))._get_ddp_logging_data()["is_multi_device_module"] == 0


@RANKS
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_d07_layers_without_output_features(group) -> None:
    """D7: parameters of 0 elements."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 0)))
    (net(engine.ones(1, 2)).sum() + net.module[0](engine.ones(1, 2)).sum()).backward()
    assert [tuple(p.grad.shape) for p in net.parameters()] == [(3, 2), (3,), (0, 3), (0,)]


@RANKS
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_d08_a_copy_made_in_the_middle_goes_on_in_parity(group, way) -> None:
    """D8: after each of five steps the parameters are those of the wrapper that was not copied."""
    model = build(TASKS["mlp"], engine.float64)
    nets = [DistributedDataParallel(copy.deepcopy(model)) for _ in range(2)]
    for step in range(5):
        if step == 3 and way == "deepcopy":
            nets[1] = copy.deepcopy(nets[1])
        elif step == 3:
            file = io.BytesIO()
            engine.save(nets[1], file)
            file.seek(0)
            nets[1] = engine.load(file, weights_only=False)
        for net in nets:
            net.zero_grad()
            loss_of(net, *share(group, step)).backward()
            with engine.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
        assert [p.tolist() for p in nets[0].parameters()] == [p.tolist() for p in nets[1].parameters()]
    assert list(nets[0].state_dict()) == list(nets[1].state_dict())


@RANKS
def test_d09_outputs_keep_their_memory_format(group) -> None:
    """D9."""
    net = DistributedDataParallel(nn.Conv2d(3, 4, 1).to(memory_format=engine.channels_last))
    out = net(engine.ones(2, 3, 4, 5).to(memory_format=engine.channels_last))
    assert out.is_contiguous(memory_format=engine.channels_last)


@RANKS
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("find_unused", [True, False])
@pytest.mark.parametrize("broadcast", [True, False])
def test_d15_ignored_parameters_and_buffers(group, static, find_unused, broadcast) -> None:
    """D15: they may have another shape on each rank and stay local; the others are averaged."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Weights("a", "own")
            self.inner.own = nn.Parameter(engine.zeros(group.rank + 1))
            self.register_buffer("private", engine.full((group.rank + 1,), float(group.rank)))
            self.register_buffer("common", engine.full((2,), float(group.rank)))

        def forward(self) -> engine.Tensor:
            return (self.inner.a * 12 * group.rank).sum() + (self.inner.own * group.rank).sum()

    model = Model()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["inner.own", "private"])
    net = DistributedDataParallel(
        model, static_graph=static, find_unused_parameters=find_unused, forward_sync_buffers=broadcast
    )
    for _ in range(2):
        net.zero_grad()
        net().backward()
        assert gradients(model.inner) == {"a": mean(group, lambda r: 12 * r), "own": group.rank}
    assert model.private.tolist() == [group.rank] * (group.rank + 1)
    assert model.common.tolist() == [0, 0]


@RANKS
@pytest.mark.parametrize("kind", [Pair, Both])
def test_d17_containers_keep_their_types(group, kind) -> None:
    """D17: as inputs, keywords and outputs (nothing is moved: the module is where its data is)."""

    class Echo(Weights):
        def forward(self, first: Any, *, second: Any) -> Any:
            assert type(first) is type(second) is kind
            return kind(self.a * first.left, second)

    net = DistributedDataParallel(Echo("a"))
    given = kind(engine.full((3,), 12.0 * group.rank), [1])
    out = net(given, second=given)
    assert type(out) is kind
    assert out.right is given
    out.left.sum().backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


# --- buckets ----------------------------------------------------------------------------------------------------------


@RANKS
def test_d18_d20_a_list_of_caps(group) -> None:
    """D18, D20: the limits in bytes, the same numbers; it wins over one cap, and an empty one is none."""
    plain, net = (
        DistributedDataParallel(build(TASKS["mlp"], engine.float64), **options)
        for options in ({}, {"bucket_cap_mb_list": [0.001, 0.002], "bucket_cap_mb": 25})
    )
    assert net.bucket_limits() == [1048, 2097]
    assert len(net.reducer.buckets.sizes()) > 1
    for each in (plain, net):
        loss_of(each, *share(group, 0)).backward()
    assert [p.grad.tolist() for p in plain.parameters()] == [p.grad.tolist() for p in net.parameters()]
    assert DistributedDataParallel(Weights("a"), bucket_cap_mb=3, bucket_cap_mb_list=[]).bucket_limits() == [3 << 20]
    with pytest.raises(ValueError, match="expected a positive bucket_cap_mb, got -1"):
        DistributedDataParallel(Weights("a"), bucket_cap_mb_list=[1, -1])


@RANKS
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str)
def test_d19_d21_d22_limits(group, options) -> None:
    """D19, D21, D22: 1 and 25 MiB, or the cap given, from the first step on, whatever the options: all ranks start
    buckets in one order, so that no order of use can interleave them wrongly.
    """
    assert DistributedDataParallel(Weights("a"), **options).bucket_limits() == [FIRST_CAP_BYTES, DEFAULT_CAP_BYTES]
    assert (FIRST_CAP_BYTES, DEFAULT_CAP_BYTES) == (1 << 20, 25 << 20)
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS, **options)
    assert net.bucket_limits() == [10]
    before = net._get_ddp_logging_data()["bucket_sizes"]
    assert before.count(",") == 2
    for _ in range(2):
        net.zero_grad()
        net(a=12.0 * group.rank, b=12, c=12).backward()
    assert net._get_ddp_logging_data()["bucket_sizes"] == before


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_parameters_that_are_summed_last(group, as_view) -> None:
    """delay_all_reduce_named_params: a bucket of their own after all others; the numbers are the same."""
    model = Weights(*"abcd")
    delayed = [("a", model.a), ("c", model.c)]
    net = DistributedDataParallel(
        model,
        bucket_cap_mb=TINY_BUCKETS,
        gradient_as_bucket_view=as_view,
        delay_all_reduce_named_params=delayed,
        param_to_hook_all_reduce=model.b,
    )
    order = []
    net.register_comm_hook(None, lambda state, bucket: order.extend(bucket.parameters()) or bucket.average())
    for _ in range(2):
        net.zero_grad()
        net(a=12.0 * group.rank, b=12, c=24.0 * group.rank).backward()
        average = mean(group, lambda r: 12 * r)
        assert gradients(net) == {"a": average, "b": 12, "c": 2 * average, "d": None}
    assert {id(parameter) for parameter in order[2:4]} == {id(model.a), id(model.c)}
    with pytest.raises(ValueError, match="need to be set at the same time"):
        DistributedDataParallel(model, delay_all_reduce_named_params=delayed)
    with pytest.raises(ValueError, match="names no trainable parameter 'z'"):
        DistributedDataParallel(model, delay_all_reduce_named_params=[("z", model.a)], param_to_hook_all_reduce=model.a)


@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_d26_u03_a_reducer_by_itself(as_view) -> None:
    """D26, U3: without a module or MPI; three steps; a layer that is not used keeps None."""
    layers = [nn.Linear(2, 4), nn.Linear(4, 3), nn.Linear(4, 3)]
    named = [(f"{i}.{name}", p) for i, layer in enumerate(layers) for name, p in layer.named_parameters()]
    reducer = Reducer(named, LoopbackTransport(), [64], as_view, find_unused=True)
    optimizer = SGD([parameter for _, parameter in named], lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(layers[1](F.relu(layers[0](engine.ones(5, 2)))), engine.zeros(5, dtype=engine.int64))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert [parameter.grad is None for _, parameter in named] == [False] * 4 + [True] * 2
    assert losses[0] > losses[1] > losses[2]
    assert len(reducer.buckets.sizes()) > 1


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize("dtype", [engine.complex64, engine.complex128], ids=str)
def test_d27_complex_parameters(group, dtype, as_view) -> None:
    """D27: the mean of the local gradients."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(engine.ones(3, dtype=dtype))

        def forward(self, factor: complex) -> engine.Tensor:
            return (self.weight * factor).abs().square().sum()

    net, local = DistributedDataParallel(Model(), gradient_as_bucket_view=as_view), Model()
    net(3 + 4j * (group.rank + 1)).backward()
    local(3 + 4j * (group.rank + 1)).backward()
    everybody = np.stack(group.exchange(local.weight.grad.numpy()))
    assert np.allclose(net.module.weight.grad.numpy(), everybody.sum(0) / group.size(), rtol=1e-6)


@RANKS
def test_d28_what_names_devices_is_refused(group) -> None:
    """D28, and D4 and H15 for a model in host memory: device_ids, a device mesh, mixed precision."""
    for options in ({"device_ids": [0]}, {"device_mesh": object()}, {"mixed_precision": object()}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} given, but"):
            DistributedDataParallel(Weights("a"), **options)


@RANKS
def test_d29_names_of_nested_and_shared_parameters(group) -> None:
    """D29: messages name a parameter by its path, a shared one by its first."""
    model = nn.Sequential(Weights("a"), nn.Sequential(Weights("b"), Weights("c")))
    model[1][1].c = model[0].a
    net = DistributedDataParallel(model)
    with net.no_sync():
        (model[0](a=1) + model[1][0](b=1) + model[1][1](c=1)).backward()
    assert sorted(name for name, _ in net.reducer.buckets.local_gradients()) == ["0.a", "1.0.b"]


@RANKS
def test_d32_a_tied_weight_is_one_tensor(group) -> None:
    """D32: reduced once."""
    net = DistributedDataParallel(build(TASKS["tied"], engine.float32))
    tied = net.module
    assert tied.head.weight is tied.token.weight
    data = net._get_ddp_logging_data()
    assert data["num_parameter_tensors"] == len(list(tied.parameters()))
    assert data["total_parameter_size_bytes"] == sum(p.nbytes for p in tied.parameters())


@RANKS
def test_d33_the_mean_is_plain(group) -> None:
    """D33: batches of 1, 2, ... samples count alike; who scales the loss by world * own / all gets the whole's mean."""
    model = nn.Linear(2, 1, bias=False).double()
    sizes = list(range(1, group.size() + 1))
    rows = np.random.default_rng(0).standard_normal((sum(sizes), 2))
    own = rows[sum(sizes[: group.rank]) : sum(sizes[: group.rank + 1])]
    local = [rows[sum(sizes[:rank]) : sum(sizes[: rank + 1])].mean(0) for rank in range(group.size())]
    net = DistributedDataParallel(model)
    net(engine.from_numpy(own)).mean().backward()
    assert np.allclose(model.weight.grad.numpy()[0], np.mean(local, 0))
    net.zero_grad()
    (net(engine.from_numpy(own)).mean() * (group.size() * len(own) / len(rows))).backward()
    assert np.allclose(model.weight.grad.numpy()[0], rows.mean(0))


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize("dtype", [engine.float32, engine.float16, engine.bfloat16], ids=str)
def test_d35_copies_and_views_have_the_same_bits(group, dtype) -> None:
    """D35: 2000 elements over three ranks (PyTorch multiplies by a reciprocal on one way and divides on the other)."""
    values = np.random.default_rng(group.rank).standard_normal(2000)
    found = []
    for as_view in (True, False):
        for assigned in (False, True):
            model = nn.Linear(2000, 1, bias=False).to(dtype=dtype)
            net = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
            if assigned:  # a gradient that is not in its bucket
                model.weight.grad = engine.zeros(1, 2000, dtype=dtype)
            net(engine.from_numpy(values).to(dtype)[None]).sum().backward()
            found.append(model.weight.grad.numpy().tobytes())
    assert len(set(found)) == 1


# --- buffers ----------------------------------------------------------------------------------------------------------


class Counter(Weights):
    """A buffer that each forward assigns anew."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__("a")
        self.register_buffer("count", engine.full((2,), start))

    def forward(self, step: float = 0.0) -> engine.Tensor:
        self.seen = self.count.tolist()
        self.count = self.count + step
        return (self.a * 12).sum()


@RANKS
def test_b01_a_buffer_assigned_anew_is_still_broadcast(group) -> None:
    """B1."""
    net = DistributedDataParallel(Counter())
    for step in range(3):
        net(float(group.rank + 1)).backward()
        assert net.module.seen == [step] * 2  # rank 0 adds 1


@RANKS
@pytest.mark.parametrize("location", _BufferCommHookLocation)
@pytest.mark.parametrize("futures", [False, True], ids=["blocking", "futures"])
def test_b02_b03_a_hook_in_place_of_the_broadcast(group, location, futures) -> None:
    """B2, B3: of rank 0's buffers, and of their sum, before and after forward."""

    def take_sum(state: list[str], buffers: dict[str, engine.Tensor]) -> Any:
        state += buffers
        works = [ddp.all_reduce(buffer, async_op=True) for buffer in buffers.values()]
        if futures:
            return [work.get_future() for work in works]
        for work in works:
            work.wait()
        return None

    names: list[str] = []
    net = DistributedDataParallel(Counter())
    net._register_buffer_comm_hook(names, take_sum, location)
    net(float(group.rank)).backward()
    total = sum(range(group.size()))
    before = location is _BufferCommHookLocation.PRE_FORWARD
    assert net.module.count.tolist() == [group.rank if before else total] * 2
    assert names == ["count"]
    with engine.no_grad():
        net(0.0)
    assert names == ["count"]
    net._register_buffer_comm_hook(
        None, lambda state, buffers: [ddp.broadcast(b) for b in buffers.values()] and None, location
    )
    net(1.0).backward()
    assert net.module.seen == ([0] * 2 if before else [total] * 2)
    with pytest.raises(TypeError, match="the hook of buffers must be callable"):
        net._register_buffer_comm_hook(None, 5)


@RANKS
def test_b03_a_future_is_waited_for(group) -> None:
    """B3: one future, not in a list."""
    waited = []
    net = DistributedDataParallel(Counter())
    net._register_buffer_comm_hook(None, lambda state, buffers: Future(lambda: waited.append(1)))
    net(1.0).backward()
    assert waited == [1]


@RANKS
def test_b04_without_sync_in_forward_the_start_is_synchronised(group) -> None:
    """B4: and with broadcast_buffers=False it is not, either."""
    for options, at_start in (({"forward_sync_buffers": False}, 5.0), ({"broadcast_buffers": False}, 5.0 + group.rank)):
        net = DistributedDataParallel(Counter(5.0 + group.rank), **options)
        assert net.module.count.tolist() == [at_start] * 2
        for _ in range(2):
            net(float(group.rank)).backward()
        assert net.module.count.tolist() == [at_start + 2 * group.rank] * 2


@RANKS
@pytest.mark.parametrize("sync", [True, False])
def test_b05_the_end_of_join_and_buffers(group, sync) -> None:
    """B5: buffers are taken over at the end only where forward does so."""
    net = DistributedDataParallel(Counter(), forward_sync_buffers=sync)
    with net.join():
        for _ in range(group.rank + 1):
            net(1.0).backward()
    last = group.size()
    assert net.module.count.tolist() == [last if sync else group.rank + 1] * 2


@RANKS
def test_b06_both_names_of_one_flag(group) -> None:
    """B6: the newer one wins; a warning only where they contradict each other (here neither is deprecated)."""
    with pytest.warns(UserWarning, match="forward_sync_buffers=False wins over broadcast_buffers=True"):
        net = DistributedDataParallel(Counter(), broadcast_buffers=True, forward_sync_buffers=False)
    assert not net.broadcast_buffers
    assert DistributedDataParallel(Counter(), broadcast_buffers=True, forward_sync_buffers=True).broadcast_buffers


@RANKS
def test_b12_sync_batch_norm_is_logged(group) -> None:
    """B12."""
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    synced = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    logged = [DistributedDataParallel(each)._get_ddp_logging_data()["has_sync_bn"] for each in (plain, synced)]
    assert logged == [0, 1]


@RANKS
@pytest.mark.parametrize("between", ["no_grad", "no_sync"])
def test_b13_what_came_before_does_not_matter(group, between) -> None:
    """B13: a training forward takes buffers over whatever the forward before it was (PyTorch's does not)."""
    net = DistributedDataParallel(Counter())
    net(1.0).backward()
    if between == "no_grad":
        with engine.no_grad():
            net(float(group.rank))
    else:
        with net.no_sync():
            net(float(group.rank)).backward()
    net(0.0).backward()
    assert net.module.seen == [1.0] * 2
