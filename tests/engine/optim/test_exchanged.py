"""A step that finds nothing exchanged since the last one looks at little: what is exchanged is used all the same."""

from collections.abc import Callable

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
)

pytestmark = pytest.mark.filterwarnings("ignore::engine.reports.layout_report.LayoutWarning")  # some are meant


@every_case
def test_on_the_cpu(change: Callable[[Training], None]) -> None:
    check(change, engine.device("cpu"))


# --- that it is seen at all -------------------------------------------------------------------------------------------


def repeats(training: Training) -> bool:
    group = training.optimizer.param_groups[0]
    kinds = [type(each.grad) for each in group["params"]]
    return training.optimizer._plans[id(group)].repeats(training.optimizer, group, kinds)


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


@every_case
def test_what_is_exchanged_does_not_repeat(change: Callable[[Training], None]) -> None:
    training = Training(engine.device("cpu"), slowly=False)
    for _ in range(3):
        training.step()
    assert repeats(training)
    plans = dict(training.optimizer._plans)
    change(training)
    gradients_and_options = (another_gradient, gradient_laid_out_otherwise, options, another_group)
    if training.optimizer._plans == plans and change not in gradients_and_options:
        assert not repeats(training)
