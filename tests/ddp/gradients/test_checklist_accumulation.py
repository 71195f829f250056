"""Accumulation, views, static graphs, checkpoints, hooks, join: rows A and H that no other test of this folder names.

H5 and H6 (sparse gradients) are in test_checklist_ddp.py.
"""

import copy
from collections import namedtuple
from functools import partial
from typing import Any

import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel, Future, SyncBatchNorm
from ddp.hooks import PowerSGDState, allreduce_hook, powerSGD_hook
from ddp.transport.counting import CountingTransport
from engine.amp import GradScaler
from engine.func import functional_call
from engine.optim import SGD
from engine.utils.checkpoint import checkpoint
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])
VIEWS = pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
REENTRANT = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own

Pair = namedtuple("Pair", "left right")


def then_hook(state: Any, bucket: ddp.GradBucket) -> Future[engine.Tensor]:
    """The mean, by a sum and a division afterwards."""
    work = ddp.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0].div_(ddp.get_world_size()))


# --- accumulation -----------------------------------------------------------------------------------------------------


@RANKS
@VIEWS
@pytest.mark.parametrize("hook", [None, allreduce_hook, then_hook], ids=["plain", "allreduce", "then"])
def test_a01_a02_every_second_step_is_synchronised(group, as_view, hook) -> None:
    """A1, A2: gradients are never zeroed; after odd steps they are those of one process with all samples."""
    net = DistributedDataParallel(Weights("a", "b"), gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS)
    if hook is not None:
        net.register_comm_hook(None, hook)
    with net.no_sync(), engine.no_grad():
        net(a=1)
    total = own = 0.0
    for step in range(6):
        value = 12.0 * ((group.rank + step) % group.size())
        total += mean(group, lambda r, step=step: 12 * ((r + step) % group.size()))
        own += value
        if step % 2 == 0:
            with net.no_sync():
                net(a=value, b=12).backward()
            assert gradients(net)["a"] == own
        else:
            net(a=value, b=12).backward()
            assert gradients(net) == {"a": total, "b": 12 * (step + 1)}
            own = total


@RANKS
def test_a03_a04_sync_batch_norm_talks_in_training_only(group, monkeypatch) -> None:
    """A3, A4: in eval mode one rank alone runs a SyncBatchNorm, in a wrapper if that shares no buffers."""
    from ddp.training import sync_batch_norm

    gathers = []
    original = sync_batch_norm._gather
    monkeypatch.setattr(sync_batch_norm, "_gather", lambda *args: gathers.append(1) or original(*args))
    model = SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    net = DistributedDataParallel(model, broadcast_buffers=False)
    net(engine.randn(4, 2)).sum().backward()
    assert gathers == [1, 1]  # statistics, and their gradients
    net.eval()
    if group.rank == 0:
        for _ in range(6):
            assert net(engine.ones(2, 2)).tolist() == net.module(engine.ones(2, 2)).tolist()
    assert gathers == [1, 1]
    ddp.barrier()


@RANKS
@VIEWS
def test_a23_a24_gradients_are_the_same_objects(group, as_view) -> None:
    """A23, A24: views of one bucket after every backward, whatever zero_grad did, where gradients come as planned."""
    net = DistributedDataParallel(Weights("a", "b"), gradient_as_bucket_view=as_view)
    seen = []
    for set_to_none in (True, False, True, False, True):
        net(a=12.0 * group.rank, b=12).backward()
        seen.append([p.grad for p in net.parameters()])
        if as_view:
            assert len({p.grad.untyped_storage().data_ptr() for p in net.parameters()}) == 1
            assert all(now is first for now, first in zip(seen[-1], seen[0], strict=True))
        net.zero_grad(set_to_none=set_to_none)


@RANKS
@VIEWS
def test_a25_a26_two_forwards_two_backwards_and_no_sync(group, as_view) -> None:
    """A25, A26: every backward outside no_sync is averaged; what counts is where backward runs."""
    net = DistributedDataParallel(Weights("a"), gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS)
    average = mean(group, lambda r: 12 * r)
    first, second = net(a=12.0 * group.rank), net(a=24.0 * group.rank)
    second.backward()
    assert gradients(net) == {"a": 2 * average}
    first.backward(retain_graph=True)
    assert gradients(net) == {"a": 3 * average}
    with net.no_sync():
        first.backward(retain_graph=True)
    assert gradients(net) == {"a": 3 * average + 12 * group.rank}
    first.backward()
    assert gradients(net) == {"a": 5 * average}


@RANKS
def test_a28_h26_what_travels_and_how_long_it_took(group, monkeypatch) -> None:
    """A28, H26: one sum a bucket and synchronised backward, none under no_sync; times are not negative."""
    counting = CountingTransport(group.transport)
    monkeypatch.setattr(group, "_transport", counting)
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS)
    monkeypatch.setattr(net.reducer.buckets, "transport", counting)
    data = net._get_ddp_logging_data()
    assert "backward_comm_time" not in data
    expected = {
        "world_size": group.size(),
        "rank": group.rank,
        "module_name": "Weights",
        "iteration": 0,
        "bucket_sizes": "12, 12",
        "bucket_cap_bytes": 10,
        "num_parameter_tensors": 2,
        "total_parameter_size_bytes": 24,
        "dtypes": "float32",
        "find_unused_parameters": 0,
        "gradient_as_bucket_view": 1,
        "broadcast_buffers": 1,
        "static_graph": 0,
        "comm_hook": "",
    }
    assert {key: data[key] for key in expected} == expected
    with net.no_sync():
        net(a=12, b=12).backward()
    for step in range(3):
        net(a=12, b=12).backward()
        data = net._get_ddp_logging_data()
        assert data["iteration"] == step + 2
        assert 0 <= data["backward_compute_comm_overlap_time"] <= data["backward_comm_time"]
        assert data["backward_compute_time"] >= 0
    overlap = net.overlap()
    assert 0 <= overlap["hidden"] <= 1


# --- static graphs ----------------------------------------------------------------------------------------------------


@RANKS
def test_a06_static_graph_can_be_set_later(group) -> None:
    """A6: before the first backward; it is logged."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS)
    net._set_static_graph()
    assert net._get_ddp_logging_data()["static_graph"] == 1
    for _ in range(2):
        net.zero_grad()
        net(a=12.0 * group.rank).backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    with pytest.raises(RuntimeError, match=r"set_static_graph\(\) must be called before training loop starts"):
        net._set_static_graph()


@RANKS
def test_a07_a_graph_that_is_not_static(group) -> None:
    """A7: used, then not: still the right average. Not used, then used: an error by name, in that backward."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS, static_graph=True)
    net(a=12, b=12).backward()
    net.zero_grad()
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS, static_graph=True)
    net(b=12).backward()
    with pytest.raises(RuntimeError, match=r"parameter 'a' .* the graph is not static"):
        net(a=12, b=12).backward()


@RANKS
def test_a10_a_graph_that_turns_out_to_be_static_is_told(group) -> None:
    """A10: where unused parameters are searched for, whether every backward led to the same ones."""
    net = DistributedDataParallel(Weights("a", "b"), find_unused_parameters=True)
    for _ in range(3):
        net.zero_grad()
        net(a=12.0 * group.rank).backward()
        assert net._get_ddp_logging_data()["can_set_static_graph"] == 1
    net(a=12.0, b=12).backward()
    for _ in range(2):
        assert net._get_ddp_logging_data()["can_set_static_graph"] == 0
        net(a=12.0, b=12).backward()
    assert "can_set_static_graph" not in DistributedDataParallel(Weights("a"))._get_ddp_logging_data()


@RANKS
@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "namedtuple", "nested"])
def test_a08_static_graph_and_nested_outputs(group, kind) -> None:
    """A8: containers keep their types."""
    make = {
        "tuple": lambda a, b: (a, b),
        "list": lambda a, b: [a, b],
        "dict": lambda a, b: {"a": a, "b": b},
        "namedtuple": Pair,
        "nested": lambda a, b: ([a], {"x": Pair(b, None)}),
    }[kind]

    class Model(Weights):
        def forward(self) -> Any:
            self.out = make((self.a * 12).sum(), (self.b * 12.0 * group.rank).sum())
            return self.out

    net = DistributedDataParallel(Model("a", "b"), static_graph=True)
    for _ in range(3):
        net.zero_grad()
        out = net()
        assert out is net.module.out
        total = out[0][0] + out[1]["x"].left if kind == "nested" else sum(out.values() if kind == "dict" else out)
        total.backward()
        assert gradients(net) == {"a": 12, "b": mean(group, lambda r: 12 * r)}


@RANKS
@VIEWS
def test_a09_static_graph_and_two_forwards(group, as_view) -> None:
    """A9: before one backward, from the first step on."""
    net = DistributedDataParallel(Weights("a", "b"), static_graph=True, gradient_as_bucket_view=as_view)
    for _ in range(3):
        net.zero_grad()
        (net(a=12.0 * group.rank) + net(a=24, b=12)).backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r) + 24, "b": 12}


@pytest.mark.mpi(ranks=[2])
def test_a11_static_graph_in_a_compiled_step(group) -> None:
    """A11: `engine.compile` replays it with the numbers of the ordinary step."""
    ends = []
    for compiled in (False, True):
        engine.manual_seed(0)
        net = DistributedDataParallel(
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), static_graph=True, bucket_cap_mb=TINY_BUCKETS
        )
        optimizer = SGD(net.parameters(), lr=0.1)
        step = partial(plain_step, net, optimizer)
        step = engine.compile(step) if compiled else step
        losses = [step(engine.full((2, 3), 0.1 * number + group.rank)).item() for number in range(5)]
        ends.append((losses, [parameter.tolist() for parameter in net.parameters()]))
    assert ends[0] == ends[1]


def plain_step(net: nn.Module, optimizer: SGD, inputs: engine.Tensor) -> engine.Tensor:
    optimizer.zero_grad()
    loss = net(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Three linear layers; the middle one is checkpointed so many times. `shared`: the outer ones have one weight."""

    def __init__(self, times: int, reentrant: bool, shared: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(3, 3, bias=False) for _ in range(3))
        if shared:
            self.last.weight = self.middle.weight
        if unused:
            self.other = nn.Linear(3, 3)
        self.times = times
        self.run = partial(checkpoint, use_reentrant=reentrant) if times else None

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = self.run(self.middle, x)
        return self.last(x if self.times else self.middle(x))


def parity(group: ddp.ProcessGroup, options: dict[str, Any], **model: Any) -> None:
    """Two steps of the wrapped model against the mean of what each rank's own copy computes."""
    engine.manual_seed(0)
    local = Checkpointed(**model)
    net = DistributedDataParallel(copy.deepcopy(local), bucket_cap_mb=TINY_BUCKETS, **options)
    for step in range(2):
        for each in (net, local):
            each.zero_grad()
            each(engine.full((2, 3), 1.0 + group.rank + step)).sum().backward()
        for (name, mine), theirs in zip(net.module.named_parameters(), local.parameters(), strict=True):
            if name.startswith("other"):
                assert mine.grad is None
                continue
            expected = sum(group.exchange(theirs.grad.numpy())) / group.size()
            assert engine.allclose(mine.grad, engine.from_numpy(expected), rtol=1e-5), (name, step)


@RANKS
@REENTRANT
@VIEWS
@pytest.mark.parametrize("static", [False, True])
def test_a12_one_checkpoint(group, reentrant, as_view, static) -> None:
    """A12: all combinations."""
    parity(group, {"static_graph": static, "gradient_as_bucket_view": as_view}, times=1, reentrant=reentrant)


@RANKS
def test_a13_checkpoints_and_unused_parameters(group) -> None:
    """A13: plain ones find them; with a static graph re-entrant ones do."""
    parity(group, {"find_unused_parameters": True}, times=1, reentrant=False, unused=True)
    parity(group, {}, times=1, reentrant=True, unused=True)
    parity(group, {"static_graph": True}, times=1, reentrant=True, unused=True)


@RANKS
def test_a14_two_checkpoints_of_a_layer(group) -> None:
    """A14: plain ones, and re-entrant ones with a static graph; else an error by name."""
    parity(group, {}, times=2, reentrant=False)
    parity(group, {"static_graph": True}, times=2, reentrant=True)
    net = DistributedDataParallel(Checkpointed(2, True), bucket_cap_mb=TINY_BUCKETS)
    with pytest.raises(RuntimeError, match=r"another gradient of parameter 'middle.weight' .* use_reentrant=False"):
        net(engine.ones(2, 3)).sum().backward()


@RANKS
@pytest.mark.parametrize("times", [1, 2])
def test_a15_a16_shared_weights_and_changing_modules(group, times) -> None:
    """A15, A16: a weight that a checkpoint shares with a layer outside; another layer in each step."""
    parity(group, {}, times=times, reentrant=False, shared=True)
    parity(group, {"static_graph": True}, times=times, reentrant=True, shared=True)

    class Dynamic(Checkpointed):
        step = 0

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            self.step += 1
            return self.run(self.first if self.step % 2 else self.last, x)

    net = DistributedDataParallel(Dynamic(times, False), bucket_cap_mb=TINY_BUCKETS, find_unused_parameters=True)
    for step in range(4):
        net.zero_grad()
        net(engine.ones(2, 3) * (group.rank + 1)).sum().backward()
        used, left = (net.module.first, net.module.last)[:: -1 if step % 2 else 1]
        assert left.weight.grad is None
        assert set(used.weight.grad.flatten().tolist()) == {mean(group, lambda r: 2 * (r + 1))}


# --- the wrapper ------------------------------------------------------------------------------------------------------


@RANKS
def test_a17_a_second_wrapper_after_a_failed_backward(group) -> None:
    """A17: also where the first one is asked to let go."""
    module = Weights("a", "b")
    first = DistributedDataParallel(module, bucket_cap_mb=TINY_BUCKETS)

    def fail(gradient: engine.Tensor) -> None:
        raise ArithmeticError

    handle = module.a.register_hook(fail)
    with pytest.raises(ArithmeticError):
        first(a=12, b=12).backward()
    handle.remove()
    first._remove_autograd_hooks()
    module.zero_grad()
    second = DistributedDataParallel(module)
    second(a=12.0 * group.rank).backward()
    assert gradients(second) == {"a": mean(group, lambda r: 12 * r), "b": None}


@pytest.mark.mpi(ranks=[3, 4])
def test_a18_another_process_group(group) -> None:
    """A18: fewer ranks, another group of them, all again; hooks stay."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS)
    net.register_comm_hook(None, allreduce_hook)
    net(a=12.0 * group.rank, b=12).backward()
    pair = ddp.new_group([0, 1])
    if group.rank < 2:
        net._update_process_group(pair)
        net.zero_grad()
        net(a=24.0 * group.rank).backward()
        assert gradients(net) == {"a": 12, "b": None}
    group.exchange(None)
    net._update_process_group(group)
    net.zero_grad()
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    assert net._get_ddp_logging_data()["comm_hook"] == "allreduce_hook"


@RANKS
@VIEWS
def test_a19_scaled_losses(group, as_view) -> None:
    """A19: gradients of a scaled loss are averaged and unscaled, as a script with GradScaler does it."""
    net = DistributedDataParallel(Weights("a"), gradient_as_bucket_view=as_view)
    optimizer, scaler = SGD(net.parameters(), lr=1.0), GradScaler("cpu", init_scale=1024)
    scaler.scale(net(a=12.0 * group.rank)).backward()
    scaler.unscale_(optimizer)
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}
    scaler.step(optimizer)
    scaler.update()
    assert net.module.a.tolist() == [-mean(group, lambda r: 12 * r)] * 3


@RANKS
def test_a20_functional_call(group) -> None:
    """A20: as in PyTorch, what is given has its rank's own gradient, what it replaces none; the rest is averaged."""
    net = DistributedDataParallel(Weights("a", "b"))
    given = engine.zeros(3, requires_grad=True)
    functional_call(net, {"module.a": given}, kwargs={"a": 12.0 * group.rank, "b": 24.0 * group.rank}).backward()
    assert given.grad.tolist() == [12.0 * group.rank] * 3
    assert gradients(net) == {"a": None, "b": mean(group, lambda r: 24 * r)}
    net.zero_grad()
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    net.module.a = nn.Parameter(engine.zeros(3))
    with pytest.raises(RuntimeError, match="parameter a was exchanged for another one since the module was wrapped"):
        functional_call(net, {"module.b": given}, kwargs={"b": 1.0})


@RANKS
def test_a21_hooks_of_submodules(group) -> None:
    """A21: forward and backward hooks as without the wrapper."""
    outputs = []
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    for each in (model, DistributedDataParallel(copy.deepcopy(model))):
        inner = each.module if isinstance(each, DistributedDataParallel) else each
        inner[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        inner[0].register_forward_hook(lambda module, args, out: out + 1)
        inner[2].register_full_backward_hook(lambda module, ins, outs: (ins[0] * 3,))
        out = each(engine.ones(1, 2))
        out.sum().backward()
        outputs.append([out.tolist(), *[p.grad.tolist() for p in each.parameters()]])
    # the mean of equal gradients, over three ranks up to the last bit
    flat = [engine.cat([engine.tensor(each).flatten() for each in found]) for found in outputs]
    assert engine.allclose(flat[0], flat[1], rtol=1e-6)


# --- hooks of communication -------------------------------------------------------------------------------------------


@RANKS
def test_h07_hundred_steps_with_the_allreduce_hook(group) -> None:
    """H7: the same bits as without."""
    nets = [DistributedDataParallel(nn.Linear(3, 2)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1].register_comm_hook(group, allreduce_hook)
    for step in range(100):
        for net in nets:
            net.zero_grad()
            net(engine.ones(2, 3) * (group.rank + 0.1 * step)).sum().backward()
            with engine.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.01 * parameter.grad
    assert [p.tolist() for p in nets[0].parameters()] == [p.tolist() for p in nets[1].parameters()]


@RANKS
def test_h12_h30_names_of_hooks_and_of_their_arguments(group) -> None:
    """H12, H30: the hook is logged; its arguments may have any names."""

    def mine(anything: Any, whatever: Any) -> Future[engine.Tensor]:
        return whatever.average()

    net = DistributedDataParallel(Weights("a"))
    net.register_comm_hook(None, mine)
    assert net._get_ddp_logging_data()["comm_hook"] == "mine"
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_h31_after_an_error_in_a_hook(group) -> None:
    """H31: the next step is right; nothing has to be reset."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=TINY_BUCKETS)

    def fails_once(state: list[int], bucket: ddp.GradBucket) -> Future[engine.Tensor]:
        state.append(1)
        if len(state) == 2:
            raise ArithmeticError("not today")
        return bucket.average()

    net.register_comm_hook([], fails_once)
    with pytest.raises(ArithmeticError):
        net(a=12, b=12).backward()
    loss = net(a=12.0 * group.rank, b=12)
    net.zero_grad()
    loss.backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 12}


# --- join -------------------------------------------------------------------------------------------------------------


class Zoo(nn.Module):
    """A convolution, a batch norm, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 2)
        self.norm = nn.BatchNorm2d(3)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(12, 1)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        return self.head(self.norm(self.convolution(x)).flatten(1))


@RANKS
@pytest.mark.parametrize("hook", ["none", "allreduce", "powersgd"])
@pytest.mark.parametrize("skew", [(1, 3, 2, 5), (4, 0, 1, 2)], ids=str)
def test_h16_h17_h22_join_over_a_zoo(group, hook, skew) -> None:
    """H16, H17, H22: nobody hangs; in the end all have the model of the highest rank that took the last step."""
    engine.manual_seed(group.rank)
    net = DistributedDataParallel(Zoo(), find_unused_parameters=hook == "none", bucket_cap_mb=0.0001)
    if hook != "none":
        state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
        net.register_comm_hook(*{"allreduce": (None, allreduce_hook), "powersgd": (state, powerSGD_hook)}[hook])
    optimizer = SGD(net.parameters(), lr=0.1)
    own: Any = None
    with net.join():
        for _ in range(skew[group.rank]):
            optimizer.zero_grad()
            net(engine.randn(2, 2, 3, 3)).square().mean().backward()
            optimizer.step()
            own = [tensor.tolist() for tensor in net.state_dict().values()]
    most = max(skew[: group.size()])
    last = max(rank for rank in range(group.size()) if skew[rank] == most)
    models = group.exchange(([tensor.tolist() for tensor in net.state_dict().values()], own))
    assert all(model == models[last][1] for model, _ in models)


@RANKS
def test_h21_early_termination_with_sync_batch_norm(group) -> None:
    """H21: every rank raises at the start of the step in which somebody has no more data."""
    model = SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    net = DistributedDataParallel(model)
    steps = []

    def train() -> None:
        with net.join(throw_on_early_termination=True):
            for _ in range(2 if group.rank == 0 else 4):
                net(engine.randn(2, 2)).sum().backward()
                steps.append(1)

    words = "Rank 0 exhausted all inputs" if group.rank == 0 else "Detected at least one rank that exhausted inputs"
    with pytest.raises(RuntimeError, match=words):
        train()
    assert len(steps) == 2
