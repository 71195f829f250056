"""Switches of recording as decorators: of functions, generators and coroutines."""

import asyncio
import inspect
import threading

import pytest

import engine
from engine.autograd import grad_mode

SWITCHES = {
    "no_grad": (engine.no_grad, False),
    "no_grad()": (engine.no_grad(), False),
    "inference_mode": (engine.inference_mode, False),
    "enable_grad": (engine.enable_grad, True),
    "set_grad_enabled(False)": (engine.set_grad_enabled(False), False),
}
engine.set_grad_enabled(True)  # `set_grad_enabled(False)` above switched when it was made


@pytest.fixture(params=SWITCHES)
def switch(request):
    decorate, inside = SWITCHES[request.param]
    with engine.set_grad_enabled(not inside):
        yield decorate, inside
        assert engine.is_grad_enabled() is not inside


def test_the_lines_of_a_generator_run_within_and_the_callers_do_not(switch):
    decorate, inside = switch
    seen = []

    def generator(n):
        try:
            for i in range(n):
                seen.append(engine.is_grad_enabled())
                try:
                    received = yield i
                except KeyError as error:
                    received = error.args[0]
                seen.append((received, engine.is_grad_enabled()))
        finally:
            seen.append(engine.is_grad_enabled())
        return "done"

    made = decorate(generator)
    assert inspect.isgenerator(made(1))
    steps = made(3)
    assert next(steps) == 0
    assert engine.is_grad_enabled() is not inside
    assert steps.send("sent") == 1
    assert engine.is_grad_enabled() is not inside
    assert steps.throw(KeyError("thrown")) == 2
    assert engine.is_grad_enabled() is not inside
    with pytest.raises(StopIteration, match="done"):
        next(steps)
    assert seen == [inside, ("sent", inside), inside, ("thrown", inside), inside, (None, inside), inside]


def test_a_generator_is_closed_within(switch):
    decorate, inside = switch
    seen = []

    def generator():
        try:
            yield 1
        except GeneratorExit:
            seen.append(engine.is_grad_enabled())
            raise

    steps = decorate(generator)()
    next(steps)
    steps.close()
    assert seen == [inside]


def test_what_a_generator_raises_reaches_the_caller(switch):
    decorate, inside = switch

    def generator():
        yield 1
        raise OSError("from inside")

    with pytest.raises(OSError, match="from inside"):
        list(decorate(generator)())
    assert engine.is_grad_enabled() is not inside


def test_the_lines_of_a_coroutine_run_within_and_those_of_others_do_not(switch):
    decorate, inside = switch

    async def coroutine():
        before = engine.is_grad_enabled()
        await asyncio.sleep(0)
        return before, engine.is_grad_enabled()

    async def other():
        seen = []
        for _ in range(4):
            seen.append(engine.is_grad_enabled())
            await asyncio.sleep(0)
        return seen

    async def both():
        return await asyncio.gather(decorate(coroutine)(), other())

    assert asyncio.run(both()) == [(inside, inside), [not inside] * 4]


def test_one_decorated_function_on_two_threads():
    entered, leave = threading.Event(), threading.Event()

    @engine.no_grad()
    def wait():
        entered.set()
        assert leave.wait(60)

    seen = []

    def first():
        with engine.set_grad_enabled(False):
            wait()
            seen.append(engine.is_grad_enabled())

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)
    leave.set()
    wait()
    thread.join()
    assert seen == [False]
    assert engine.is_grad_enabled()


def test_the_switches_have_the_name_of_their_module():
    assert grad_mode.no_grad is engine.no_grad
    assert engine.autograd.grad_mode.set_grad_enabled is engine.set_grad_enabled


def test_anomaly_mode_shows_lines_of_the_user_alone():
    x = engine.tensor([-1.0], requires_grad=True)
    with engine.autograd.set_detect_anomaly(True):
        call = x.sqrt().grad_fn.extras.forward_call
    assert call.report().splitlines()[-1].strip().startswith("call = x.sqrt()")
    assert "record of" not in call.report()


def test_whether_backward_has_threads_can_be_asked() -> None:
    assert engine.autograd.is_multithreading_enabled()
    with engine.autograd.set_multithreading_enabled(False):
        assert not engine.autograd.is_multithreading_enabled()
    assert engine.autograd.is_multithreading_enabled()
