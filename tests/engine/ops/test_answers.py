"""What PyTorch answers in corner cases of its operators: empty batches, 0-dim tensors, integers, arguments given by
position or by name. The numbers are PyTorch 2.13's.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

import engine


def listed(value: Any) -> Any:
    """Tensors, or containers of them, as plain lists."""
    if isinstance(value, engine.Tensor):
        return value.tolist()
    return [listed(each) for each in value] if isinstance(value, tuple | list) else value


M = engine.tensor([[1.0, 2.0], [3.0, 5.0]])
ROW = engine.arange(6.0).reshape(2, 3)

ANSWERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "meshgrid of xy": (
        lambda: engine.meshgrid(engine.arange(2), engine.arange(3), indexing="xy"),
        [[[0, 1], [0, 1], [0, 1]], [[0, 0], [1, 1], [2, 2]]],
    ),
    "var_mean, unbiased by position": (lambda: engine.var_mean(M, False), [2.1875, 2.75]),
    "std_mean, unbiased by position": (lambda: engine.std_mean(M * 0, False), [0.0, 0.0]),
    "flip by name": (lambda: engine.flip(engine.arange(3), dims=(0,)), [2, 1, 0]),
    "flip by name, a method": (lambda: ROW.flip(dims=[0, 1]), [[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]]),
    "roll": (lambda: engine.roll(ROW, (1, 2), (0, 1)), [[4.0, 5.0, 3.0], [1.0, 2.0, 0.0]]),
    "index_add_ of a number": (lambda: M.new_zeros(()).index_add_(0, engine.tensor(0), M.new_ones(())), 1.0),
    "index_copy of a number": (lambda: engine.index_copy(M.new_zeros(()), 0, engine.tensor([0]), M.new_ones(())), 1.0),
    "index_copy of one element": (
        lambda: engine.index_copy(engine.zeros(3), 0, engine.tensor(1), M.new_ones(())),
        [0.0, 1.0, 0.0],
    ),
    "cov in the wider dtype": (lambda: str(engine.cov(M.bfloat16(), aweights=engine.ones(2)).dtype), "engine.float32"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    call, expected = ANSWERS[name]
    assert listed(call()) == expected


REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "meshgrid of an unknown kind": (lambda: engine.meshgrid(M[0], indexing="yx"), RuntimeError, 'one of "xy" or "ij"'),
    "meshgrid of two dtypes": (lambda: engine.meshgrid(M[0], engine.arange(2)), RuntimeError, "the same dtype"),
    "meshgrid of nothing": (lambda: engine.meshgrid(), RuntimeError, "non-empty"),
    "roll by nothing": (lambda: engine.roll(M, ()), RuntimeError, "`shifts` required"),
    "roll by more than there are axes": (lambda: engine.roll(M, (1, 2), (0,)), RuntimeError, "shifts: 2, dims: 1"),
    "integers as degrees in place": (lambda: engine.tensor([90]).deg2rad_(), RuntimeError, "can't be cast"),
    "logit of integers in place": (lambda: engine.tensor([0, 1]).logit_(), RuntimeError, "can't be cast"),
    "float_power in place of floats": (lambda: engine.tensor([2.0]).float_power_(2), RuntimeError, "engine.float64"),
    "mean as integers": (lambda: M.mean(dtype=engine.int64), RuntimeError, "could not infer output dtype"),
    "index_add of another shape": (
        lambda: engine.index_add(ROW, 0, engine.tensor([0, 1]), engine.ones(2, 1)),
        RuntimeError,
        "must match self tensor shape",
    ),
    "index_add of another dtype": (
        lambda: engine.index_add(ROW, 0, engine.tensor([0]), engine.ones(1, 3, dtype=engine.int64)),
        RuntimeError,
        "same dtype",
    ),
    "index_copy of more rows than indices": (
        lambda: engine.index_copy(ROW, 0, engine.tensor([0]), ROW),
        IndexError,
        "must match self tensor shape",
    ),
    "cov of negative frequencies": (lambda: engine.cov(M, fweights=engine.tensor([-1, 2])), RuntimeError, "negative"),
    "cov of too many frequencies": (lambda: engine.cov(M, fweights=engine.arange(3)), RuntimeError, "same numel"),
    "cov of fractional frequencies": (lambda: engine.cov(M, fweights=M[0]), RuntimeError, "integral dtype"),
    "cov of negative weights": (lambda: engine.cov(M, aweights=-M[0]), RuntimeError, "negative"),
    "cov of whole weights": (lambda: engine.cov(M, aweights=engine.arange(2)), RuntimeError, "floating point dtype"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, error, message = REFUSALS[name]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_another_size_on_the_same_storage() -> None:
    x = engine.arange(8.0)
    assert x[2:4].resize_(2, 2).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert x[:2].resize_(2, 1).zero_().tolist() == [[0.0], [0.0]]
    assert x.tolist() == [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert x.resize_(0).resize_(3).tolist() == [0.0, 0.0, 2.0]
    assert engine.arange(4.0).resize_(9)[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert engine.arange(4.0).resize_as_(engine.zeros(2, 2)).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    turned = ROW.clone().t()
    assert turned.resize_(3, 2).stride() == (1, 3)  # the same size: nothing changes
    assert turned.resize_(2, 3).tolist() == ROW.tolist()
    image = engine.arange(16.0).resize_(2, 2, 2, 2, memory_format=engine.channels_last)
    assert image.is_contiguous(memory_format=engine.channels_last)
    assert image[0, 0].tolist() == [[0.0, 2.0], [4.0, 6.0]]
