"""On a GPU, what is exchanged between two steps of an optimizer is used, though a step looks at little."""

import gc
from collections.abc import Callable
from weakref import ref

import pytest

import engine
from engine.optim.cuda import Members
from tests.engine.optim.exchanges import Training, check, every_case, standing_or_new

pytestmark = pytest.mark.filterwarnings("ignore::engine.reports.layout_report.LayoutWarning")  # some are meant


@standing_or_new
@every_case
def test_what_is_exchanged_is_used(cuda: engine.device, change: Callable[[Training], None], standing: bool) -> None:
    check(change, cuda, standing)


def test_gradients_are_looked_at_where_they_are_other_tensors(
    cuda: engine.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = Members.point_at
    monkeypatch.setattr(Members, "point_at", lambda self, addresses: (looks.append(addresses), look(self, addresses)))

    def steps_that_look(training: Training) -> list[int]:
        found = []
        for step in range(6):
            looks.clear()
            training.step()
            found += [step] if looks else []
        return found

    training = Training(cuda, slowly=False, standing=True)
    assert steps_that_look(training) == [0, 1, 2]  # the second remembers the first gradient, the third all
    training.standing = False
    assert steps_that_look(training) == [0, 1, 2, 3, 4, 5]


@standing_or_new
def test_no_gradient_is_kept_alive(cuda: engine.device, standing: bool) -> None:
    training = Training(cuda, slowly=False, standing=standing)
    for _ in range(5):
        training.step()
    alive = [ref(each.grad) for each in training.parameters]
    training.optimizer.zero_grad()
    gc.collect()
    assert [each() for each in alive] == [None] * len(alive)


@standing_or_new
def test_moved_to_a_gpu(cuda: engine.device, standing: bool) -> None:
    def move(training: Training) -> None:
        training.where = cuda
        for each in training.parameters:
            gradient, each.grad = each.grad, None
            each.data = each.data.to(cuda)
            each.grad = gradient.to(cuda)

    check(move, engine.device("cpu"), standing)
