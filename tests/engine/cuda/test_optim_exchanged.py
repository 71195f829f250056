"""On a GPU, what is exchanged between two steps of an optimizer is used, though a step looks at little."""

from collections.abc import Callable

import pytest

import engine
from tests.engine.optim.exchanges import Training, check, every_case

pytestmark = pytest.mark.filterwarnings("ignore::engine.reports.layout_report.LayoutWarning")  # some are meant


@every_case
def test_what_is_exchanged_is_used(cuda: engine.device, change: Callable[[Training], None]) -> None:
    check(change, cuda)


def test_moved_to_a_gpu(cuda: engine.device) -> None:
    def move(training: Training) -> None:
        training.where = cuda
        for each in training.parameters:
            gradient, each.grad = each.grad, None
            each.data = each.data.to(cuda)
            each.grad = gradient.to(cuda)

    check(move, engine.device("cpu"))
