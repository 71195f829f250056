"""engine.trace: what it records, and that it leaves nothing behind."""

import json
from pathlib import Path

import pytest

import engine
from engine.autograd.modes import open_blocks, state


def test_every_call_is_recorded_with_key_shapes_and_strides() -> None:
    x = engine.ones(2, 3, requires_grad=True)
    with engine.trace() as calls:
        y = (x + x.t().t()).tanh().sum()
        y.backward()
    forward = [call for call in calls.calls if call.key == "CPU"]
    assert [call.operator for call in forward] == ["permute", "permute", "add", "tanh", "sum"]
    assert forward[0].shapes == ((2, 3),)
    assert forward[0].out_strides == ((1, 3),)
    assert forward[2].strides == ((3, 1), (3, 1))
    recorded = [call.operator for call in calls.calls if call.key == "Autograd" and "Backward" not in call.operator]
    assert recorded == ["permute", "permute", "add", "tanh", "sum"]
    steps = [call.operator for call in calls.calls if "Backward" in call.operator]
    assert steps[:3] == ["SumBackward0", "TanhBackward0", "AddBackward0"]
    assert all(call.seconds >= 0 for call in calls.calls)


def test_a_call_that_is_recorded_is_redispatched_below_autograd() -> None:
    a, x = engine.ones(2, 2, requires_grad=True), engine.ones(2, 1)
    with engine.trace() as calls:
        engine.no_grad()(lambda: a @ x)()
        (a @ x).sum()
    seen = [(call.operator, call.key) for call in calls.calls if call.key != "CompositeImplicit"]
    assert seen == [("mm", "CPU"), ("mm", "Autograd"), ("mm", "CPU"), ("sum", "Autograd"), ("sum", "CPU")]
    outer, inner = calls.calls[3:5]
    assert outer.began <= inner.began
    assert outer.began + outer.seconds >= inner.began + inner.seconds


# The calls that PyTorch's dispatcher prints for y = A @ x; z = y.sum(), and what stands for each of them here.
HELLO_WORLD = {
    "[call] op=[aten::matmul], key=[AutogradCPU]": "[call] op=[matmul], key=[AutogradCPU]",
    "[call] op=[aten::mm], key=[AutogradCPU]": "  [call] op=[mm], key=[AutogradCPU]",
    # redispatched below autograd, where PyTorch prints the operators that a kernel calls; nothing is lazily conjugated
    "[call] op=[aten::resolve_conj], key=[CPU]": "    [call] op=[mm], key=[CPU]",
    "[call] op=[aten::sum], key=[AutogradCPU]": "[call] op=[sum], key=[AutogradCPU]",
    "[call] op=[aten::sum.dim_IntList], key=[CPU]": "  [call] op=[sum], key=[CPU]",
    "[call] op=[aten::as_strided], key=[CPU]": None,  # in the kernel
    "[call] op=[aten::fill_.Scalar], key=[CPU]": None,
}


def test_a_product_and_a_sum_are_the_calls_of_pytorchs_dispatcher() -> None:
    a = engine.tensor([[2.0, 3.0], [1.0, 4.0]], requires_grad=True)
    x = engine.tensor([[6.0], [-5.0]], requires_grad=True)
    with engine.trace() as calls:
        y = a @ x
        y.sum()
    assert calls.listing().splitlines() == [line for line in HELLO_WORLD.values() if line is not None]
    assert type(y.grad_fn).__name__ == "MmBackward0"


def test_functions_made_of_others_are_traced_around_them() -> None:
    x = engine.ones(3)
    function, method = engine.addcmul, engine.Tensor.addcmul
    with engine.trace() as calls:
        engine.addcmul(x, x, x)
    assert [(call.operator, call.key) for call in calls.calls] == [
        ("addcmul", "CompositeImplicit"),
        ("mul", "CPU"),
        ("add", "CPU"),
    ]
    assert engine.addcmul is function
    assert engine.Tensor.addcmul is method
    own = calls.own_seconds()
    assert sum(own) == pytest.approx(calls.calls[0].seconds)
    assert "addcmul" in calls.table()


def test_the_results_are_the_same_and_nothing_is_left_behind() -> None:
    x = engine.randn(4, 4)
    with engine.trace() as calls:
        traced = x + x
    assert engine.equal(traced, x + x)
    assert len(calls.calls) == 1
    assert not state.listeners
    assert not open_blocks.open


def test_a_second_trace_is_refused_and_an_error_inside_ends_the_first() -> None:
    with pytest.raises(RuntimeError, match="another trace"), engine.trace(), engine.trace():
        pass
    with engine.trace() as calls:
        engine.ones(2) + 1
    assert [call.operator for call in calls.calls] == ["add"]


def test_meta_tensors_are_traced_as_such() -> None:
    with engine.trace() as calls:
        engine.empty(2, 3, device="meta") * 2
    assert calls.calls[0].key == "Meta"


def test_table_and_chrome_file(tmp_path: Path) -> None:
    with engine.trace() as calls:
        engine.ones(8, 8) @ engine.ones(8, 8)
    assert "matmul" in calls.table()
    calls.save_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["matmul", "mm"]
    assert events[1]["args"]["shapes"] == [[8, 8], [8, 8]]
