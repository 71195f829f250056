"""A step that finds nothing exchanged since the last one looks at little: what is exchanged is used all the same."""

from collections.abc import Callable
from weakref import ref

import pytest

import engine
from tests.engine.optim.exchanges import (
    Training,
    another_gradient,
    another_group,
    check,
    every_case,
    gradient_laid_out_otherwise,
    options,
    options_that_change_inside,
    standing_or_new,
)

pytestmark = pytest.mark.filterwarnings("ignore::engine.reports.layout_report.LayoutWarning")  # some are meant


@standing_or_new
@every_case
def test_on_the_cpu(change: Callable[[Training], None], standing: bool) -> None:
    check(change, engine.device("cpu"), standing)


# --- that it is seen at all -------------------------------------------------------------------------------------------


def repeats(training: Training) -> bool:
    group = training.optimizer.param_groups[0]
    plan = training.optimizer._plans[id(group)]
    return plan.repeats(training.optimizer, group) and plan.has_same_kinds([each.grad for each in group["params"]])


def test_what_is_usual_repeats() -> None:
    training = Training(engine.device("cpu"), slowly=False)
    for _ in range(3):
        training.step()
    assert repeats(training)
    training.optimizer.zero_grad()
    (training.parameters[0].sum() + training.parameters[1].sum() * 2).backward()
    assert not repeats(training)
    for each in training.parameters:
        each.grad = engine.ones_like(each)
    assert repeats(training)


def test_gradients_that_stand_are_not_looked_up_again() -> None:
    for standing in (True, False):
        training = Training(engine.device("cpu"), slowly=False, standing=standing)
        for _ in range(3):
            training.step()
        (plan,) = training.optimizer._plans.values()
        assert plan.has_same_gradients() is standing


def test_no_gradient_is_kept_alive() -> None:
    training = Training(engine.device("cpu"), slowly=False)
    for _ in range(3):
        training.step()
    arrays = [ref(each.grad.numpy()) for each in training.parameters]
    training.optimizer.zero_grad()
    assert not any(array() is not None for array in arrays)


@every_case
def test_what_is_exchanged_does_not_repeat(change: Callable[[Training], None]) -> None:
    training = Training(engine.device("cpu"), slowly=False)
    for _ in range(3):
        training.step()
    assert repeats(training)
    plans = dict(training.optimizer._plans)
    change(training)
    gradients = (another_gradient, gradient_laid_out_otherwise)
    of_groups = (options, options_that_change_inside, another_group)
    if training.optimizer._plans == plans and change not in gradients + of_groups:
        assert not repeats(training)
