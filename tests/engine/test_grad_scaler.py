"""GradScaler on the CPU, beside PyTorch's numbers (tests/data/amp_reference.json)."""

import json
import pickle
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import engine
import engine.nn as nn
import engine.nn.functional as F
from tests.data import amp_cases

REFERENCE = json.loads(Path(amp_cases.__file__).with_name("amp_reference.json").read_text(encoding="utf-8"))
Pair = namedtuple("Pair", "left right")


def scaled_step(gradient: float = 1.0, **options) -> tuple[engine.GradScaler, engine.optim.SGD, nn.Parameter]:
    weight = nn.Parameter(engine.ones(1))
    scaler = engine.GradScaler("cpu", init_scale=4.0, **options)
    scaler.scale(weight.sum() * gradient).backward()
    return scaler, engine.optim.SGD([weight], lr=0.5), weight


def test_the_scaler_gives_pytorchs_numbers() -> None:
    found, expected = amp_cases.scale(engine), REFERENCE["scaler"]
    assert found["scales"] == expected["scales"]
    assert found["state"] == expected["state"]
    np.testing.assert_allclose(found["values"], expected["values"], rtol=1e-6)
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=1e-6)


def test_losses_in_containers() -> None:
    scaler = engine.GradScaler("cpu", init_scale=4.0)
    x = engine.ones(2)
    found = scaler.scale([x, (x, x), Pair(x, x)])
    assert [type(each) for each in found[1:]] == [tuple, Pair]
    assert found[2].right.tolist() == [4, 4]
    assert [each.tolist() for each in scaler.scale(each for each in (x, x))] == [[4, 4], [4, 4]]
    assert scaler.scale(engine.ones(2, dtype=engine.float16)).dtype is engine.float16
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3.0)


def test_an_overflow_skips_the_step_only() -> None:
    scaler, optimizer, weight = scaled_step(float("inf"))
    assert scaler.step(optimizer) is None
    assert weight.tolist() == [1]
    assert not optimizer.state
    scaler.update()
    assert scaler.get_scale() == 2


def test_large_gradients_whose_sum_overflows_are_no_overflow() -> None:
    weight = nn.Parameter(engine.ones(4))
    scaler, optimizer = engine.GradScaler("cpu", init_scale=1.0), engine.optim.SGD([weight], lr=1e-38)
    (scaler.scale(weight.sum()) * 3e38).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == pytest.approx([-2.0] * 4)
    assert scaler.get_scale() == 1


def test_two_optimizers_have_verdicts_of_their_own() -> None:
    weights = [nn.Parameter(engine.ones(1)) for _ in range(2)]
    optimizers = [engine.optim.SGD([weight], lr=1.0) for weight in weights]
    scaler = engine.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weights[0].sum() * float("inf") + weights[1].sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [weight.item() for weight in weights] == [1, 0]
    assert scaler.get_scale() == 2


def test_gradients_in_any_layout() -> None:
    weight = nn.Parameter(engine.ones(6, 4).T)
    scaler, optimizer = engine.GradScaler("cpu", init_scale=4.0), engine.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * 3).sum()).backward()
    scaler.unscale_(optimizer)
    assert weight.grad.stride() == weight.stride()
    assert weight.grad.tolist() == [[3] * 6] * 4


def test_calls_out_of_order() -> None:
    scaler, optimizer, _ = scaled_step()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called on this optimizer since the last"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update\(\)"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning of an iteration"):
        pickle.dumps(scaler)
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: None)
    optimizer.zero_grad()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    with pytest.raises(AssertionError, match="Attempted update but _scale is None"):
        engine.GradScaler("cpu").update()


def test_float16_gradients_are_refused() -> None:
    weight = nn.Parameter(engine.ones(1, dtype=engine.float16))
    scaler = engine.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(engine.optim.SGD([weight], lr=1.0))


def test_factors_are_checked() -> None:
    with pytest.raises(ValueError, match="growth factor must be > 1"):
        engine.GradScaler("cpu", growth_factor=1.0)
    with pytest.raises(ValueError, match="backoff factor must be < 1"):
        engine.GradScaler("cpu", backoff_factor=1.0)


def test_state_is_saved() -> None:
    scaler, optimizer, _ = scaled_step(growth_interval=3)
    scaler.step(optimizer)
    scaler.update()
    for again in (engine.GradScaler("cpu"), pickle.loads(pickle.dumps(scaler))):
        again.load_state_dict(scaler.state_dict())
        assert again.state_dict() == scaler.state_dict()
        assert again.state_dict()["_growth_tracker"] == 1
        assert again.scale(engine.ones(1)).item() == 4
    scaler.update(new_scale=3.0)
    assert scaler.get_scale() == 3
    assert engine.GradScaler("cpu", enabled=False).state_dict() == {}
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        scaler.load_state_dict({})


def test_switched_off_everything_passes_through() -> None:
    scaler = engine.GradScaler("cpu", enabled=False)
    weight = nn.Parameter(engine.ones(1))
    loss = scaler.scale(weight.sum())
    loss.backward()
    optimizer = engine.optim.SGD([weight], lr=1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 0
    assert scaler.get_scale() == 1


def test_an_optimizer_that_is_told_on_the_device() -> None:
    """What kernels that divide by the scale themselves are given, as in PyTorch."""
    seen = []

    class Told(engine.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None):
            seen.append((None if self.grad_scale is None else self.grad_scale.item(), self.found_inf.item()))

    for gradient, unscale_first in ((1.0, False), (float("nan"), False), (1.0, True)):
        weight = nn.Parameter(engine.ones(1))
        scaler, optimizer = engine.GradScaler("cpu", init_scale=4.0), Told([weight], lr=1.0)
        scaler.scale(weight.sum() * gradient).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (4 if gradient == 1 else 2)
        assert weight.grad.item() == 4 or unscale_first or gradient != 1
        assert not {"found_inf", "grad_scale"} & vars(optimizer).keys()
    assert seen == [(4, 0), (4, 1), (None, 0)]


def test_clipping_between_unscaling_and_stepping() -> None:
    scaler, optimizer, weight = scaled_step(3.0)
    scaler.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_([weight], 1.0).item() == 3
    scaler.step(optimizer)
    assert weight.item() == pytest.approx(0.5)


@pytest.mark.parametrize("clips", [True, False])
def test_a_captured_step_with_a_scaler(clips) -> None:
    """Overflow and growth included, it has the bits of the eager one."""

    def prepared():
        engine.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer, scaler = engine.optim.AdamW(layer.parameters(), lr=0.1), engine.GradScaler("cpu", 4.0, 2.0, 0.5, 3)

        def step(x: engine.Tensor) -> engine.Tensor:
            optimizer.zero_grad()
            with engine.autocast("cpu"):
                loss = F.mse_loss(layer(x), engine.ones(3, 4))
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step, layer, scaler

    (eager, *own), (step, *others) = prepared(), prepared()
    captured = engine.compile(step)
    for number in range(10):
        x = engine.full((3, 4), float("inf") if number == 6 else 1.0)
        eager(x)
        captured(x)
        assert own[1].state_dict() == others[1].state_dict()
        assert own[0].weight.tolist() == others[0].weight.tolist()
    assert own[1].get_scale() == 4 * 2 * 2 / 2 * 2
