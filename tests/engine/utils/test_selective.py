"""Checkpoints that keep the results of some operators."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

import engine
from engine import nn
from engine.ops import aten
from engine.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

WEIGHT = engine.arange(12.0).reshape(3, 4) / 10


def block(x: Any) -> Any:
    """A product, an activation, another product of it; the middle is saved for backward."""
    return ((x @ WEIGHT).exp().sin() @ WEIGHT.t()).square()


def run(context_fn: Any = None) -> tuple[Any, Counter[str]]:
    """The gradient of x, and the kernels that the backward ran."""
    x = (engine.ones(2, 3) / 3).requires_grad_()
    options = {} if context_fn is None else {"context_fn": context_fn}
    out = checkpoint(block, x, use_reentrant=False, **options)
    with engine.trace() as calls:
        out.sum().backward()
    return x.grad, Counter(call.operator for call in calls.calls if call.key == "CPU")


def contexts(policy: Any) -> Any:
    return partial(create_selective_checkpoint_contexts, policy)


def test_what_is_kept_is_not_computed_again() -> None:
    gradient, ran = run()
    kept_gradient, kept = run(contexts([aten.mm.default, aten.exp]))
    assert kept_gradient.equal(gradient)
    assert ran["exp"] == 1
    assert kept["exp"] == 0
    assert ran["mm"] - kept["mm"] == 2
    assert kept["sin"] == ran["sin"]


def test_a_policy_is_asked_in_the_first_run() -> None:
    asked: list[tuple[Any, ...]] = []

    def policy(ctx: Any, operator: Any, *inputs: Any) -> CheckpointPolicy:
        assert not ctx.is_recompute
        asked.append((repr(operator).lower(), tuple(inputs[0].shape)))
        return CheckpointPolicy.MUST_SAVE if operator == aten.sin else CheckpointPolicy.PREFER_RECOMPUTE

    gradient, ran = run(contexts(policy))
    assert gradient.equal(run()[0])
    assert ("aten.sin", (2, 4)) in asked
    assert (ran["sin"], ran["exp"]) == (0, 1)


def test_a_linear_is_addmm_and_twice_is_as_once() -> None:
    layer, x = nn.Linear(3, 3), engine.ones(2, 3, requires_grad=True)
    out = checkpoint(
        lambda value: layer(value).relu_().sin(),  # writes into what is kept, which is a copy
        x,
        use_reentrant=False,
        context_fn=contexts([aten.addmm]),
    )
    out.sum().backward(retain_graph=True)
    first = x.grad.clone()
    with engine.trace() as calls:
        out.sum().backward()
    assert x.grad.equal(2 * first)
    assert not any(call.operator in ("linear", "addmm") and call.key == "CPU" for call in calls.calls)
    plain = engine.ones(2, 3, requires_grad=True)
    layer(plain).relu().sin().sum().backward()
    assert plain.grad.equal(first)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(TypeError, match=r"expected operators as engine\.ops\.aten\.mm, got 'mm'"):
        create_selective_checkpoint_contexts(["mm"])  # type: ignore[list-item]
    with pytest.raises(NotImplementedError, match=r"aten\.mm is a name here; call engine\.mm"):
        aten.mm(WEIGHT, WEIGHT)
