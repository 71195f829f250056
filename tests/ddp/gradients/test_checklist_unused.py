"""Unused parameters and control flow: rows U of the checklist that no other test of this folder names.

U5, U6, U14, U19 and U22 are errors in PyTorch's next forward, or gradients that silently stay local: here nothing is
wrong, and the gradients are averages in the same step. U17 (a clone of the outputs that can be switched off): outputs
are not touched.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from engine.optim import Adam
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])
VIEWS = pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
UNUSED = pytest.mark.parametrize("find_unused", [False, True], ids=["wait", "search"])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own


@dataclass
class Outputs:
    first: engine.Tensor
    second: engine.Tensor


class Opaque:
    """Nobody looks for tensors in it."""

    def __init__(self, first: engine.Tensor, second: engine.Tensor) -> None:
        self.first, self.second = first, second


CONTAINERS: dict[str, Callable[[engine.Tensor, engine.Tensor], Any]] = {
    "tuple": lambda first, second: (first, second),
    "dict": lambda first, second: {"first": first, "second": second},
    "dataclass": Outputs,
    "opaque": Opaque,
}


def parts(outputs: Any) -> tuple[engine.Tensor, engine.Tensor]:
    if isinstance(outputs, tuple):
        return outputs
    return (outputs["first"], outputs["second"]) if isinstance(outputs, dict) else (outputs.first, outputs.second)


class Two(Weights):
    """Two outputs in a container: 12 a and 12 b; c is not used."""

    def __init__(self, container: str) -> None:
        super().__init__("a", "b", "c")
        self.pack = CONTAINERS[container]

    def forward(self, factor: float = 12.0) -> Any:
        return self.pack((self.a * factor).sum(), (self.b * factor).sum())


@RANKS
@VIEWS
def test_u01_static_graph(group, as_view) -> None:
    """U1: used by some ranks: everybody gets the mean; by none: None stays, with a static graph as well."""
    net = DistributedDataParallel(Weights("a", "b", "c"), static_graph=True, gradient_as_bucket_view=as_view)
    for _ in range(3):
        net.zero_grad()
        net(**({"a": 12, "b": 12} if group.rank == 0 else {"b": 12})).backward()
        assert gradients(net) == {"a": 12 / group.size(), "b": 12, "c": None}


@RANKS
@UNUSED
def test_u02_a_rank_that_uses_everything(group, find_unused) -> None:
    """U2: it takes part when the others leave something out."""
    net = DistributedDataParallel(Weights(*"abc"), find_unused_parameters=find_unused, bucket_cap_mb=TINY_BUCKETS)
    for user in range(group.size()):
        net.zero_grad()
        net(**dict.fromkeys("abc" if group.rank == user else "b", 12)).backward()
        assert gradients(net) == {"a": 12 / group.size(), "b": 12, "c": 12 / group.size()}


@RANKS
@UNUSED
def test_u04_unused_in_the_first_step_only(group, find_unused) -> None:
    """U4: with Adam, whose state begins when there is a gradient."""
    net = DistributedDataParallel(Weights("a", "b"), find_unused_parameters=find_unused)
    alone = Weights("a", "b")
    optimizers = [Adam(each.parameters(), lr=0.1) for each in (net, alone)]
    for step in range(4):
        for model, optimizer, value in (
            (net, optimizers[0], 12.0 * group.rank),
            (alone, optimizers[1], 6.0 * (group.size() - 1)),
        ):
            optimizer.zero_grad()
            model(**({"a": value} if step == 0 else {"a": value, "b": value})).backward()
            optimizer.step()
        assert [p.tolist() for p in net.parameters()] == [p.tolist() for p in alone.parameters()]
    assert [optimizers[0].state[p]["step"].item() for p in net.parameters()] == [4, 3]


@RANKS
@UNUSED
def test_u05_u06_nested_modules_that_are_not_used(group, find_unused) -> None:
    """U5, U6: no error and no hang; they keep None, the others are averaged, and the counts say which were used."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.ModuleDict({"inner": Weights("a")})
            self.unused = nn.ModuleDict({"inner": nn.ModuleList([Weights("b"), Weights("c")])})

        def forward(self) -> engine.Tensor:
            return self.used["inner"](a=12.0 * group.rank)

    net = DistributedDataParallel(Nested(), find_unused_parameters=find_unused, bucket_cap_mb=TINY_BUCKETS)
    for _ in range(3):
        net.zero_grad()
        net().backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None, "c": None}
        assert net.reducer.buckets.users() == [group.size(), 0, 0]
        assert net._get_ddp_logging_data()["unused_parameter_size"] == 24


@RANKS
@UNUSED
def test_u07_u08_control_flow(group, find_unused) -> None:
    """U7, U8: the same on all ranks, or not; after backward each rank knows how many ranks used a parameter."""
    net = DistributedDataParallel(Weights("a", "b"), find_unused_parameters=find_unused)
    for step in range(6):
        net.zero_grad()
        net(**({"a": 12, "b": 12} if step % 2 else {"a": 12})).backward()
        assert net.reducer.buckets.users() == [group.size(), group.size() if step % 2 else 0]
        assert gradients(net) == {"a": 12, "b": 12 if step % 2 else None}
    for step in range(6):
        net.zero_grad()
        users = [rank for rank in range(group.size()) if (rank + step) % 2]
        net(**({"a": 12, "b": 12} if group.rank in users else {"a": 12})).backward()
        assert net.reducer.buckets.users() == [group.size(), len(users)]
        assert gradients(net) == {"a": 12, "b": 12 * len(users) / group.size() if users else None}


@RANKS
@VIEWS
@UNUSED
@pytest.mark.parametrize("container", CONTAINERS)
def test_u09_u11_u14_u23_u24_outputs_that_the_loss_leaves_out(group, container, find_unused, as_view) -> None:
    """U9, U11, U14, U19, U23, U24: on all ranks or on some, in any container; the loss may use what no search finds."""
    net = DistributedDataParallel(
        Two(container), find_unused_parameters=find_unused, gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS
    )
    local = Two(container)
    for used in ((0, 0), (1, 1), (0, 1), (2, 2)):
        choice = used[group.rank > 0]
        for model in (net, local):
            model.zero_grad()
            first, second = parts(model())
            (first + second if choice == 2 else (first, second)[choice]).backward()
        if used[0] == used[1]:
            assert gradients(net) == gradients(local)
        else:
            assert gradients(net) == {"a": 12 / group.size(), "b": 12 * (1 - 1 / group.size()), "c": None}


@RANKS
@UNUSED
def test_u10_every_set_of_used_parameters(group, find_unused) -> None:
    """U10: what gets None locally gets None here."""
    net = DistributedDataParallel(Weights(*"abc"), find_unused_parameters=find_unused, bucket_cap_mb=TINY_BUCKETS)
    for count in (1, 2, 3):
        for names in itertools.combinations("abc", count):
            net.zero_grad()
            net(**dict.fromkeys(names, 12.0 * group.rank)).backward()
            average = mean(group, lambda r: 12 * r)
            assert gradients(net) == {name: average if name in names else None for name in "abc"}


@RANKS
def test_u12_u13_outputs_that_are_ignored(group) -> None:
    """U12, U13: four forwards without backward, with unused parameters and without."""
    for names in ("a", "abc"):
        net = DistributedDataParallel(Weights(*names), find_unused_parameters=names == "abc")
        for _ in range(4):
            net(a=12.0)
        net(a=12.0 * group.rank).backward()
        assert gradients(net)["a"] == mean(group, lambda r: 12 * r)


@RANKS
@pytest.mark.parametrize("static", [False, True])
def test_u15_u16_u17_outputs_are_what_the_module_returned(group, static) -> None:
    """U15, U16, U17: without gradient, made in forward, the very objects and no clones of them."""

    class Makes(Weights):
        def forward(self, given: engine.Tensor) -> Any:
            made = engine.zeros(2)
            self.returned = [given, made, self.a * 12, (given + 1).detach()]
            return self.returned

    net = DistributedDataParallel(Makes("a", "b"), static_graph=static, find_unused_parameters=not static)
    for _ in range(2):
        outputs = net(engine.ones(2))
        assert outputs is net.module.returned
        assert [out.requires_grad for out in outputs] == [False, False, True, False]
        assert outputs[1].grad_fn is None
        net.zero_grad()
        outputs[2].sum().backward()
        assert gradients(net) == {"a": 12, "b": None}


@RANKS
def test_u18_skipping_unused_buckets_gives_the_same(group) -> None:
    """U18: accepted; each bucket's header has to travel anyway."""
    net = DistributedDataParallel(
        Weights("a", "b"), find_unused_parameters=True, skip_all_reduce_unused_params=True, bucket_cap_mb=TINY_BUCKETS
    )
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    assert net._get_ddp_logging_data()["num_buckets_reduced"] == 2


@RANKS
@VIEWS
@UNUSED
def test_u20_old_gradients_of_a_parameter_that_a_rank_does_not_use(group, as_view, find_unused) -> None:
    """U20, U21: what every rank holds stays whole, and the mean of the new ones is added to it; set by hand, and
    different on each rank, they are averaged with the rest; where nobody uses the parameter, nothing is touched.
    """
    net = DistributedDataParallel(
        Weights("a", "b", "c"), find_unused_parameters=find_unused, gradient_as_bucket_view=as_view
    )
    net.module.a.grad = engine.full((3,), 60.0)
    net.module.b.grad = engine.full((3,), 12.0 * group.rank)
    net.module.c.grad = engine.full((3,), 5.0 + group.rank)
    net(**({"a": 24, "b": 24} if group.rank == 0 else {"a": 0.0})).backward()
    share = 24 / group.size()
    assert gradients(net) == {"a": 60 + share, "b": mean(group, lambda r: 12 * r) + share, "c": 5 + group.rank}


@RANKS
@VIEWS
def test_u22_backward_for_some_inputs(group, as_view) -> None:
    """U22: the next forward and the other parameters are as ever."""
    net = DistributedDataParallel(Weights("a", "b"), gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS)
    for _ in range(2):
        net.zero_grad()
        net(a=12.0 * group.rank, b=12).backward(inputs=[net.module.a])
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
        net(b=12.0 * group.rank).backward()
        assert gradients(net) == dict.fromkeys("ab", mean(group, lambda r: 12 * r))
