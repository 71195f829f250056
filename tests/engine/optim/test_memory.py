"""How a step walks memory: layouts, slabs, versions, copies."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.nn import Parameter
from engine.optim import laying_out, plan
from engine.optim import slabs as flat
from tests.data import optim_cases

# Adafactor keeps means along axes
ELEMENTWISE = [case for case in optim_cases.OPTIMIZERS if case[1] and case[0] != "Adafactor"]


def parameter(*shape: int, dtype: Any = None, seed: int = 0) -> Parameter:
    array = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return Parameter(engine.from_numpy(array).to(dtype or engine.float32))


def gradient(like: Any, step: int) -> Any:
    array = np.random.default_rng([9, step, *like.shape]).standard_normal(like.shape)
    return engine.empty_like(like).detach().copy_(engine.from_numpy(array))


@pytest.mark.parametrize("case", ELEMENTWISE, ids=optim_cases.optimizer_name)
def test_one_slab_and_single_parameters_agree_bit_for_bit(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for small in (0, plan.SMALL):
        monkeypatch.setattr(plan, "SMALL", small)
        params = [parameter(4, 3), parameter(7), parameter(2, 3, 4, 5), parameter(50, 21)]
        optimizer = getattr(optim, case[0])(params, **case[1])
        for step in range(4):
            for each in params:
                each.grad = gradient(each, step)
            optimizer.step()
        results.append([each.detach().numpy().copy() for each in params])
    for packed, single in zip(*results, strict=True):
        np.testing.assert_array_equal(packed, single)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=optim_cases.optimizer_name)
@pytest.mark.parametrize("small", [0, plan.SMALL])
def test_channels_last_needs_no_copy_and_changes_no_number(
    case: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL", small)
    results = []
    copies = laying_out.layout_copies
    for memory_format in (engine.contiguous_format, engine.channels_last):
        params = [
            Parameter(parameter(4, 3, 5, 2).detach().contiguous(memory_format=memory_format)),
            Parameter(parameter(3, 1, 2, 2).detach().contiguous(memory_format=memory_format)),
            parameter(6),
        ]
        optimizer = getattr(optim, case[0])(params, **case[1])
        for step in range(3):
            for each in params:
                each.grad = gradient(each, step)
                assert each.grad.stride() == each.stride()
            optimizer.step()
        for value in optimizer.state[params[0]].values():
            if value.dim():
                assert value.stride() == params[0].stride()
        results.append([each.detach().numpy().copy() for each in params])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    assert laying_out.layout_copies == copies


def test_a_gradient_in_another_layout_is_copied_once_and_counted() -> None:
    one, other = parameter(4, 3, 2, 5), parameter(4, 3, 2, 5)
    optimizers = [optim.AdamW([one]), optim.AdamW([other])]
    one.grad = gradient(one, 0)
    other.grad = gradient(other, 0).contiguous(memory_format=engine.channels_last)
    copies = laying_out.layout_copies
    optimizers[0].step()
    assert laying_out.layout_copies == copies
    with pytest.warns(UserWarning, match="layout contract broken"):
        optimizers[1].step()
    assert laying_out.layout_copies == copies + 1
    np.testing.assert_array_equal(one.detach().numpy(), other.detach().numpy())


def test_strides_of_single_element_axes_are_no_breach() -> None:
    param = Parameter(engine.zeros(3, 1, 2, 2).contiguous(memory_format=engine.channels_last))
    param.grad = engine.ones(3, 1, 2, 2)
    copies = laying_out.layout_copies
    optim.SGD([param], lr=1.0).step()
    assert laying_out.layout_copies == copies
    assert bool((param == -1).all())


@pytest.mark.parametrize("small", [0, plan.SMALL])
def test_parameters_with_gaps_or_overlapping_neighbours(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SMALL", small)
    base = engine.zeros(6, 4)
    param = Parameter(base[::2, 1:3])
    assert not param.is_non_overlapping_and_dense()
    optimizer = optim.SGD([param], lr=1.0, momentum=0.5)
    for _ in range(2):
        param.grad = engine.arange(6.0).view(3, 2)
        optimizer.step()
    expected = engine.zeros(6, 4)
    expected[::2, 1:3] = -2.5 * engine.arange(6.0).view(3, 2)
    np.testing.assert_array_equal(base.numpy(), expected.numpy())


@pytest.mark.parametrize("size", [10, plan.SMALL + 1, flat.PIECE * 2 + 7])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_compiled_and_plain_updates_agree(size: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1} if name == "SGD" else {"weight_decay": 0.1}
    results = []
    for threshold in (1, 10**9):
        monkeypatch.setattr(plan, "FUSED_FROM", threshold)
        param = parameter(size)
        optimizer = getattr(optim, name)([param], lr=0.1, **options)
        for step in range(3):
            param.grad = gradient(param, step)
            optimizer.step()
        results.append(param.detach().numpy().copy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-7)


def test_big_parameters_in_pieces_equal_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for piece in (100, 10**9):
        monkeypatch.setattr(flat, "PIECE", piece)
        param = parameter(1001)
        optimizer = optim.NAdam([param], lr=0.1)
        for step in range(3):
            param.grad = gradient(param, step)
            optimizer.step()
        results.append(param.detach().numpy().copy())
    np.testing.assert_array_equal(results[0], results[1])


def test_a_step_writes_in_place_and_counts_it() -> None:
    params = [parameter(3), parameter(4, 5), parameter(200, 200)]
    pointers, versions = [each.data_ptr() for each in params], [each._version for each in params]
    optimizer = optim.AdamW(params)
    for each in params:
        each.grad = gradient(each, 0)
    before = [each.grad.clone() for each in params]
    optimizer.step()
    assert [each.data_ptr() for each in params] == pointers
    assert [each._version for each in params] == [version + 1 for version in versions]
    for each, kept in zip(params, before, strict=True):
        np.testing.assert_array_equal(each.grad.numpy(), kept.numpy())


def test_saved_tensors_notice_a_step() -> None:
    weight = Parameter(engine.ones(3))
    optimizer = optim.SGD([weight], lr=0.1)
    loss = (weight * weight).sum()
    weight.grad = engine.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_replaced_memory_and_state_are_noticed() -> None:
    params = [parameter(3), parameter(4)]
    optimizer = optim.SGD(params, lr=1.0, momentum=0.5)

    def step() -> None:
        for each in params:
            each.grad = engine.ones(*each.shape)
        optimizer.step()

    step()
    params[0].data = engine.zeros(3)
    step()
    np.testing.assert_array_equal(params[0].detach().numpy(), np.full(3, -1.5, np.float32))
    optimizer.state[params[0]]["momentum_buffer"] = engine.zeros(3)
    step()
    np.testing.assert_array_equal(params[0].detach().numpy(), np.full(3, -2.5, np.float32))
    optimizer.state.clear()
    step()
    np.testing.assert_array_equal(params[0].detach().numpy(), np.full(3, -3.5, np.float32))


def test_parameters_join_and_leave_between_steps() -> None:
    """Whoever has a gradient is updated, with its own count of steps, whatever the others do."""
    pattern = [(0, 1), (0,), (0, 1, 2), (2,), (0, 1, 2)]
    together = [parameter(3, seed=seed) for seed in range(3)]
    alone = [parameter(3, seed=seed) for seed in range(3)]
    joint = optim.Adam(together, lr=0.1)
    separate = [optim.Adam([each], lr=0.1) for each in alone]
    for step, active in enumerate(pattern):
        for number in range(3):
            together[number].grad = gradient(together[number], step) if number in active else None
        joint.step()
        for number in active:
            alone[number].grad = gradient(alone[number], step)
            separate[number].step()
    for number in range(3):
        np.testing.assert_array_equal(together[number].detach().numpy(), alone[number].detach().numpy())
        count = sum(number in active for active in pattern)
        assert float(joint.state[together[number]]["step"]) == count


def test_complex_parameters_are_pairs_of_real_ones() -> None:
    values = np.array([1 + 2j, -0.5 + 0.25j])
    slope = np.array([0.5 - 1j, 2 + 0.1j])
    whole = Parameter(engine.from_numpy(values.copy()))
    pairs = Parameter(engine.from_numpy(values.view(np.float64).copy()))
    for param, grad in ((whole, slope), (pairs, slope.view(np.float64))):
        optimizer = optim.AdamW([param], lr=0.1)
        for _ in range(3):
            param.grad = engine.from_numpy(grad.copy())
            optimizer.step()
    np.testing.assert_array_equal(whole.detach().numpy().view(np.float64), pairs.detach().numpy())


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16])
def test_half_precision_keeps_its_dtype(dtype: Any) -> None:
    param = Parameter(engine.ones(4).to(dtype))
    optimizer = optim.AdamW([param], lr=0.1)
    param.grad = engine.ones(4).to(dtype)
    optimizer.step()
    assert param.dtype is dtype
    assert optimizer.state[param]["exp_avg"].dtype is dtype
    np.testing.assert_allclose(param.detach().float().numpy(), 0.9, rtol=1e-2)
