"""Constructors of older code: `Tensor(2, 3)`, `FloatTensor([...])`, `isinstance(x, LongTensor)`, `Tensor.type()`."""

import numpy as np
import pytest

import engine
from engine.ops.creation import constructors as legacy


def test_sizes_make_uninitialised_memory() -> None:
    assert engine.Tensor(2, 3).shape == (2, 3)
    assert engine.FloatTensor(2, 3).shape == (2, 3)
    assert engine.LongTensor(4).dtype is engine.int64
    assert engine.Tensor(engine.Size([2, 1])).shape == (2, 1)
    assert engine.Tensor().shape == (0,)
    assert engine.LongTensor().shape == (0,)


@pytest.mark.parametrize("name", legacy.TYPES)
def test_data_is_copied_into_the_dtype_of_the_name(name: str) -> None:
    kind = getattr(engine, name)
    made = kind([0, 1, 1])
    assert made.dtype is kind.dtype
    assert made.tolist() == [0, 1, 1]
    assert isinstance(made, kind)
    assert isinstance(made, engine.Tensor)
    assert not isinstance(engine.ones(1, dtype=engine.complex64), kind)
    assert made.type() == f"engine.{name}"
    assert engine.zeros(2).type(kind).dtype is kind.dtype


def test_data_of_the_default_dtype() -> None:
    assert engine.Tensor([1, 2]).dtype is engine.float32
    assert engine.Tensor(np.array([1.5])).tolist() == [1.5]
    assert engine.Tensor([[1, 2], [3, 4]]).shape == (2, 2)
    assert engine.FloatTensor((1, 2)).tolist() == [1.0, 2.0]


def test_a_tensor_is_shared_or_refused() -> None:
    tensor = engine.ones(2)
    shared = engine.FloatTensor(tensor)
    shared[0] = 5
    assert tensor[0] == 5
    with pytest.raises(TypeError, match=r"expected engine.int64 \(got engine.float32\); convert it with"):
        engine.LongTensor(tensor)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        engine.FloatTensor("text")
    with pytest.raises((TypeError, RuntimeError)):
        engine.FloatTensor(2, -1)
    with pytest.raises(AttributeError, match="no attribute 'StrangeTensor'"):
        _ = engine.StrangeTensor
