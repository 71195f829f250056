"""After backward, `.grad` is the mean over the ranks of what it was on each: in every order of use, with exact numbers.

Gradients are multiples of 12, so that a mean over 2, 3 or 4 ranks is a whole number.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.transport.counting import CountingTransport
from engine.autograd import Function
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])
VIEWS = pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
UNUSED = pytest.mark.parametrize("find_unused", [False, True], ids=["wait", "search"])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own


def wrap(*names: str, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Weights(*names), **options)


# --- overlap ---------------------------------------------------------------------------------------------------------


@pytest.mark.mpi(ranks=[1, 2])
def test_buckets_under_way_are_moved_on_by_the_gradients_that_come_meanwhile(group, monkeypatch) -> None:
    """Else a transport that moves on only when it is polled would begin at the end of backward."""
    transport = CountingTransport(group.transport.independent())
    monkeypatch.setattr(group, "_transport", transport)
    net = wrap(*"abcdef", bucket_cap_mb=24 / 2**20)  # two parameters each
    assert [bucket.names for bucket in net.reducer.buckets.all] == [["f", "e"], ["d", "c"], ["b", "a"]]
    seen: list[tuple[str, int, int]] = []
    for name, parameter in net.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: seen.append((name, len(transport.started), transport.polls))
        )
    for _ in range(2):
        seen.clear()
        transport.started.clear()
        transport.polls = 0
        net.zero_grad()
        net(**dict.fromkeys("abcdef", 12.0)).backward()
        # a gradient that fills its bucket starts it, any other one polls while something is under way
        assert seen == [("f", 0, 0), ("e", 0, 0), ("d", 1, 0), ("c", 1, 1), ("b", 2, 1), ("a", 2, 2)]
        assert (len(transport.started), transport.polls) == (3, 2)


# --- accumulation -----------------------------------------------------------------------------------------------------


@RANKS
@VIEWS
def test_accumulation_under_no_sync_is_one_big_batch(group, as_view) -> None:
    """A1: of each rank, averaged once at the end."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    for round_ in range(2):
        net.zero_grad()
        with net.no_sync():
            for part in range(3):
                net(a=12 * (group.rank + part)).backward()
        assert gradients(net)["a"] == 12 * (3 * group.rank + 3)
        net(a=12, b=24 * group.rank).backward()
        expected = {"a": mean(group, lambda r: 12 * (3 * r + 3) + 12), "b": mean(group, lambda r: 24 * r)}
        assert gradients(net) == expected, round_


@RANKS
@VIEWS
def test_no_sync_counts_where_backward_runs(group, as_view) -> None:
    """A26: not where forward ran."""
    net = wrap("a", gradient_as_bucket_view=as_view)
    with net.no_sync():
        loss = net(a=12 * group.rank)
    loss.backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}
    net.zero_grad()
    loss = net(a=12 * group.rank)
    with net.no_sync():
        loss.backward()
        with net.no_sync():
            assert not net.require_backward_grad_sync
        assert not net.require_backward_grad_sync
    assert net.require_backward_grad_sync
    assert gradients(net) == {"a": 12 * group.rank}


@RANKS
@VIEWS
def test_what_was_accumulated_locally_is_averaged_later_even_if_unused_then(group, as_view) -> None:
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    with net.no_sync():
        net(a=12 * group.rank).backward()
    net(b=24).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 24}


@RANKS
@VIEWS
@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_was_accumulated_and_then_zeroed_is_gone(group, as_view, set_to_none) -> None:
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    with net.no_sync():
        net(a=12, b=12).backward()
    net.zero_grad(set_to_none=set_to_none)
    net(b=24 * group.rank).backward()
    assert gradients(net) == {"a": None if set_to_none else 0, "b": mean(group, lambda r: 24 * r)}


@RANKS
@VIEWS
def test_gradients_that_nobody_zeroed_are_added_to(group, as_view) -> None:
    net = wrap("a", gradient_as_bucket_view=as_view)
    total = 0.0
    for step in range(3):
        net(a=12 * group.rank + step).backward()
        total += mean(group, lambda r: 12 * r) + step
        assert gradients(net) == {"a": total}


@RANKS
@VIEWS
def test_zeroed_gradients(group, as_view) -> None:
    """A23: to None or to zeros, in every order."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    for set_to_none in (True, False, True, False, False):
        net(a=12 * group.rank, b=24).backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 24}
        net.zero_grad(set_to_none=set_to_none)
        assert gradients(net) == dict.fromkeys("ab", None if set_to_none else 0)


@RANKS
@VIEWS
def test_two_backwards_of_one_forward_are_both_averaged(group, as_view) -> None:
    net = wrap("a", gradient_as_bucket_view=as_view)
    loss = net(a=12 * group.rank)
    loss.backward(retain_graph=True)
    loss.backward()
    assert gradients(net) == {"a": 2 * mean(group, lambda r: 12 * r)}


@RANKS
@VIEWS
def test_two_forwards(group, as_view) -> None:
    """A25: one backward of both, or one of each."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    (net(a=12 * group.rank) + net(a=24, b=12)).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r) + 24, "b": 12}
    net.zero_grad()
    first, second = net(a=12 * group.rank), net(a=24, b=12)
    first.backward()
    second.backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r) + 24, "b": 12}


@RANKS
def test_a_forward_whose_output_is_ignored(group) -> None:
    """U12: or without gradients."""
    net = wrap("a")
    net(a=12)
    with engine.no_grad():
        net(a=12)
    net(a=12 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


# --- gradients that the user handles ----------------------------------------------------------------------------------


@RANKS
@VIEWS
def test_assigned_gradients_take_part(group, as_view) -> None:
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    for _ in range(2):
        net.module.a.grad = engine.full((3,), 12.0 * group.rank)
        net.module.b.grad = None
        net(a=24, b=24 * group.rank).backward()
        assert gradients(net) == {"a": mean(group, lambda r: 12 * r) + 24, "b": mean(group, lambda r: 24 * r)}
        shares_memory = net.module.a.grad.untyped_storage().data_ptr() == net.module.b.grad.untyped_storage().data_ptr()
        assert shares_memory == as_view


@RANKS
@VIEWS
def test_hooks_see_local_gradients_and_may_change_or_drop_them(group, as_view) -> None:
    """H32: what they leave is averaged."""
    net = wrap("a", "b", "c", gradient_as_bucket_view=as_view)
    seen = []

    def look(parameter: engine.Tensor) -> None:
        seen.append(parameter.grad.tolist())
        parameter.grad.mul_(10)

    def drop(parameter: engine.Tensor) -> None:
        if group.rank == 0:
            parameter.grad = None

    net.module.a.register_post_accumulate_grad_hook(look)
    net.module.b.register_post_accumulate_grad_hook(drop)
    net.module.c.register_hook(lambda gradient: gradient * 100)
    net(a=12 * group.rank, b=12, c=12 * group.rank).backward()
    assert seen == [[12 * group.rank] * 3]
    expected = {
        "a": mean(group, lambda r: 120 * r),
        "b": mean(group, lambda r: 12 * (r > 0)),
        "c": mean(group, lambda r: 1200 * r),
    }
    assert gradients(net) == expected


@RANKS
@VIEWS
def test_backward_for_some_inputs_and_autograd_grad(group, as_view) -> None:
    """U22: the others keep None; grad() reduces nothing."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    net(a=12 * group.rank, b=12).backward(inputs=[net.module.a])
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}
    (found,) = engine.autograd.grad(net(a=12 * group.rank), [net.module.a])
    assert found.tolist() == [12 * group.rank] * 3
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}


@RANKS
def test_a_gradient_saved_for_backward_is_seen_to_have_changed(group) -> None:
    net = wrap("a")
    net(a=12).backward()
    factor = engine.ones(3).requires_grad_()
    product = (factor * net.module.a.grad).sum()
    net(a=12).backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


# --- parameters without a gradient ------------------------------------------------------------------------------------


@RANKS
@VIEWS
@UNUSED
@pytest.mark.parametrize("cap", [None, TINY_BUCKETS], ids=["one bucket", "many buckets"])
def test_unused_parameters(group, as_view, find_unused, cap) -> None:
    """U1, U5: Nowhere used: left alone. Somewhere used: everybody gets the mean, with zeros for the others."""
    net = wrap("a", "b", "c", gradient_as_bucket_view=as_view, find_unused_parameters=find_unused, bucket_cap_mb=cap)
    for _ in range(2):
        net.zero_grad()
        used = {"b": 12} if group.rank else {"b": 12, "c": 24}
        net(**used).backward()
        assert gradients(net) == {"a": None, "b": 12, "c": mean(group, lambda r: 24 * (r == 0))}


@RANKS
@VIEWS
@UNUSED
def test_a_gradient_that_nobody_touched_keeps_every_bit(group, as_view, find_unused) -> None:
    """U21: (x + x + x) / 3 is not always x: what no rank used must not be summed and divided."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view, find_unused_parameters=find_unused)
    value = 1.7014118346046923e38  # twice this is infinite
    net(a=value, b=12).backward(inputs=[net.module.b])
    net.module.a.grad = engine.full((3,), value)
    net(b=12).backward()
    assert gradients(net)["a"] == engine.tensor(value).item()
    net.zero_grad()
    net(a=0.1, b=12).backward()
    before = net.module.a.grad.tolist()
    for _ in range(3):
        net(b=12).backward()
        assert net.module.a.grad.tolist() == before


@RANKS
@VIEWS
@UNUSED
def test_a_rank_that_did_not_use_a_parameter_still_adds_its_old_gradient(group, as_view, find_unused) -> None:
    """U20: One process would hold the old gradient and add the mean of the new ones."""
    net = wrap("a", "b", gradient_as_bucket_view=as_view, find_unused_parameters=find_unused)
    net(a=12, b=12).backward()
    net(**({"b": 12} if group.rank else {"a": 24, "b": 12})).backward()
    assert gradients(net) == {"a": 12 + mean(group, lambda r: 24 * (r == 0)), "b": 24}


@RANKS
@VIEWS
def test_frozen_after_wrapping(group, as_view) -> None:
    net = wrap("a", "b", gradient_as_bucket_view=as_view)
    net.module.a.requires_grad_(False)
    net(a=12, b=12 * group.rank).backward()
    assert gradients(net) == {"a": None, "b": mean(group, lambda r: 12 * r)}
    net.module.a.requires_grad_(True)
    net(a=12 * group.rank, b=12).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": mean(group, lambda r: 12 * r) + 12}


@RANKS
def test_loss_that_uses_no_parameter_of_one_bucket_on_some_ranks(group) -> None:
    net = wrap(*"abcd", bucket_cap_mb=TINY_BUCKETS)
    names = "abcd"[: group.rank + 1]
    net(**dict.fromkeys(names, 12)).backward()
    assert gradients(net) == {
        name: mean(group, lambda r, name=name: 12 * (name in "abcd"[: r + 1]))
        if name in "abcd"[: group.size()]
        else None
        for name in "abcd"
    }


@RANKS
@UNUSED
def test_outputs_that_the_loss_leaves_out(group, find_unused) -> None:
    """U9: In any container: what counts is which parameters backward reaches."""

    class Two(Weights):
        def forward(self) -> Any:
            return {"first": [self.a.sum() * 12], "second": (self.b.sum() * 12, object())}

    net = DistributedDataParallel(Two("a", "b"), find_unused_parameters=find_unused)
    outputs = net()
    (outputs["first"][0] if group.rank == 0 else outputs["second"][0]).backward()
    count = group.size()
    assert gradients(net) == {"a": 12 / count, "b": 12 * (count - 1) / count}


# --- parameters with several gradients --------------------------------------------------------------------------------


@RANKS
@VIEWS
def test_a_parameter_used_twice_or_under_two_names(group, as_view) -> None:
    """D32: one gradient, averaged once."""

    class Tied(Weights):
        def __init__(self) -> None:
            super().__init__("a")
            self.b = self.a

        def forward(self, factor: float) -> engine.Tensor:
            return (self.a * factor).sum() + (self.b * factor).sum() + (self.a * 12).sum()

    net = DistributedDataParallel(Tied(), gradient_as_bucket_view=as_view)
    net(12 * group.rank).backward()
    assert gradients(net) == {"a": 2 * mean(group, lambda r: 12 * r) + 12}


class Checkpoint(Function):
    """A re-entrant checkpoint: backward runs `compute` again, and a backward of its own."""

    @staticmethod
    def forward(ctx: Any, trigger: engine.Tensor, compute: Callable[[], engine.Tensor]) -> engine.Tensor:
        ctx.compute = compute
        return compute()

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> tuple[engine.Tensor, None]:
        with engine.enable_grad():
            loss = ctx.compute()
        loss.backward(gradient)
        return engine.zeros(()), None


def scaled_sum(weight: engine.Tensor, factor: float) -> engine.Tensor:
    return (weight * factor).sum()


class Checkpointed(Weights):
    """Uses each parameter in as many re-entrant checkpoints as it is told."""

    def forward(self, factor: float, **times: int) -> engine.Tensor:
        trigger = engine.zeros(()).requires_grad_()
        uses = [
            Checkpoint.apply(trigger, partial(scaled_sum, getattr(self, name), factor))
            for name in times
            for _ in range(times[name])
        ]
        return sum(uses) + (self.c * factor).sum()


@RANKS
@VIEWS
def test_reentrant_checkpoints(group, as_view) -> None:
    """A12: each parameter in one of them."""
    net = DistributedDataParallel(Checkpointed(*"abc"), gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_BUCKETS)
    for _ in range(2):
        net.zero_grad()
        net(12 * group.rank, a=1, b=1).backward()
        assert gradients(net) == dict.fromkeys("abc", mean(group, lambda r: 12 * r))


@RANKS
def test_several_reentrant_checkpoints_of_one_parameter_need_a_static_graph(group) -> None:
    """A14: the error names the parameter."""
    net = DistributedDataParallel(Checkpointed(*"abc"), bucket_cap_mb=TINY_BUCKETS)
    with pytest.raises(RuntimeError, match=r"another gradient of parameter 'a' came after .* static_graph=True"):
        net(12, a=2, b=1).backward()


@RANKS
@VIEWS
def test_static_graph(group, as_view) -> None:
    """A7, A14: as often as in the first step, or an error."""
    net = DistributedDataParallel(
        Checkpointed(*"abcd"), bucket_cap_mb=TINY_BUCKETS, static_graph=True, gradient_as_bucket_view=as_view
    )
    expected = mean(group, lambda r: 12 * r)
    for _ in range(3):
        net.zero_grad()
        net(12 * group.rank, a=2, b=1).backward()
        assert gradients(net) == {"a": 2 * expected, "b": expected, "c": expected, "d": None}
    with pytest.raises(RuntimeError, match=r"parameter 'a' .* the graph is not static"):
        net(12, a=3, b=1).backward()


@RANKS
def test_find_unused_parameters_does_not_see_into_reentrant_checkpoints(group) -> None:
    """A13: the error says so."""
    net = DistributedDataParallel(Checkpointed(*"abc"), bucket_cap_mb=TINY_BUCKETS, find_unused_parameters=True)
    with pytest.raises(RuntimeError, match=r"parameter 'a' .* find_unused_parameters was set"):
        net(12, a=1).backward()


@RANKS
@VIEWS
def test_create_graph(group, as_view) -> None:
    """A22: a penalty on the averaged gradient: `.grad` has a history, and its derivative is exact."""

    class Squares(Weights):
        def forward(self, factor: float) -> engine.Tensor:
            return (self.a * self.a * factor).sum() / 2  # gradient: factor * a

    net = DistributedDataParallel(Squares("a"), gradient_as_bucket_view=as_view)
    with engine.no_grad():
        net.module.a.fill_(2.0)
    with pytest.warns(UserWarning, match="create_graph"):
        net(12 * group.rank).backward(create_graph=True)
    average = mean(group, lambda r: 12 * r)
    gradient = net.module.a.grad
    assert gradient.requires_grad
    assert gradient.tolist() == [2 * average] * 3
    net.zero_grad()
    (gradient * gradient).sum().backward()  # d/da of (average * a)^2
    assert gradients(net) == {"a": 2 * average * average * 2}


# --- several wrapped modules ------------------------------------------------------------------------------------------


@RANKS
@UNUSED
@pytest.mark.parametrize("transport", ["shared", "mpi"])
def test_several_wrapped_modules_in_one_graph(group, transport, find_unused, monkeypatch) -> None:
    """Backward reaches them in another order on each rank, and on some not at all of their parameters."""
    from ddp.transport import TRANSPORTS

    monkeypatch.setattr(group, "_transport", TRANSPORTS[transport](group.comm))
    options = {"bucket_cap_mb": TINY_BUCKETS, "find_unused_parameters": find_unused}
    nets = [wrap("a", "b", **options) for _ in range(3)]
    for _ in range(3):
        losses = [
            net(**({"a": 12 * group.rank} if (index + group.rank) % 3 else {"a": 12 * group.rank, "b": 12}))
            for index, net in enumerate(nets)
        ]
        order = [(index + group.rank) % 3 for index in range(3)]
        for net in nets:
            net.zero_grad()
        sum(losses[index] for index in order).backward()
        for index, net in enumerate(nets):
            users = [(index + rank) % 3 == 0 for rank in range(group.size())]
            b = 12 * sum(users) / group.size() if any(users) else None
            assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": b}


@RANKS
def test_a_chain_of_wrapped_modules(group) -> None:
    first, second = (DistributedDataParallel(nn.Linear(3, 3)) for _ in range(2))
    third = DistributedDataParallel(nn.Linear(3, 3))
    alone = [nn.Linear(3, 3) for _ in range(3)]
    for net, other in zip((first, second, third), alone, strict=True):
        other.load_state_dict(net.module.state_dict())
    data = engine.arange(12.0 * 3).reshape(12, 3)
    third(second(first(data[group.rank :: group.size()])).tanh()).square().mean().backward()
    alone[2](alone[1](alone[0](data)).tanh()).square().mean().backward()
    for net, other in zip((first, second, third), alone, strict=True):
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            assert engine.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5 * theirs.grad.abs().max().item())


# --- exceptions that somebody catches ---------------------------------------------------------------------------------


class Fail(Function):
    """Raises in backward, if told so."""

    @staticmethod
    def forward(ctx: Any, value: engine.Tensor, fails: bool) -> engine.Tensor:
        ctx.fails = fails
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> tuple[engine.Tensor, None]:
        if ctx.fails:
            raise ArithmeticError("not today")
        return gradient, None


class Failing(Weights):
    """backward reaches b, then fails if told so, else reaches a."""

    def forward(self, factor: float, fails: bool) -> engine.Tensor:
        return Fail.apply((self.a * factor).sum(), fails) + (self.b * factor).sum()


@RANKS
@VIEWS
def test_after_an_exception_on_every_rank_training_goes_on(group, as_view) -> None:
    """H31: without a reset."""
    net = DistributedDataParallel(Failing("a", "b"), bucket_cap_mb=TINY_BUCKETS, gradient_as_bucket_view=as_view)
    for fails in (True, False, True, True, False):
        net.zero_grad()
        loss = net(12 * group.rank, fails)
        if fails:
            with pytest.raises(ArithmeticError, match="not today"):
                loss.backward()
        else:
            loss.backward()
            assert gradients(net) == dict.fromkeys("ab", mean(group, lambda r: 12 * r))


@RANKS
def test_a_rank_that_survives_its_exception_tells_the_others(group) -> None:
    net = DistributedDataParallel(Failing("a", "b"), bucket_cap_mb=TINY_BUCKETS)
    loss = net(12, group.rank == 1)
    if group.rank == 1:
        with pytest.raises(ArithmeticError):
            loss.backward()
        loss = net(12 * group.rank, False)
    else:
        with pytest.raises(RuntimeError, match="an exception ended the backward of rank 1, so the gradients"):
            loss.backward()
        loss = net(12 * group.rank, False)
    net.zero_grad()
    loss.backward()
    assert gradients(net) == dict.fromkeys("ab", mean(group, lambda r: 12 * r))


@RANKS
def test_backward_right_after_a_failed_one_is_refused(group) -> None:
    net = DistributedDataParallel(Failing("a", "b"), bucket_cap_mb=TINY_BUCKETS)
    losses = [net(12, True), net(12, False)]
    with pytest.raises(ArithmeticError):
        losses[0].backward()
    with pytest.raises(RuntimeError, match="an exception ended the last backward"):
        losses[1].backward()
    net.zero_grad()
    net(12 * group.rank, False).backward()
    assert gradients(net) == dict.fromkeys("ab", mean(group, lambda r: 12 * r))
