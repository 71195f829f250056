"""Who looks for all optimizers or modules holds nothing that another thread is about to make: a tuple made of a
generator fails there else (SystemError), as it did beside the first call of a compiled step.
"""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import engine
from engine import nn, optim
from engine.reports import layout_report as report


@contextmanager
def a_thread_that_makes_tuples() -> Iterator[None]:
    stop, failed = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            try:
                tuple(number for number in range(50))
            except SystemError as error:
                failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed


def capture_a_step() -> None:
    weight = engine.ones(3, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.1)

    def step() -> engine.Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = engine.compile(step)
    assert [compiled().item() for _ in range(3)] == pytest.approx([3.0, 1.92, 1.2288])


def name_a_parameter() -> None:
    """The layout report looks for the module whose parameter got a gradient in another layout."""
    model = nn.ModuleDict({"turned": nn.Linear(6, 4, bias=False)})
    weight = model["turned"].weight
    optimizer = optim.SGD([weight], lr=0.1)
    (weight.t() * engine.full((6, 4), 2.0)).sum().backward()
    with pytest.warns(engine.LayoutWarning, match=r"gradient of turned\.weight \[4, 6\]"):
        optimizer.step()


@pytest.mark.parametrize("look", [capture_a_step, name_a_parameter])
def test_tuples_that_another_thread_makes_are_not_held(look: Callable[[], None]) -> None:
    report.reset()
    try:
        with a_thread_that_makes_tuples():
            for _ in range(10):
                look()
    finally:
        report.reset()


def test_copies_of_modules_and_optimizers_are_found_as_well() -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    twin, other = copy.deepcopy((model, optimizer))
    assert {id(model), id(twin)} <= set(report.owners)
    assert {id(optimizer), id(other)} <= {id(each) for each in optim.optimizer.living()}
    gone = id(twin), id(other)
    del twin, other
    assert not {gone[0]} & set(report.owners)
    assert gone[1] not in {id(each) for each in optim.optimizer.living()}
