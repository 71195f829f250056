"""Buckets follow the order in which the first backward's gradients came, on every rank alike."""

import random

import pytest

import ddp
import engine
from ddp import DistributedDataParallel
from ddp.gradients.order import GradientOrder
from ddp.groups.group import resolve
from ddp.hooks import allreduce_hook
from ddp.testing import run_ranks
from tests.ddp.models import Weights, gradients

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own


def in_order(net: DistributedDataParallel, names: str, value: float) -> engine.Tensor:
    """A loss whose backward reaches the parameters in this order."""
    return net(**dict.fromkeys(reversed(names), value))  # what is recorded last, backward comes to first


def buckets(net: DistributedDataParallel) -> list[list[str]]:
    return [[name.rpartition(".")[2] for name in bucket.names] for bucket in net.reducer.buckets.all]


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["dynamic", "static"])
def test_buckets_follow_the_first_backward(group, as_view, options) -> None:
    """A5, A24: gradients stay what they are; a view is another tensor afterwards, once."""
    net = DistributedDataParallel(
        Weights(*"abcd"), gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS, **options
    )
    assert buckets(net) == [["d"], ["c"], ["b"], ["a"]]
    assert net._get_ddp_logging_data()["has_rebuilt_buckets"] == 0
    for round_ in range(3):
        net.zero_grad()
        in_order(net, "bdac", 12.0 * group.rank).backward()
        mean = 12 * (group.size() - 1) / 2
        assert gradients(net) == dict.fromkeys("abcd", mean), round_
        assert buckets(net) == [["b"], ["d"], ["a"], ["c"]]
        assert net._get_ddp_logging_data()["has_rebuilt_buckets"] == 1
        if as_view:
            views = {id(view) for bucket in net.reducer.buckets.all for _, view in bucket.members}
            assert {id(parameter.grad) for parameter in net.parameters()} == views


@RANKS
def test_ranks_that_see_different_orders_agree(group) -> None:
    """The lowest rank decides; what it had no gradient of comes last."""
    net = DistributedDataParallel(Weights(*"abcdef"), bucket_cap_mb=TINY_BUCKETS)
    order = list("abcdef")
    random.Random(group.rank).shuffle(order)
    used = "".join(order[: 2 + group.rank])
    in_order(net, used, 12.0).backward()
    found = buckets(net)
    assert group.exchange(found) == [found] * group.size()
    first = list("abcdef")
    random.Random(0).shuffle(first)
    names = [name for bucket in found for name in bucket]
    assert names == first[:2] + sorted(first[2:], reverse=True)
    ranks_with = {name: sum(name in given for given in group.exchange(used)) for name in "abcdef"}
    means = {name: 12 * count / group.size() if count else None for name, count in ranks_with.items()}
    assert gradients(net) == means


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_order_is_that_of_the_lowest_rank_that_has_one(first: int) -> None:
    """It alone sends it."""

    def body() -> tuple[list[int] | None, list[object]]:
        rank, told = ddp.get_rank(), []

        def exchange(value: object) -> list[object]:
            told.append(value)
            return resolve(None).exchange(value)

        order = GradientOrder(exchange, rank)
        for index in [3, rank, 3] if rank >= first else []:
            order.noting(index, lambda arrived, gradient: None)(True, None)
        weights = [engine.zeros(1, requires_grad=True) for _ in range(4)]
        return order.agree(weights), told

    found = run_ranks(3, body)
    came = [first, 3]
    expected = came + [index for index in (3, 2, 1, 0) if index not in came]
    assert [order for order, _ in found] == [expected] * 3
    lists = [[value for value in told if came in (value, value[-1] if value else None)] for _, told in found]
    assert [len(each) for each in lists] == [int(rank == first) for rank in range(3)]


@RANKS
def test_what_counts_is_the_last_gradient_of_a_parameter(group) -> None:
    """Of one that gets several (a re-entrant checkpoint): its bucket is full with the last."""
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS, static_graph=True)

    def again(gradient: engine.Tensor) -> None:
        with engine.enable_grad():
            (net.module.c * 12).sum().backward()

    net.module.b.register_hook(again)  # c comes first, and again before b
    for _ in range(2):
        net.zero_grad()
        in_order(net, "cab", 12.0).backward()
        assert gradients(net) == {"a": 12, "b": 12, "c": 24}
        assert buckets(net) == [["a"], ["c"], ["b"]]


@RANKS
def test_accumulated_gradients_move_along(group) -> None:
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS)
    with net.no_sync():
        in_order(net, "abc", 12.0 * group.rank).backward()
    in_order(net, "abc", 12.0).backward()
    mean = 12 * (group.size() - 1) / 2 + 12
    assert gradients(net) == dict.fromkeys("abc", mean)
    assert buckets(net) == [["a"], ["b"], ["c"]]
    in_order(net, "cab", 12.0).backward()
    assert gradients(net) == dict.fromkeys("abc", mean + 12)
    assert buckets(net) == [["a"], ["b"], ["c"]]


@RANKS
def test_a_search_for_unused_parameters_or_a_hook_keeps_the_first_plan(group) -> None:
    searching = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS, find_unused_parameters=True)
    hooked = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS)
    hooked.register_comm_hook(None, allreduce_hook)
    for net in (searching, hooked):
        for _ in range(2):
            net.zero_grad()
            in_order(net, "abc", 12.0 * group.rank).backward()
            assert gradients(net) == dict.fromkeys("abc", 12 * (group.size() - 1) / 2)
        assert buckets(net) == [["c"], ["b"], ["a"]]
        assert not net.reducer.rebuilt


@RANKS
@pytest.mark.parametrize("in_context", [False, True], ids=["uneven", "join"])
def test_a_rank_without_data_in_the_first_step(group, in_context) -> None:
    """It takes part in the new plan all the same, and the news of the end of data is not lost."""
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=TINY_BUCKETS)
    own = [12.0] * (0 if group.rank == 0 else 1 + group.rank)
    steps = 0
    if in_context:
        with net.join(divide_by_initial_world_size=False):
            for value in own:
                net.zero_grad()
                in_order(net, "abc", value).backward()
                assert gradients(net) == dict.fromkeys("abc", 12)
    else:
        for value in ddp.uneven(own, net):
            net.zero_grad()
            in_order(net, "abc", value).backward()
            assert gradients(net) == dict.fromkeys("abc", 12)
            steps += 1
        assert steps == group.size()
    found = buckets(net)
    assert group.exchange(found) == [found] * group.size()


@RANKS
def test_a_failed_backward_leaves_the_plan_for_the_next(group) -> None:
    net = DistributedDataParallel(Weights(*"ab"), bucket_cap_mb=TINY_BUCKETS)

    def refuse(gradient: engine.Tensor) -> None:
        raise ValueError("no")

    handle = net.module.b.register_hook(refuse) if group.rank == 0 else None
    with pytest.raises((ValueError, RuntimeError), match=r"no|ended the backward of rank 0"):
        in_order(net, "ab", 12.0).backward()
    assert buckets(net) == [["b"], ["a"]]
    if handle is not None:
        handle.remove()
    net.zero_grad()
    in_order(net, "ab", 12.0 * group.rank).backward()
    assert gradients(net) == dict.fromkeys("ab", 12 * (group.size() - 1) / 2)
    assert buckets(net) == [["a"], ["b"]]
