"""The simulated GPU's arrays behave as CuPy's, and nothing becomes a NumPy array unasked."""

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.memory import backend
from tests import cuda_simulator as simulator


def test_without_it_there_is_no_gpu() -> None:
    simulator.install()
    assert backend.require_cupy().__name__ == "cupy"
    simulator.uninstall()
    assert "cupy" not in sys.modules or not isinstance(sys.modules["cupy"], simulator._module._Module)


def test_arrays_do_not_become_numpys(xp: Any) -> None:
    array = xp.arange(3.0)
    assert not isinstance(array, np.ndarray)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="Unsupported type"):
        array + np.ones(3)
    with pytest.raises(TypeError):
        np.ones(3) + array
    with pytest.raises(TypeError, match="Unsupported type"):
        xp.concatenate([array, np.ones(3)])
    with pytest.raises(TypeError, match="Unsupported type"):
        xp.add(array, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="non-scalar"):
        array[:] = np.ones(3)


def test_numpy_functions_give_device_arrays(xp: Any) -> None:
    array = xp.arange(3.0)
    for found in (np.exp(array), np.sum(array), np.float32(2) * array, np.concatenate([array, array])):
        assert isinstance(found, xp.ndarray)


def test_reductions_are_device_arrays_without_axes(xp: Any) -> None:
    total = xp.arange(4.0).sum()
    assert isinstance(total, xp.ndarray)
    assert total.shape == ()
    assert total.item() == 6.0


def test_names_and_parameters_are_cupys(xp: Any) -> None:
    for name in ("errstate", "bfloat16", "unstack", "nope"):
        with pytest.raises(AttributeError):
            getattr(xp, name)
    with pytest.raises(TypeError, match="Wrong arguments"):
        xp.add(xp.ones(2), 1, where=True)
    with pytest.raises(TypeError, match="mode"):
        xp.take(xp.ones(2), xp.zeros(1, int), mode="clip")
    with pytest.raises(TypeError, match="initial"):
        xp.sum(xp.ones(2), initial=1)
    with pytest.raises(NotImplementedError, match="ElementwiseKernel"):
        _ = xp.ElementwiseKernel


KINDS = ["float32", "float16", ml_dtypes.bfloat16, "int8", "int32", "int64", "bool", "complex64"]


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_results_are_numpys(xp: Any, kind: Any) -> None:
    host = np.array([1, 2, 3]).astype(kind)
    array = xp.asarray(host)
    assert (array + array).dtype == (host + host).dtype
    assert (array + 1).dtype == (host + 1).dtype
    assert (array * np.float32(2)).dtype == np.result_type(host.dtype, np.float32)
    np.testing.assert_array_equal((array * 2).get(), host * 2)
    assert array.astype("complex128").get().tolist() == host.astype("complex128").tolist()


def test_half_precision_is_added_up_in_single(xp: Any) -> None:
    for kind in (np.float16, ml_dtypes.bfloat16):
        ones = xp.ones(3000, kind)
        assert float(ones.sum()) == np.float32(3000).astype(kind)
        assert ones.sum().dtype == kind


def test_elementwise_results_are_in_rows(xp: Any) -> None:
    columns = xp.asfortranarray(xp.ones((3, 4)))
    assert (columns + 1).flags.c_contiguous
    assert columns.copy(order="K").flags.f_contiguous
    assert columns.astype("f4").flags.f_contiguous


def test_indices_wrap_around_and_duplicates_are_undefined(xp: Any) -> None:
    array = xp.arange(4.0)
    assert xp.take(array, xp.asarray([5, -1])).get().tolist() == [1.0, 3.0]
    assert array[xp.asarray([4])].get().tolist() == [0.0]
    array[xp.asarray([1, 1])] = xp.asarray([8.0, 9.0])
    assert array.get().tolist() == [0.0, 8.0, 2.0, 3.0]  # NumPy keeps 9
    xp.add.at(array, xp.asarray([0, 0]), 1.0)
    assert array.get().tolist()[0] == 2.0
    with pytest.raises(TypeError, match="atomic"):
        xp.add.at(xp.zeros(2, np.int8), xp.asarray([0]), 1)


def test_division_of_integers_by_zero(xp: Any) -> None:
    assert (xp.asarray([4, 5]) // 0).get().tolist() == [0, 0]


def test_views_share_memory(xp: Any) -> None:
    array = xp.zeros((3, 4), np.float32)
    row = array[1]
    row[2:] = 5
    assert array.T[3, 1].item() == 5
    assert row.base is array
    assert row.data.ptr == array.data.ptr + 16
    assert array.reshape(4, 3).base is array
    assert array[:, :2].reshape(-1).base is None
    built = xp.ndarray((2, 2), np.float32, array.data + 4, (16, 4))
    assert built.base is None
    built[...] = 7
    assert array.get()[:2, 1:3].tolist() == [[7, 7], [7, 7]]
    assert built.__cuda_array_interface__["strides"] == (16, 4)


def test_failures_of_linalg_are_nan_unless_asked_for(xp: Any) -> None:
    import cupyx

    singular = xp.zeros((2, 2))
    assert np.isnan(xp.linalg.inv(singular).get()).all()
    with cupyx.errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
        xp.linalg.inv(singular)


def test_what_cupy_does_with_bfloat16(xp: Any) -> None:
    half = xp.ones((3, 3), ml_dtypes.bfloat16)
    for kept in (half + 1, half * np.float32(2).astype(half.dtype), half.sum(), half.mean(), half.max(), xp.exp(half)):
        assert kept.dtype == half.dtype
    for single in (xp.where(half > 0, half, 0), xp.clip(half, 0, 1), xp.round(half)):  # they have no loop for it
        assert single.dtype == np.float32
    assert half.var().dtype == np.float64
    with pytest.raises(NotImplementedError, match="bfloat16"):
        xp.sort(half)
    with pytest.raises(TypeError, match="bfloat16"):
        half @ half


def test_strides_of_axes_of_length_one_are_cupys(xp: Any) -> None:
    array = xp.zeros((2, 3, 4), np.float32)
    assert xp.expand_dims(array.transpose(2, 0, 1), 1).strides == (4, 4, 48, 16)
    assert array.reshape(2, 1, 12).strides == (48, 48, 4)
    assert xp.broadcast_to(array[:1], (2, 1, 3, 4)).strides == (0, 48, 16, 4)
    assert array[None].strides == (0, 48, 16, 4)
