"""autocast on the CPU, beside PyTorch's numbers (tests/data/amp_reference.json)."""

import gc
import json
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import engine
import engine.nn as nn
import engine.nn.functional as F
from engine.amp.listening import _named, listed
from engine.amp.modes import modes
from engine.amp.policies import LISTS
from engine.autograd.modes import state
from engine.capture import intercepts
from engine.utils.checkpoint import checkpoint
from tests.data import amp_cases

REFERENCE = json.loads(Path(amp_cases.__file__).with_name("amp_reference.json").read_text(encoding="utf-8"))
LOW = engine.bfloat16


# --- what PyTorch gives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFERENCE["expressions"])
def test_dtypes_of_expressions_are_pytorchs(case) -> None:
    kind, low = case.split()
    assert amp_cases.expressions(engine, kind, low == "True") == REFERENCE["expressions"][case]


@pytest.mark.parametrize("case", REFERENCE["networks"])
def test_networks_train_as_in_pytorch(case) -> None:
    expected = REFERENCE["networks"][case]
    found = amp_cases.train(engine, *case.split())
    assert found["dtypes"] == expected["dtypes"]
    assert found["gradients"] == expected["gradients"] == ["float32"]
    tolerance = 2e-2 if case.endswith("bfloat16") else 4e-3
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=tolerance)


# --- blocks -----------------------------------------------------------------------------------------------------------


def product() -> engine.Tensor:
    x = engine.ones(2, 2)
    return x @ x


def test_blocks_nest_and_end() -> None:
    assert product().dtype is engine.float32
    with engine.autocast("cpu"):
        assert product().dtype is engine.bfloat16
        with engine.autocast("cpu", enabled=False):
            assert product().dtype is engine.float32
            with engine.autocast("cpu", engine.float16):
                assert product().dtype is engine.float16
        assert product().dtype is engine.bfloat16
        assert engine.get_autocast_dtype("cpu") is engine.bfloat16
    assert product().dtype is engine.float32
    assert not state.listeners


def test_a_block_ends_with_an_exception() -> None:
    with pytest.raises(ValueError, match="inside"), engine.autocast("cpu"):
        raise ValueError("inside")
    assert not engine.is_autocast_enabled("cpu")
    assert product().dtype is engine.float32


def test_a_function_that_raises_leaves_the_block_as_it_was() -> None:
    with engine.autocast("cpu"):
        with pytest.raises(RuntimeError):
            engine.matmul(engine.ones(2, 3), engine.ones(2, 3))
        assert product().dtype is LOW


def test_a_block_decorates() -> None:
    block = engine.autocast("cpu", dtype=engine.float16)

    @block
    def twice(again: bool) -> engine.dtype:
        return twice(False) if again else product().dtype

    assert twice(True) is engine.float16
    assert product().dtype is engine.float32


def test_blocks_belong_to_their_thread() -> None:
    found = []
    with engine.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append((product().dtype, engine.is_autocast_enabled("cpu"))))
        thread.start()
        thread.join()
        assert product().dtype is LOW
    assert found == [(engine.float32, False)]


def test_switches() -> None:
    assert not engine.is_autocast_enabled("cpu")
    assert not engine.is_autocast_enabled()
    engine.set_autocast_enabled("cpu", True)
    engine.set_autocast_dtype("cpu", engine.float16)
    try:
        assert engine.is_autocast_enabled("cpu")
        assert product().dtype is engine.float16
    finally:
        engine.set_autocast_enabled("cpu", False)
        engine.set_autocast_dtype("cpu", engine.bfloat16)
    assert engine.get_autocast_dtype("cuda") is engine.get_autocast_gpu_dtype() is engine.float16
    with pytest.raises(RuntimeError, match="unsupported device type"):
        engine.is_autocast_enabled("tpu")


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        engine.autocast(engine.device("cpu"))
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        engine.autocast("tpu")
    with pytest.warns(UserWarning, match="target dtype is not supported"), engine.autocast("cpu", engine.float32):
        assert product().dtype is engine.float32


def test_where_there_is_no_gpu(monkeypatch) -> None:
    def missing() -> None:
        raise RuntimeError("no GPU here")

    monkeypatch.setattr("engine.memory.backend.require_cupy", missing)
    with pytest.warns(UserWarning, match="CUDA is not available. Disabling autocast: no GPU here"):
        block = engine.autocast("cuda")
    with block:
        assert not engine.is_autocast_enabled("cuda")
    with pytest.warns(UserWarning, match="CUDA is not available. Disabling: no GPU here"):
        assert not engine.GradScaler().is_enabled()


@pytest.mark.parametrize("device_type", LISTS)
def test_names_in_the_lists_stand_for_functions(device_type) -> None:
    assert [name for name in LISTS[device_type] if not _named(name)] == []


def test_nobody_else_exchanges_these_functions() -> None:
    """`engine.compile` listens by stand-ins, too; one function cannot have two."""
    assert not listed().keys() & {function for function, _ in intercepts._table()}


def test_in_place_calls_and_out_are_left_alone() -> None:
    x = engine.ones(2, 2)
    with engine.autocast("cpu"):
        assert engine.matmul(x, x, out=engine.empty(2, 2)).dtype is engine.float32
        assert x.clone().add_(x).dtype is engine.float32


def test_float64_and_integers_are_left_alone() -> None:
    with engine.autocast("cpu"):
        x = engine.ones(2, 2, dtype=engine.float64)
        assert (x @ x).dtype is engine.float64
        y = engine.ones(2, 2, dtype=engine.int64)
        assert (y @ y).dtype is engine.int64


# --- casts of weights -------------------------------------------------------------------------------------------------


def test_a_weight_is_cast_once_a_block() -> None:
    layer, x = nn.Linear(3, 3), engine.ones(2, 3)
    with engine.autocast("cpu"), engine.trace() as calls:
        layer(layer(x))
    casts = [call for call in calls.calls if call.operator == "lay_out" and call.key == "CPU"]
    assert len(casts) == 3  # x, weight, bias
    assert not modes.casts


def test_without_the_cache_each_call_casts() -> None:
    layer, x = nn.Linear(3, 3), engine.ones(2, 3)
    with engine.autocast("cpu", cache_enabled=False), engine.trace() as calls:
        layer(layer(x))
    assert len([call for call in calls.calls if call.operator == "lay_out" and call.key == "CPU"]) == 5


def test_a_weight_that_was_written_is_cast_anew() -> None:
    """PyTorch goes on with the old cast, in silence."""
    weight, x = nn.Parameter(engine.ones(2, 2)), engine.ones(2, 2)
    with engine.autocast("cpu"):
        assert (x @ weight).sum().item() == 8
        with engine.no_grad():
            weight.mul_(2)
        assert (x @ weight).sum().item() == 16


def test_a_cast_without_history_is_not_used_where_one_is_recorded() -> None:
    weight, x = nn.Parameter(engine.ones(2, 2)), engine.ones(2, 2)
    with engine.autocast("cpu"):
        with engine.no_grad():
            assert not (x @ weight).requires_grad
        (x @ weight).sum().backward()
    assert weight.grad.tolist() == [[2, 2], [2, 2]]


def test_two_backwards_in_one_block() -> None:
    weight, x = nn.Parameter(engine.ones(2, 2)), engine.ones(2, 2)
    with engine.autocast("cpu"):
        for _ in range(2):
            (x @ weight).float().sum().backward()
    assert weight.grad.tolist() == [[4, 4], [4, 4]]


def test_casts_do_not_outlive_the_block() -> None:
    weight = nn.Parameter(engine.ones(2, 2))
    gone = weakref.ref(weight)
    with engine.autocast("cpu"):
        with engine.autocast("cpu"):
            engine.ones(2, 2) @ weight
        assert modes.casts
    del weight
    gc.collect()
    assert gone() is None


def test_gradients_through_casts() -> None:
    """Rounding aside they are those of float32, and arrive in the dtype of the parameter."""
    layer, x = nn.Linear(4, 3), engine.randn(5, 4, requires_grad=True)
    layer(x).square().sum().backward()
    plain = [layer.weight.grad, x.grad]
    layer.weight.grad = x.grad = None
    with engine.autocast("cpu"):
        y = layer(x)
    y.float().square().sum().backward()
    for found, expected in zip([layer.weight.grad, x.grad], plain, strict=True):
        assert found.dtype is engine.float32
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0.05, atol=0.1)


def test_a_checkpoint_runs_again_in_the_same_dtype() -> None:
    layer, x = nn.Linear(4, 4), engine.randn(2, 4, requires_grad=True)
    for reentrant in (True, False):
        dtypes = []

        def run(given: engine.Tensor, dtypes: list = dtypes) -> engine.Tensor:
            dtypes.append(layer(given).dtype)
            return layer(given).tanh()

        with engine.autocast("cpu"):
            y = checkpoint(run, x, use_reentrant=reentrant)
        y.float().sum().backward()
        assert dtypes == [LOW, LOW]


# --- custom functions -------------------------------------------------------------------------------------------------


class Doubled(engine.autograd.Function):
    @staticmethod
    @engine.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @engine.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        Doubled.seen = (engine.is_autocast_enabled("cpu"), (g @ weight.T).dtype)
        return (g @ weight.T).float(), (x.T @ g).float()


class InFloat32(engine.autograd.Function):
    @staticmethod
    @engine.amp.custom_fwd(device_type="cpu", cast_inputs=engine.float32)
    def forward(ctx, x, named):
        InFloat32.seen = (x.dtype, named["y"].dtype, engine.is_autocast_enabled("cpu"))
        return x * 2

    @staticmethod
    @engine.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        InFloat32.backward_enabled = engine.is_autocast_enabled("cpu")
        return g * 2, None


def test_custom_functions_go_back_in_the_mode_of_forward() -> None:
    x, weight = engine.ones(2, 2, requires_grad=True), engine.ones(2, 2, requires_grad=True)
    with engine.autocast("cpu"):
        y = Doubled.apply(x, weight)
    assert y.dtype is LOW
    y.sum().backward()
    assert Doubled.seen == (True, LOW)
    Doubled.apply(x, weight).sum().backward()
    assert Doubled.seen == (False, engine.float32)


def test_custom_functions_with_a_dtype_of_their_own() -> None:
    x = engine.ones(2, dtype=LOW, requires_grad=True)
    with engine.autocast("cpu"):
        InFloat32.apply(x, {"y": engine.ones(1, dtype=LOW)}).sum().backward()
    assert InFloat32.seen == (engine.float32, engine.float32, False)
    assert not InFloat32.backward_enabled
    InFloat32.apply(x, {"y": engine.ones(1, dtype=LOW)})
    assert InFloat32.seen == (LOW, LOW, False)
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        engine.amp.custom_fwd(device_type=None)


# --- captured steps ---------------------------------------------------------------------------------------------------


def test_a_captured_step_with_a_block_inside_and_one_around() -> None:
    def prepared(block: bool):
        engine.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer = engine.optim.SGD(layer.parameters(), lr=0.1)

        def step(x: engine.Tensor) -> engine.Tensor:
            optimizer.zero_grad()
            with engine.autocast("cpu", enabled=block):
                loss = F.mse_loss(layer(x), x)
            loss.backward()
            optimizer.step()
            return loss

        return step

    x = engine.randn(3, 4)
    for inside in (True, False):
        eager, captured = prepared(inside), engine.compile(prepared(inside))
        for number in range(6):
            with engine.autocast("cpu", enabled=number == 4):
                assert eager(x).item() == captured(x).item()
