"""Clipping and parameters as a vector."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from engine.nn import utils


def with_gradients(*arrays: Any) -> list[nn.Parameter]:
    params = []
    for array in arrays:
        params.append(nn.Parameter(engine.zeros(*np.shape(array))))
        params[-1].grad = engine.from_numpy(np.array(array, np.float32))
    return params


def test_norm_is_that_of_one_long_vector() -> None:
    params = with_gradients([3.0, 0.0], [[4.0]])
    assert float(utils.get_total_norm([each.grad for each in params])) == 5.0
    assert float(utils.get_total_norm([each.grad for each in params], 1)) == 7.0
    assert float(utils.get_total_norm([each.grad for each in params], float("inf"))) == 4.0
    assert float(utils.get_total_norm([])) == 0.0
    assert float(utils.get_total_norm(params[0].grad)) == 3.0


def test_clipping_scales_down_and_returns_the_norm_before() -> None:
    params = [*with_gradients([3.0, 0.0], [[4.0]]), nn.Parameter(engine.ones(2))]
    norm = utils.clip_grad_norm_(params, 1.0)
    assert float(norm) == 5.0
    assert norm.shape == ()
    np.testing.assert_allclose(params[0].grad.numpy(), [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(params[1].grad.numpy(), [[0.8]], rtol=1e-6)


def test_clipping_never_scales_up() -> None:
    (param,) = with_gradients([3.0, 4.0])
    utils.clip_grad_norm_(param, 100.0)
    np.testing.assert_array_equal(param.grad.numpy(), [3.0, 4.0])


def test_clipping_with_another_norm() -> None:
    params = with_gradients([3.0, -4.0], [1.0])
    assert float(utils.clip_grad_norm_(params, 2.0, norm_type="inf")) == 4.0
    np.testing.assert_allclose(params[0].grad.numpy(), [1.5, -2.0], rtol=1e-6)


@pytest.mark.parametrize("size", [5, 70_000])
def test_every_layout_has_the_same_norm(size: int) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 1, size // 5 + 1)).astype(np.float32)
    norms = []
    for memory_format in (engine.contiguous_format, engine.channels_last):
        gradient = engine.from_numpy(values).contiguous(memory_format=memory_format)
        norms.append(float(utils.get_total_norm([gradient])))
    spread = engine.zeros(2, 3, 1, 2 * values.shape[3])
    spread[..., ::2] = engine.from_numpy(values)
    norms.append(float(utils.get_total_norm([spread[..., ::2]])))
    np.testing.assert_allclose(norms, np.linalg.norm(values.astype(float)), rtol=1e-6)


def test_norms_that_are_not_finite() -> None:
    params = with_gradients([float("nan"), 1.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert np.isnan(float(utils.clip_grad_norm_(params, 1.0)))
    assert np.isnan(params[0].grad.numpy()).all()
    params = with_gradients([float("inf"), 1.0])
    utils.clip_grad_norm_(params, 1.0)
    np.testing.assert_array_equal(params[0].grad.numpy(), [np.nan, 0.0])


def test_generators() -> None:
    params = with_gradients([3.0, 4.0])
    utils.clip_grad_norm_((each for each in params), 1.0)
    np.testing.assert_allclose(params[0].grad.numpy(), [0.6, 0.8], rtol=1e-6)
    with pytest.warns(UserWarning, match="empty generator"):
        utils.clip_grad_norm_((each for each in []), 1.0)


def test_clipping_counts_as_a_write() -> None:
    (param,) = with_gradients([3.0, 4.0])
    before = param.grad._version
    utils.clip_grad_norm_(param, 1.0)
    assert param.grad._version > before


def test_clipping_by_value() -> None:
    (param,) = with_gradients([-3.0, 0.5, 2.0])
    utils.clip_grad_value_(param, 1)
    np.testing.assert_array_equal(param.grad.numpy(), [-1.0, 0.5, 1.0])


def test_complex_gradients() -> None:
    param = nn.Parameter(engine.zeros(1, dtype=engine.complex64))
    param.grad = engine.from_numpy(np.array([3 + 4j], np.complex64))
    assert float(utils.clip_grad_norm_([param], 1.0)) == 5.0
    np.testing.assert_allclose(param.grad.numpy(), [0.6 + 0.8j], rtol=1e-5)


def test_vectors() -> None:
    model = nn.Linear(2, 3)
    vector = utils.parameters_to_vector(model.parameters())
    assert vector.shape == (9,)
    vector.sum().backward()
    assert float(model.weight.grad.sum()) == 6.0
    utils.vector_to_parameters(engine.arange(9.0), model.parameters())
    np.testing.assert_array_equal(model.weight.detach().numpy(), np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(model.bias.detach().numpy(), [6.0, 7.0, 8.0])
    with pytest.raises(RuntimeError, match="have 9 elements, the vector only 3"):
        utils.vector_to_parameters(engine.ones(3), model.parameters())
    with pytest.raises(TypeError, match="expected Tensor"):
        utils.vector_to_parameters([1.0], model.parameters())  # type: ignore[arg-type]


def test_a_prefix_is_taken_off_a_state_dict():
    from engine.nn.modules.utils import consume_prefix_in_state_dict_if_present

    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    wrapped = nn.ModuleDict({"module": model}).state_dict()
    consume_prefix_in_state_dict_if_present(wrapped, "module.")
    expected = model.state_dict()
    assert list(wrapped) == list(expected)
    assert wrapped._metadata.keys() == expected._metadata.keys()
    model.load_state_dict(wrapped)
    consume_prefix_in_state_dict_if_present(plain := dict(expected), "module.")
    assert list(plain) == list(expected)
