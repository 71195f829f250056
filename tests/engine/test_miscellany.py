"""Small public functions that belong to no family, and older names."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine import nn


def test_names_of_types() -> None:
    assert engine.typename(engine.ones(1)) == "engine.FloatTensor"
    assert engine.typename(nn.Linear(1, 1)) == engine.typename(nn.Linear) == "engine.nn.linear.Linear"
    assert engine.typename(3) == "int"


def test_default_tensor_type() -> None:
    try:
        engine.set_default_tensor_type("torch.DoubleTensor")
        assert engine.ones(1).dtype is engine.float64
        engine.set_default_tensor_type(engine.FloatTensor)
        assert engine.ones(1).dtype is engine.float32
        with pytest.raises(TypeError, match=r"FloatTensor, .* got 'torch.cuda.FloatTensor'; for a device"):
            engine.set_default_tensor_type("torch.cuda.FloatTensor")
    finally:
        engine.set_default_dtype(engine.float32)


def test_switches_and_questions() -> None:
    engine.set_anomaly_enabled(True)
    try:
        assert engine.is_anomaly_enabled()
    finally:
        engine.set_anomaly_enabled(False)
    assert engine.set_flush_denormal(True) is False
    assert engine.get_device(engine.ones(1)) == -1
    with engine.inference_mode():
        assert engine.is_inference(engine.ones(1))
    assert not engine.is_inference(engine.ones(1))
    assert engine.version.cuda is None


def test_buffers() -> None:
    memory = bytearray(np.arange(4, dtype=np.int16).tobytes())
    tensor = engine.frombuffer(memory, dtype=engine.int16, count=2, offset=2)
    assert tensor.tolist() == [1, 2]
    tensor[0] = 9
    assert memory[2] == 9
    frozen = engine.frombuffer(bytes(8), dtype=engine.float64, requires_grad=True)
    assert frozen.requires_grad
    assert engine.from_dlpack(np.ones(2)).tolist() == [1.0, 1.0]
    assert engine.to_dlpack(engine.ones(2)) is not None
    with pytest.raises(ValueError, match="buffer"):
        engine.frombuffer(bytes(2), dtype=engine.float64)


def test_older_functions_and_forms_with_indices() -> None:
    x = engine.randn(1, 2, 4, 4)
    assert engine.equal(F.upsample_nearest(x, scale_factor=2), F.interpolate(x, scale_factor=2))
    assert engine.equal(
        F.upsample_bilinear(x, size=(6, 6)), F.interpolate(x, size=(6, 6), mode="bilinear", align_corners=True)
    )
    values, places = F.max_pool2d_with_indices(x, 2)
    assert engine.equal(values, F.max_pool2d(x, 2))
    assert engine.equal(values, x.flatten(2).gather(2, places.flatten(2)).reshape(values.shape))
    values, _ = F.adaptive_max_pool2d_with_indices(x, 2)
    assert engine.equal(values, F.adaptive_max_pool2d(x, 2))
    assert F.max_pool1d_with_indices(x[0], 2)[1].shape == F.adaptive_max_pool1d_with_indices(x[0], 2)[1].shape
    assert F.max_pool3d_with_indices(x, 2)[1].shape == F.adaptive_max_pool3d_with_indices(x, (1, 2, 2))[1].shape


def test_distances_of_all_pairs() -> None:
    points = engine.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], requires_grad=True)
    distances = F.pdist(points)
    np.testing.assert_allclose(distances.detach(), [5.0, 1.0, 18.0**0.5], rtol=1e-6)
    distances[0].backward()
    np.testing.assert_allclose(points.grad[1], [0.6, 0.8], rtol=1e-6)
    assert F.pdist(engine.ones(1, 2)).shape == (0,)
    with pytest.raises(RuntimeError, match="pdist only supports 2D tensors, got: 1D"):
        F.pdist(engine.ones(2))


@pytest.mark.parametrize("name", ["uniform", "normal", "constant", "eye", "xavier_uniform", "kaiming_normal", "sparse"])
def test_older_initialisers_say_their_new_name(name: str) -> None:
    arguments = {"constant": (2.0,), "sparse": (0.5,)}.get(name, ())
    weight = engine.empty(3, 4)
    with pytest.warns(FutureWarning, match=rf"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`"):
        assert getattr(nn.init, name)(weight, *arguments) is weight


def test_older_clipping() -> None:
    weight = nn.Parameter(engine.zeros(2))
    weight.grad = engine.tensor([3.0, 4.0])
    with pytest.warns(FutureWarning, match="clip_grad_norm_"):
        assert nn.utils.clip_grad_norm([weight], 1.0) == 5
    np.testing.assert_allclose(weight.grad, [0.6, 0.8], rtol=1e-5)


def test_counts() -> None:
    engine.manual_seed(0)
    rates = engine.full((4000,), 3.0)
    draws = engine.poisson(rates)
    assert draws.dtype is engine.float32
    assert engine.equal(draws, draws.round())
    assert abs(draws.mean().item() - 3) < 0.2
    successes = engine.binomial(engine.full((4000,), 10.0), engine.tensor(0.3))
    assert successes.max() <= 10
    assert abs(successes.mean().item() - 3) < 0.2
    same = [engine.poisson(rates, generator=engine.Generator().manual_seed(5)) for _ in range(2)]
    assert engine.equal(*same)
    with pytest.raises(RuntimeError, match=r"expected rates that are not negative, got -1.0"):
        engine.poisson(-engine.ones(1))
    with pytest.raises(ValueError, match="p > 1"):
        engine.binomial(engine.ones(1), engine.tensor(2.0))


def test_mixed_precision_has_its_short_names() -> None:
    assert engine.autocast is engine.amp.autocast
    assert engine.GradScaler is engine.amp.GradScaler
    assert "poisson" in dir(engine)
    assert "nn" in dir(engine)


def test_results_with_two_names_say_so() -> None:
    assert repr(engine.max(engine.tensor([[1.0, 2.0]]), 1)).endswith("(\nvalues=tensor([2.]),\nindices=tensor([1]))")
