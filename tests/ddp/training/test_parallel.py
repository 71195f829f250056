"""DistributedDataParallel as a Module: what goes in and out, what it refuses, copies of it, its buffers."""

import copy
import gc
import pickle
from typing import Any

import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.groups.process_group import ProcessGroup
from ddp.training import making
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[1, 2, 3])


# --- a Module like any other ------------------------------------------------------------------------------------------


@RANKS
def test_arguments_and_outputs_pass_unchanged(group) -> None:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(engine.ones(2))

        def forward(self, *args: Any, **keywords: Any) -> Any:
            return args, keywords, self.weight

    net = DistributedDataParallel(Echo())
    marker = object()
    args, keywords, weight = net(1, [marker], flag=None, more={"x": marker})
    assert args == (1, [marker])
    assert keywords == {"flag": None, "more": {"x": marker}}
    assert weight is net.module.weight


@RANKS
def test_state_dict_has_the_prefix_and_the_wrapped_module_none(group) -> None:
    """H28: and both load into each other."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert list(net.state_dict()) == [f"module.{name}" for name in net.module.state_dict()]
    other = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    other.load_state_dict(net.state_dict())
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    plain.load_state_dict({name.removeprefix("module."): value for name, value in net.state_dict().items()})
    for mine, theirs, loaded in zip(net.parameters(), other.parameters(), plain.parameters(), strict=True):
        assert mine.tolist() == theirs.tolist() == loaded.tolist()
    # loading keeps parameters and buckets: gradients are still averaged
    other(engine.ones(3, 2) * (group.rank + 1)).sum().backward()
    assert len(set(map(str, group.exchange(other.module[0].weight.grad.tolist())))) == 1


@RANKS
def test_train_and_eval_reach_the_module(group) -> None:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    net.eval()
    assert not net.module[1].training
    net.train()
    assert net.module[1].training


@pytest.mark.mpi(ranks=[2, 3])
def test_one_rank_alone_may_evaluate(group) -> None:
    """A3: where no buffers are to be taken over, and the module itself anywhere."""
    ignoring = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        ignoring, [name for name, _ in ignoring.named_buffers()]
    )
    nets = [
        DistributedDataParallel(nn.Sequential(nn.Linear(2, 2))),
        DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), broadcast_buffers=False),
        DistributedDataParallel(ignoring),
    ]
    shared = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for net in (*nets, shared):
        net(engine.ones(2, 2)).sum().backward()
    if group.rank == 0:
        for net in (*nets, shared.module):
            net.eval()
            net(engine.ones(2, 2))
            net.train()
            with engine.no_grad():
                net(engine.ones(2, 2))
    ddp.barrier()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("recorded", [True, False])
def test_buffers_wait_for_all_ranks_to_evaluate(group, recorded) -> None:
    """One that does so alone is named, and nothing is mixed up."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    net(engine.ones(2, 2)).sum().backward()
    net.eval()
    words = r"rank 0 is in taking over buffers to evaluate \(.*test_parallel.py:\d+\)"
    with pytest.raises(RuntimeError, match=words), \
            engine.set_grad_enabled(recorded):  # fmt: skip
        net(engine.ones(2, 2)) if group.rank == 0 else ddp.barrier()
    ddp.barrier()


# --- what is taken over from rank 0 -----------------------------------------------------------------------------------


class Buffered(Weights):
    """A buffer that counts in each forward, differently on each rank; one that is not saved; an integer one."""

    def __init__(self, start: float) -> None:
        super().__init__("a")
        self.register_buffer("total", engine.full((3,), start))
        self.register_buffer("hidden", engine.full((2, 2), start).t(), persistent=False)
        self.register_buffer("count", engine.tensor(int(start)))

    def forward(self, step: float) -> engine.Tensor:
        self.seen = self.total.tolist(), self.hidden.tolist(), self.count.item()
        self.total += step
        self.hidden = self.hidden + step
        self.count += 1
        return (self.a * step).sum()


@RANKS
def test_parameters_and_buffers_start_as_those_of_rank_0(group) -> None:
    """D12: whatever they were."""
    model = Buffered(group.rank + 5.0)
    with engine.no_grad():
        model.a.fill_(group.rank + 7.0)
    DistributedDataParallel(model)
    assert model.a.tolist() == [7.0] * 3
    assert (model.total.tolist(), model.hidden.tolist(), model.count.item()) == ([5.0] * 3, [[5.0] * 2] * 2, 5)


@RANKS
def test_without_init_sync_each_rank_keeps_its_values(group) -> None:
    model = Buffered(group.rank + 5.0)
    net = DistributedDataParallel(model, init_sync=False, broadcast_buffers=False)
    net(12.0 * group.rank).backward()
    assert model.seen[0] == [group.rank + 5.0] * 3
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_buffers_follow_rank_0_before_each_training_forward(group) -> None:
    net = DistributedDataParallel(Buffered(float(group.rank)))
    for step in range(3):
        net(float(group.rank)).backward()  # adds 0 on rank 0
        assert net.module.seen == ([0.0] * 3, [[0.0] * 2] * 2, step)
    with net.no_sync():
        before = net.module.total.tolist()
        net(1.0).backward()
        assert net.module.seen[0] == before
    net.eval()
    net(1.0)
    assert net.module.seen[0] == [1.0] * 3
    with engine.no_grad():
        net(float(group.rank))
        assert net.module.seen[0] == [2.0] * 3
        net(1.0)  # nothing was learnt between
    assert net.module.seen[0] == [2.0 + group.rank] * 3
    with net.no_sync():
        net(1.0)
    assert net.module.seen[0] == [3.0 + group.rank] * 3


@RANKS
def test_making_one_without_init_sync_is_not_collective(group) -> None:
    if group.rank == group.size() - 1:
        net = DistributedDataParallel(Weights("a"), init_sync=False)
        group.exchange(None)
    else:
        group.exchange(None)  # the ranks are elsewhere meanwhile
        net = DistributedDataParallel(Weights("a"), init_sync=False)
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}
    with pytest.raises(RuntimeError, match="doesn't have any parameter that requires a gradient"):
        DistributedDataParallel(Weights("a").requires_grad_(False), init_sync=False)


@RANKS
@pytest.mark.parametrize("as_view", [True, False])
def test_what_this_rank_alone_did_not_use_is_left_alone(group, as_view) -> None:
    net = DistributedDataParallel(Weights("a", "b"), leave_unused=True, gradient_as_bucket_view=as_view)
    net(**({"a": 12} if group.rank == 0 else {"a": 12, "b": 12})).backward()
    others = mean(group, lambda rank: 12 * (rank > 0))
    assert gradients(net) == {"a": 12, "b": others if group.rank else None}
    net.zero_grad()
    net(a=12, b=12.0).backward()
    assert gradients(net) == {"a": 12, "b": 12}
    net(**({"a": 12} if group.rank == 0 else {"a": 12, "b": 12})).backward()  # b of rank 0 adds its old gradient
    assert gradients(net) == {"a": 24, "b": 12 + others if group.rank else 12}


@RANKS
def test_buffers_that_backward_has_saved_may_follow(group) -> None:
    """Two forwards, then two backwards: the broadcast in between is no in-place modification."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    first, second = net(engine.randn(4, 2)), net(engine.randn(4, 2))
    first.sum().backward()
    second.sum().backward()


@RANKS
def test_ignored_parameters_and_buffers_stay_as_they_are(group) -> None:
    model = Buffered(float(group.rank))
    model.own = nn.Parameter(engine.full((group.rank + 1,), float(group.rank)))  # of another shape on each rank
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["own", "total"])
    net = DistributedDataParallel(model)
    (net(12.0 * group.rank) + (model.own * 12.0 * group.rank).sum()).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "own": 12.0 * group.rank}
    assert model.seen[0] == [group.rank] * 3
    assert model.own.tolist() == [group.rank] * (group.rank + 1)


@RANKS
def test_large_and_small_tensors_are_copied_alike(group, monkeypatch) -> None:
    """Above and below the size of one message; dense, with gaps, empty, 0-dim."""
    from ddp.replicas import copying as replicas

    monkeypatch.setattr(replicas, "_MESSAGE_BYTES", 256)
    shapes = [(3,), (), (0, 4), (40,), (500,), (7, 9), (2,), (30, 2)]
    tensors = [engine.full(shape, float(group.rank * 100 + number)) for number, shape in enumerate(shapes)]
    tensors += [engine.full((20, 30), float(group.rank)).t(), engine.full((20, 30), float(group.rank))[:, ::3]]
    tensors += [engine.full((5,), group.rank, dtype=dtype) for dtype in (engine.int64, engine.bfloat16, engine.bool)]
    versions = [tensor._version for tensor in tensors]
    root = group.size() - 1
    replicas.copy_from(root, tensors, group)
    for number, tensor in enumerate(tensors):
        expected = root * 100 + number if number < len(shapes) else root
        assert set(tensor.flatten().tolist()) <= {tensor.dtype.numpy.type(expected).item()}
    assert [tensor._version for tensor in tensors] == versions


# --- copies -----------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"]
)
def test_copies_train_and_average(group, way) -> None:
    net = DistributedDataParallel(Buffered(1.0), bucket_cap_mb=1e-5)
    net(12.0 * group.rank).backward()
    other = way(net)
    other(24.0 * group.rank).backward()
    assert gradients(other) == {"a": mean(group, lambda r: 24 * r)}
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}
    assert other.bucket_cap_mb == 1e-5


@pytest.mark.mpi(ranks=[2, 3])
def test_one_rank_may_make_a_copy_for_itself(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    if group.rank == 0:
        average = copy.deepcopy(net)
        with engine.no_grad():
            assert average(a=1.0).item() == 0
        del average
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_the_wrapped_module_can_be_copied_and_saved(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    net(a=12.0 * group.rank).backward()
    plain = copy.deepcopy(net.module)
    plain.zero_grad()
    plain(a=float(group.rank)).backward()  # nobody averages this one
    assert gradients(plain) == {"a": group.rank}


# --- one wrapper at a time --------------------------------------------------------------------------------------------


@pytest.mark.mpi(ranks=[2, 3])
def test_a_later_wrapper_takes_over(group) -> None:
    module = Weights("a", "b")
    first = DistributedDataParallel(module)
    second = DistributedDataParallel(module, gradient_as_bucket_view=False)
    second(a=12.0 * group.rank, b=12).backward()
    assert gradients(module) == {"a": mean(group, lambda r: 12 * r), "b": 12}
    with pytest.raises(RuntimeError, match="was wrapped again since; use the later wrapper"):
        first(a=1.0)
    del first
    gc.collect()
    module.zero_grad()
    second(a=24.0 * group.rank, b=12).backward()
    assert gradients(module) == {"a": mean(group, lambda r: 24 * r), "b": 12}


@pytest.mark.mpi(ranks=[2, 3])
def test_without_its_wrapper_a_module_trains_alone(group) -> None:
    module = Weights("a")
    net = DistributedDataParallel(module)
    net(a=12.0 * group.rank).backward()
    del net
    gc.collect()
    module.zero_grad()
    module(a=float(group.rank)).backward()
    assert gradients(module) == {"a": group.rank}


# --- what is refused --------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize(
    ("make", "options", "kind", "words"),
    [
        (
            lambda: nn.ReLU(),
            {},
            RuntimeError,
            "not needed when a module doesn't have any parameter that requires a gradient",
        ),
        (
            lambda: DistributedDataParallel(Weights("a")),
            {},
            RuntimeError,
            "is, or contains, a DistributedDataParallel already",
        ),
        (
            lambda: nn.Sequential(nn.Linear(1, 1), DistributedDataParallel(Weights("a"))),
            {},
            RuntimeError,
            "is, or contains, a DistributedDataParallel already",
        ),
        (lambda: Weights("a"), {"device_ids": [0]}, ValueError, "device_ids and output_device have no meaning here"),
        (lambda: Weights("a"), {"bucket_cap_mb": 0}, ValueError, "expected a positive bucket_cap_mb, got 0"),
        (lambda: Weights("a").to("meta"), {}, ValueError, "host memory, but parameter a is on meta"),
        (lambda: engine.zeros(3), {}, TypeError, "expected a Module, got Tensor"),
    ],
)
def test_bad_arguments(group, make, options, kind, words) -> None:
    """D6: no trainable parameter; and what else is refused."""
    module = make()
    with pytest.raises(kind, match=words):
        DistributedDataParallel(module, **options)


def last_rank_differs(group: ProcessGroup, what: str) -> tuple[nn.Module, dict[str, Any]]:
    """A module and options; the last rank's differ."""
    last = group.rank == group.size() - 1
    module = nn.Sequential(
        nn.Conv2d(3, 5 if last and what == "shape" else 4, 1), nn.BatchNorm2d(5 if what == "shape" and last else 4)
    )
    if last and what == "dtype":
        module[0].half()
    if last and what == "layout":
        module.to(memory_format=engine.channels_last)
    if last and what == "more":
        module.append(nn.Linear(1, 1))
    if last and what == "frozen":
        module[0].bias.requires_grad_(False)
    if last and what == "buffers":
        module[1].register_buffer("own", engine.zeros(1))
    if last and what == "none":
        module.requires_grad_(False)
    options = {"bucket_cap_mb": 3 if last else 5} if what == "options" else {}
    return module, options


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "shape",
            r"parameters differ between ranks: rank LAST has 0.weight \(5, 3, 1, 1\) float32 where rank 0 has \(4, 3",
        ),
        ("dtype", "parameters differ between ranks: rank LAST has 0.weight as float16 where rank 0 has float32"),
        (
            "layout",
            r"rank LAST has 0.weight \(4, 3, 1, 1\) with strides \(3, 1, 3, 3\) where rank 0 has \(3, 1, 1, 1\)",
        ),
        ("more", r"rank LAST has 2.weight .*, which rank 0 has not \(tensors per rank: \[4, .*6\]\)"),
        (
            "frozen",
            "parameters that require grad differ between ranks: rank LAST has 1.weight .* where rank 0 has 0.bias",
        ),
        ("buffers", "buffers differ between ranks: rank LAST has 1.own .* which rank 0 has not"),
        (
            "none",
            "(rank LAST says: )?DistributedDataParallel is not needed when a module doesn't have any parameter",
        ),
        ("options", "bucket_cap_mb differs between ranks: rank LAST has 3 where rank 0 has 5"),
    ],
)
def test_models_that_differ_are_refused_on_every_rank(group, what, words) -> None:
    """D13, D14: in number, shape, layout, dtype; by name, with the same words on every rank."""
    module, options = last_rank_differs(group, what)
    with pytest.raises((ValueError, RuntimeError), match=words.replace("LAST", str(group.size() - 1))):
        DistributedDataParallel(module, **options)
    # nothing is left behind: the ranks still agree on what comes next
    net = DistributedDataParallel(Weights("a"))
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_after_the_end_of_its_process_group(group) -> None:
    """In a world of its own, within that of this file's job."""
    world = ProcessGroup(group.rank, group.ranks, group.comm.Dup())
    net = DistributedDataParallel(Weights("a"), process_group=world)
    net(a=12.0).backward()
    ddp.destroy_process_group(world)
    with pytest.raises(RuntimeError, match="closed with its process group; after init_process_group wrap the model"):
        net(a=12.0).backward()
    assert net.module.a.grad.tolist() != []


def test_a_process_group_is_needed() -> None:
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedDataParallel(Weights("a"))


@RANKS
def test_unfrozen_after_wrapping(group) -> None:
    module = Weights("a", "b")
    module.a.requires_grad_(False)
    net = DistributedDataParallel(module)
    net(a=1.0, b=12).backward()
    with net.no_sync():
        net(a=1.0, b=12 * group.rank).backward()
    module.a.requires_grad_(True)
    net(a=12.0 * group.rank, b=12).backward()  # what was accumulated before counts
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 24 + mean(group, lambda r: 12 * r)}
    for _ in range(2):
        net.zero_grad()
        net(a=12.0 * group.rank, b=12).backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 12}


@pytest.mark.mpi(ranks=[1, 2])
def test_unfrozen_with_a_hook(group) -> None:
    module = Weights("a", "b")
    module.a.requires_grad_(False)
    net = DistributedDataParallel(module)
    net.register_comm_hook(None, lambda _, bucket: bucket.average().then(lambda future: future.value().mul_(2)))
    module.a.requires_grad_(True)
    net(a=12.0, b=6.0).backward()
    assert gradients(net) == {"a": 24, "b": 12}


@pytest.mark.mpi(ranks=[2])
def test_unfrozen_on_one_rank_only(group) -> None:
    module = Weights("a", "b")
    module.a.requires_grad_(False)
    net = DistributedDataParallel(module)
    module.a.requires_grad_(group.rank == 1)
    module.b.requires_grad_(group.rank == 1)
    module.b.requires_grad_(True)
    if group.rank == 1:
        with pytest.raises(ValueError, match="parameters that require grad differ between ranks"):
            net(a=1.0, b=1.0)
    else:
        with pytest.raises(ValueError, match="parameters that require grad differ between ranks"):
            making.compare(net)  # where the watchdog would end the job


@RANKS
def test_exchanged_parameters(group) -> None:
    net = DistributedDataParallel(Weights("a", "b"))
    net.module.b = nn.Parameter(engine.zeros(3))
    with pytest.raises(RuntimeError, match="parameter b was exchanged for another one since the module was wrapped"):
        net(a=1.0)


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_converted_after_wrapping(group, as_view) -> None:
    net = DistributedDataParallel(Weights("a", "b"), gradient_as_bucket_view=as_view)
    net.module.to(engine.float64)
    with pytest.raises(RuntimeError, match=r"convert the model .*before wrapping it"):
        net(a=1.0).backward()
    net = DistributedDataParallel(nn.Conv2d(3, 4, 2), gradient_as_bucket_view=as_view)
    net.module.to(memory_format=engine.channels_last)
    with pytest.raises(
        RuntimeError, match=r"weight was \[4, 3, 2, 2\] engine.float32 with strides \(12, 4, 2, 1\) when"
    ):
        net(engine.ones(1, 3, 2, 2)).sum().backward()


@pytest.mark.mpi(ranks=[2, 3])
def test_pickling_needs_the_default_group(group) -> None:
    """D31: of another group nobody would know where the copy belongs."""
    other = ProcessGroup(group.rank, group.ranks, group.comm)
    net = DistributedDataParallel(Weights("a"), process_group=other)
    with pytest.raises(RuntimeError, match="only supported when using DDP with the default process group"):
        pickle.dumps(net)


@pytest.mark.mpi(ranks=[1, 2])
def test_a_module_that_comes_later_is_refused_if_it_would_be_trained_alone(group) -> None:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    inner = net.module[1]
    inner[1] = nn.Tanh()  # has nothing to be averaged
    inner.add_module("again", net.module[0])  # is averaged already
    head = nn.Linear(2, 2)
    inner.add_module("head", head.requires_grad_(False))
    net(engine.ones(1, 2)).sum().backward()
    head.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"module 1\.head is another one than when the model was wrapped"):
        net(engine.ones(1, 2))
    del inner.head
    net(engine.ones(1, 2)).sum().backward()
    inner[0] = nn.Linear(2, 2)
    with engine.no_grad():
        net(engine.ones(1, 2))
    with pytest.raises(RuntimeError, match=r"module 1\.0 is another one"):
        net(engine.ones(1, 2))


@pytest.mark.mpi(ranks=[1])
def test_a_name_of_the_wrapped_module_is_pointed_to(group) -> None:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(AttributeError, match=r"no attribute 'append'; the wrapped module has it: use \.module\.append"):
        net.append(nn.ReLU())
    with pytest.raises(AttributeError, match=r"'DistributedDataParallel' object has no attribute 'nothing'$"):
        net.nothing  # noqa: B018
