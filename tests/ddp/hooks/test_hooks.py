"""Communication hooks, and means weighted by rank."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel, Future, GradBucket
from ddp.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from ddp.hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from tests.ddp.models import TASKS, Weights, batch, build, gradients, loss_of, mean

RANKS = pytest.mark.mpi(ranks=[1, 2, 3])
VIEWS = pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
TINY_BUCKETS = 1e-5  # MiB: every parameter has a bucket of its own
DTYPES = {"float16": engine.float16, "bfloat16": engine.bfloat16}


def with_hook(hook: Any, *names: str, state: Any = None, **options: Any) -> DistributedDataParallel:
    net = DistributedDataParallel(Weights(*names), **options)
    net.register_comm_hook(state, hook)
    return net


# --- hooks that are there ---------------------------------------------------------------------------------------------


@RANKS
@VIEWS
@pytest.mark.parametrize("task", TASKS)
def test_allreduce_hook_gives_the_bits_of_no_hook(group, task, as_view) -> None:
    """H7: with views, copies, one bucket and many."""
    nets = [
        DistributedDataParallel(build(TASKS[task], engine.float32), bucket_cap_mb=cap, gradient_as_bucket_view=as_view)
        for cap in (None, 0.001)
    ]
    nets[1].register_comm_hook(None, allreduce_hook)
    inputs, targets = batch(TASKS[task], engine.float32, 0)
    share = slice(group.rank, None, group.size())
    for _ in range(2):
        for net in nets:
            loss_of(net, inputs[share], targets[share]).backward()
    for plain, hooked in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert plain.grad.numpy().tobytes() == hooked.grad.numpy().tobytes()
        assert plain.grad.stride() == hooked.grad.stride()


@RANKS
@pytest.mark.parametrize("name", list(DDPCommHookType.__members__))
def test_hooks_by_pytorchs_names(group, name) -> None:
    net = DistributedDataParallel(Weights("a"))
    register_ddp_comm_hook(DDPCommHookType[name], net, None)
    net(a=2.0 * group.rank).backward()
    averaged = mean(group, lambda rank: 2 * rank)
    assert gradients(net)["a"] == pytest.approx(2.0 * group.rank if name == "NOOP" else averaged, abs=0.02)


@RANKS
def test_pytorchs_built_in_hooks_and_one_that_calls_the_group(group) -> None:
    def averaged(state: ddp.ProcessGroup, bucket: GradBucket) -> Future[engine.Tensor]:
        shared = state.allreduce([bucket.buffer() / state.size()]).get_future()
        return shared.then(lambda future: future.value()[0])

    for kind in ddp.BuiltinCommHookType:
        net = DistributedDataParallel(Weights("a"))
        net._register_builtin_comm_hook(kind)
        net(a=6.0 * group.rank).backward()
        assert gradients(net) == {"a": mean(group, lambda rank: 6 * rank)}
    net = with_hook(averaged, "a", state=group)
    net(a=6.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda rank: 6 * rank)}


@RANKS
@VIEWS
@pytest.mark.parametrize(
    "hook",
    [allreduce_hook, fp16_compress_hook, bf16_compress_hook, fp16_compress_wrapper(allreduce_hook)],
    ids=["allreduce", "fp16", "bf16", "wrapped"],
)
def test_with_a_hook_the_rule_is_the_same(group, hook, as_view) -> None:
    """A2: Unused parameters, accumulation, gradients that stay: as without."""
    net = with_hook(hook, "a", "b", "c", gradient_as_bucket_view=as_view)
    with net.no_sync():
        net(a=12 * group.rank).backward()
    net(**({"b": 12} if group.rank else {"b": 12, "c": 24})).backward()
    expected = {"a": mean(group, lambda r: 12 * r), "b": 12, "c": mean(group, lambda r: 24 * (r == 0))}
    assert gradients(net) == expected
    net.zero_grad()
    net(b=24 * group.rank).backward()
    assert gradients(net) == {"a": None, "b": mean(group, lambda r: 24 * r), "c": None}


@RANKS
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["hook", "wrapper"])
def test_compressed_gradients_are_rounded_before_and_after_the_mean(group, name, wrapped) -> None:
    hooks = {
        "float16": (fp16_compress_hook, fp16_compress_wrapper(allreduce_hook)),
        "bfloat16": (bf16_compress_hook, bf16_compress_wrapper(allreduce_hook)),
    }
    net = DistributedDataParallel(nn.Linear(40, 3, bias=False))
    net.register_comm_hook(None, hooks[name][wrapped])
    inputs = [np.random.default_rng(rank).standard_normal((1, 40)).astype(np.float32) for rank in range(group.size())]
    net(engine.from_numpy(inputs[group.rank])).sum().backward()
    half = DTYPES[name].numpy
    total = np.zeros((1, 40), np.float32)
    for each in inputs:
        total += each.astype(half).astype(np.float32)
    expected = (total / np.float32(group.size())).astype(half).astype(np.float32)
    assert np.array_equal(net.module.weight.grad.numpy(), np.repeat(expected, 3, 0))


# --- hooks of the user ------------------------------------------------------------------------------------------------


@RANKS
def test_a_hook_by_collectives_and_then(group) -> None:
    """The sum over the ranks, as nobody divides it."""

    def sum_hook(state: Any, bucket: GradBucket) -> Future[engine.Tensor]:
        work = ddp.all_reduce(bucket.buffer(), group=state, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    net = with_hook(sum_hook, "a", "b", state=group, bucket_cap_mb=TINY_BUCKETS)
    net(a=12, b=group.rank).backward()
    count = group.size()
    assert gradients(net) == {"a": 12 * count, "b": count * (count - 1) / 2}


@RANKS
@VIEWS
def test_what_the_future_holds_becomes_the_gradients(group, as_view) -> None:
    """H1: and nothing else."""

    def hook(state: Any, bucket: GradBucket) -> Future[engine.Tensor]:
        future: Future[engine.Tensor] = Future()
        future.set_result(engine.ones_like(bucket.buffer()))
        return future.then(lambda done: done.value() + engine.ones_like(done.value()))

    net = with_hook(hook, "a", gradient_as_bucket_view=as_view)
    net(a=12 * group.rank).backward()
    assert gradients(net) == {"a": 2}


@RANKS
def test_what_a_hook_is_given(group) -> None:
    """H29: Buckets in order; parameters with their gradients, in their own strides."""
    seen = []

    def hook(state: list[Any], bucket: GradBucket) -> Future[engine.Tensor]:
        state.append((bucket.index(), bucket.is_last()))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            assert gradient.shape == parameter.shape
            assert gradient.stride() == parameter.stride()
            assert gradient.untyped_storage().data_ptr() == bucket.buffer().untyped_storage().data_ptr()
            gradient.mul_(10)
        assert bucket.buffer().dim() == 1
        return bucket.average()

    net = DistributedDataParallel(build(TASKS["cnn"], engine.float32), bucket_cap_mb=0.001)
    net.register_comm_hook(seen, hook)
    other = DistributedDataParallel(build(TASKS["cnn"], engine.float32))
    inputs, targets = batch(TASKS["cnn"], engine.float32, 0)
    for each in (net, other):
        loss_of(each, inputs, targets).backward()
    count = len(net.reducer.buckets.sizes())
    assert count > 2
    assert seen == [(index, index == count - 1) for index in range(count)]
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert engine.allclose(mine.grad, theirs.grad * 10, rtol=1e-5, atol=1e-7)


@RANKS
def test_hooks_that_are_refused(group) -> None:
    """H2, H4: what cannot be called or says it is something else; a second one."""
    net = DistributedDataParallel(Weights("a"))
    with pytest.raises(TypeError, match="Communication hook must be callable"):
        net.register_comm_hook(None, "sum")

    def wrong_bucket(state: Any, bucket: int) -> Future[engine.Tensor]:
        raise AssertionError

    def wrong_return(state: Any, bucket: GradBucket) -> int:
        raise AssertionError

    for hook, what in ((wrong_bucket, "bucket annotation should be GradBucket"), (wrong_return, "return annotation")):
        with pytest.raises(ValueError, match=what):
            net.register_comm_hook(None, hook)
    net.register_comm_hook(None, allreduce_hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        net.register_comm_hook(None, allreduce_hook)
    net(a=12 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (engine.zeros(3), r"must return a Future\[Tensor\], but got Tensor"),
        (Future(lambda: 5), "expected the future of a Tensor of 3 elements, got int"),
        (Future(lambda: engine.zeros(7)), r"expected the future of a Tensor of 3 elements, got \[7\]"),
        (Future(), "nobody has called set_result"),
    ],
    ids=["tensor", "number", "size", "never"],
)
def test_wrong_results(group, result, words) -> None:
    """H3: no future, no tensor, another size, never."""
    net = with_hook(lambda state, bucket: result, "a")
    with pytest.raises(RuntimeError, match=words):
        net(a=12).backward()


# --- weights ----------------------------------------------------------------------------------------------------------


@RANKS
@VIEWS
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hook"])
def test_ranks_with_unequal_batches_are_one_process_with_all_samples(group, as_view, hooked) -> None:
    """Means over 1, 2, 3 samples, weighted by the number of samples; the gradient accumulated in two parts as well."""
    alone = build(TASKS["mlp"], engine.float64)
    net = DistributedDataParallel(build(TASKS["mlp"], engine.float64), gradient_as_bucket_view=as_view)
    if hooked:
        net.register_comm_hook(None, allreduce_hook)
    inputs, targets = batch(TASKS["mlp"], engine.float64, 0)
    bounds = [0, 2, 6, 12]
    bounds = [*bounds[: group.size()], 12]
    mine = slice(bounds[group.rank], bounds[group.rank + 1])
    loss_of(alone, inputs, targets).backward()
    own = mine.stop - mine.start
    net.set_gradient_weight(own)
    half = slice(mine.start, mine.start + own // 2)
    rest = slice(half.stop, mine.stop)
    for parts in ([mine], [half, rest]):
        net.zero_grad()
        for part in parts[:-1]:
            with net.no_sync():
                share = (part.stop - part.start) / own
                (loss_of(net, inputs[part], targets[part]) * share).backward()
        share = (parts[-1].stop - parts[-1].start) / own
        (loss_of(net, inputs[parts[-1]], targets[parts[-1]]) * share).backward()
        for expected, parameter in zip(alone.parameters(), net.parameters(), strict=True):
            assert engine.allclose(parameter.grad, expected.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.mpi(ranks=[2, 3])
def test_weights(group) -> None:
    net = DistributedDataParallel(Weights("a", "b"))
    weights = [3.0, 0.0, 1.0][: group.size()]
    net.set_gradient_weight(weights[group.rank])
    value = float("nan") if group.rank == 1 else 12.0 * group.rank  # of weight 0: not looked at
    net(a=value, b=12).backward()
    total = sum(weight * 12.0 * rank for rank, weight in enumerate(weights)) / sum(weights)
    assert gradients(net) == {"a": total, "b": 12}
    # a gradient that nobody zeroed stays what it is, whatever the weights
    net(b=24 * group.rank).backward()
    assert gradients(net)["b"] == 12 + sum(weight * 24.0 * rank for rank, weight in enumerate(weights)) / sum(weights)
    net.set_gradient_weight(1)
    net.zero_grad()
    net(a=12 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": None}


@pytest.mark.mpi(ranks=[1, 2])
def test_weights_that_are_refused(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    for weight in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="expected a finite weight of at least 0, got"):
            net.set_gradient_weight(weight)
    net.set_gradient_weight(0)
    with pytest.raises(ValueError, match="all ranks have weight 0"):
        net(a=12).backward()


# --- exceptions -------------------------------------------------------------------------------------------------------


@pytest.mark.mpi(ranks=[2, 3])
def test_with_a_hook_a_rank_that_survives_its_exception_tells_the_others(group) -> None:
    net = with_hook(allreduce_hook, "a", "b", bucket_cap_mb=TINY_BUCKETS)
    handle = net.module.a.register_hook(partial(fail_on, group.rank == 1))
    loss = net(a=12, b=12)
    with pytest.raises(ArithmeticError if group.rank == 1 else RuntimeError, match=r"not today|the backward of rank 1"):
        loss.backward()
    handle.remove()
    net.zero_grad()
    net(a=12 * group.rank, b=12).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 12}


def fail_on(fails: bool, gradient: engine.Tensor) -> None:
    if fails:
        raise ArithmeticError("not today")
