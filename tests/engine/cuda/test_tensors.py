"""Tensors on the device: values for the host, printing, factories, indices, host numbers beside them, writes in place,
files.
"""

import io
import pickle
from typing import Any

import numpy as np
import pytest

import engine
from tests import cuda_device
from tests.engine.cuda.comparison import assert_same

# --- values for the host ----------------------------------------------------------------------------------------------


def test_values_for_the_host(cuda: engine.device) -> None:
    x = engine.tensor([[1.5, 2.0]], device=cuda)
    assert (x[0, 0].item(), x.tolist(), float(x[0, 1]), bool(x[0, 0])) == (1.5, [[1.5, 2.0]], 2.0, True)
    assert engine.tensor([2.5], dtype=engine.bfloat16, device=cuda).tolist() == [2.5]
    assert engine.tensor(2.5, dtype=engine.bfloat16, device=cuda).item() == 2.5
    np.testing.assert_array_equal(x.numpy(force=True), [[1.5, 2.0]])
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"can't convert cuda:0 tensor to numpy; use tensor.cpu\(\)"):
            convert()


def test_repr_says_where(cuda: engine.device) -> None:
    x = engine.tensor([1.0, 2.0], device=cuda)
    assert repr(x) == "tensor([1., 2.], device='cuda:0')"
    assert repr(x.requires_grad_()) == "tensor([1., 2.], device='cuda:0', requires_grad=True)"
    assert repr(engine.zeros(0, 3, device=cuda)) == "tensor([], device='cuda:0', size=(0, 3))"


def test_attributes(cuda: engine.device) -> None:
    x = engine.zeros(2, 3, device="cuda")
    assert x.is_cuda
    assert not x.is_cpu
    assert x.device is cuda
    assert x.get_device() == 0
    view = x[1:].t()
    assert (view.storage_offset(), view.stride(), view.untyped_storage().data_ptr()) == (3, (1, 3), x.data_ptr())
    assert view.as_strided((2,), (1,), 0).data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided((1000, 1000), (1000, 1))


# --- made there -------------------------------------------------------------------------------------------------------

FACTORIES: dict[str, Any] = {
    "arange": lambda **at: engine.arange(5, **at),
    "arange of floats": lambda **at: engine.arange(0.5, 3, 0.25, **at),
    "arange int32": lambda **at: engine.arange(7, 0, -2, dtype=engine.int32, **at),
    "linspace": lambda **at: engine.linspace(-1, 2, 7, **at),
    "linspace of one": lambda **at: engine.linspace(3, 5, 1, **at),
    "linspace half": lambda **at: engine.linspace(0, 1, 5, dtype=engine.float16, **at),
    "logspace": lambda **at: engine.logspace(0, 2, 4, **at),
    "eye": lambda **at: engine.eye(3, 4, **at),
    "full": lambda **at: engine.full((2, 3), 7, **at),
    "zeros": lambda **at: engine.zeros(2, 3, **at),
    "ones": lambda **at: engine.ones(2, 3, dtype=engine.bool, **at),
    "full bfloat16": lambda **at: engine.full((2,), 1.5, dtype=engine.bfloat16, **at),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_build_on_the_device(name: str, cuda: engine.device) -> None:
    expected = FACTORIES[name]()
    with cuda_device.counters() as count:
        found = FACTORIES[name](device=cuda)
    assert_same(found, expected, name)
    if cuda_device.ours():
        assert (count.synchronizations, count.pageable, count.pinned) == (0, 0, 0)


def test_data_and_arrays_of_the_device(cuda: engine.device) -> None:
    x = engine.tensor([[1, 2], [3, 4]], device=cuda)
    assert (x.dtype, x.tolist()) == (engine.int64, [[1, 2], [3, 4]])
    raw = x._array
    shared, copied = engine.as_tensor(raw), engine.tensor(raw, dtype=engine.float32)
    x[0, 0] = 9
    assert (shared[0, 0].item(), copied[0, 0].item(), copied.is_cuda) == (9, 1.0, True)
    with cuda:
        assert engine.tensor([1.0]).is_cuda
        assert engine.rand(2).is_cuda
    assert x.new_ones(2).is_cuda
    assert engine.zeros_like(x).is_cuda
    assert engine.tensor([1.0]).is_cpu


@pytest.mark.parametrize("layout", ["row-major", "transposed", "channels-last", "sliced", "expanded", "empty"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "complex64", "bool"])
def test_round_trips_keep_values_and_layout(layout: str, kind: str, cuda: engine.device) -> None:
    x = engine.arange(120).reshape(2, 3, 4, 5).remainder(7).to(getattr(engine, kind))
    x = {
        "row-major": x,
        "transposed": x.transpose(0, 3),
        "channels-last": x.to(memory_format=engine.channels_last),
        "sliced": x[:, ::2, 1:, ::3],
        "expanded": x[:1].expand(3, 3, 4, 5),
        "empty": x[:0],
    }[layout]
    there = x.to(cuda)
    back = there.cpu()
    wanted = x.clone()
    assert (there.stride(), back.stride(), there.dtype) == (wanted.stride(), wanted.stride(), x.dtype)
    assert engine.equal(back, wanted)
    converted = x.to(cuda, engine.float64)
    assert converted.dtype is engine.float64
    real = wanted.real if wanted.is_complex() else wanted
    assert engine.equal(converted.cpu(), real.to(engine.float64))


# --- host numbers beside them -----------------------------------------------------------------------------------------


def test_0_dim_host_tensors_stand_beside_tensors_of_the_device(cuda: engine.device) -> None:
    x = engine.arange(3.0, device=cuda)
    two = engine.tensor(2.0, dtype=engine.float64)
    for call in (lambda a, b: a * b, lambda a, b: b - a, lambda a, b: engine.where(a > 1, a, b), engine.maximum):
        found, expected = call(x, two), call(x.cpu(), two)
        assert_same(found, expected, "beside a number")
    assert (x[0] + two).is_cuda
    x += two
    assert x.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(RuntimeError, match="expected all tensors to be on the same device, but found cpu, cuda:0"):
        x + engine.ones(3)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "complex64"])
def test_gradients_of_host_numbers_are_in_host_memory(kind: str, cuda: engine.device) -> None:
    slopes = []
    for device in (engine.device("cpu"), cuda):
        x = engine.arange(1.0, 7.0).reshape(2, 3).to(getattr(engine, kind)).to(device).requires_grad_()
        scale = engine.tensor(1.5, dtype=getattr(engine, kind), requires_grad=True)
        shift = engine.tensor(0.25, dtype=engine.float32, requires_grad=True)
        y = (x * scale + shift) / scale
        y.backward(engine.ones_like(y))
        assert scale.grad is not None
        assert shift.grad is not None
        assert x.grad is not None
        assert scale.grad.is_cpu
        assert shift.grad.is_cpu
        assert x.grad.device is device
        slopes.append([scale.grad, shift.grad, x.grad.cpu()])
    for found, expected in zip(slopes[1], slopes[0], strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert engine.allclose(found, expected, rtol=1e-2)


def test_second_derivatives_of_host_numbers(cuda: engine.device) -> None:
    x = engine.arange(1.0, 4.0, device=cuda, dtype=engine.float64).requires_grad_()
    scale = engine.tensor(3.0, dtype=engine.float64, requires_grad=True)
    (slope,) = engine.autograd.grad((x * x * scale).sum(), scale, create_graph=True)
    assert slope.is_cpu
    assert slope.item() == 14.0
    (again,) = engine.autograd.grad(slope, x)
    assert again.tolist() == [2.0, 4.0, 6.0]


# --- indices ----------------------------------------------------------------------------------------------------------

KEYS: dict[str, Any] = {
    "list": lambda at: [2, 0],
    "negative": lambda at: engine.tensor([-1, 1], device=at),
    "two": lambda at: (engine.tensor([0, 2], device=at), engine.tensor([[1], [-1]], device=at)),
    "apart": lambda at: (engine.tensor([0, 2], device=at), slice(None), engine.tensor([1, 0], device=at)),
    "mask": lambda at: engine.tensor([True, False, True], device=at),
    "int32": lambda at: engine.tensor([0, 2], dtype=engine.int32, device=at),
    "slices": lambda at: (slice(1, None), None, ..., slice(None, None, 2)),
    "number": lambda at: (engine.tensor(1, device=at), 2),
}


@pytest.mark.parametrize("indices_at", ["cpu", "cuda"])
@pytest.mark.parametrize("name", KEYS)
def test_indices(name: str, indices_at: str, cuda: engine.device) -> None:
    key, host_key = KEYS[name](indices_at), KEYS[name]("cpu")
    here = engine.arange(24.0).reshape(3, 4, 2).requires_grad_()
    there = here.detach().to(cuda).requires_grad_()
    expected, found = here[host_key], there[key]
    assert_same(found, expected, "getitem")
    expected.backward(engine.ones_like(expected))
    found.backward(engine.ones_like(found))
    assert_same(there.grad, here.grad, "its derivative")
    for value in (7, 2.5):
        one, other = there.detach().clone(), here.detach().clone()
        one[key] = value
        other[host_key] = value
        assert_same(one, other, "setitem of a number")
    one, other = there.detach().clone().requires_grad_() * 1, here.detach().clone().requires_grad_() * 1
    one[key] = engine.ones_like(found).detach()
    other[host_key] = engine.ones_like(expected).detach()
    assert_same(one, other, "setitem of a tensor")


def test_indices_of_the_device_do_not_index_host_tensors(cuda: engine.device) -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        engine.arange(3)[engine.tensor([0], device=cuda)]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int64", "int8", "bool", "complex64"])
def test_values_that_meet_are_added_in_order(kind: str, cuda: engine.device) -> None:
    made = []
    for device in ("cpu", cuda):
        x = engine.zeros(4, 3, dtype=getattr(engine, kind), device=device)
        index = engine.tensor([1, 3, 1, 1, 0], device=device)
        values = engine.arange(15).reshape(5, 3).remainder(2).to(x.dtype).to(device)
        x.index_add_(0, index, values)
        x.index_put_((index, index.remainder(3)), values[:, 0], accumulate=True)
        made += [x, x.t().scatter_add(1, index.unsqueeze(0), values.t()[:1].contiguous())]
    for found, expected in zip(made[2:], made[:2], strict=True):
        assert_same(found, expected, kind)


def test_unique_nonzero_and_sorting(cuda: engine.device) -> None:
    x = engine.tensor([[3, 1, 3], [2, 1, 2]])
    y = x.to(cuda)
    for call in (
        lambda t: engine.unique(t, return_inverse=True, return_counts=True),
        lambda t: engine.unique_consecutive(t.reshape(-1), return_inverse=True, return_counts=True),
        lambda t: (t.nonzero(), t.float().topk(2)[0], *t.sort(1, descending=True), *t.mode(1), t.argsort(0)),
        lambda t: (
            engine.bincount(t.reshape(-1)),
            engine.histc(t.float(), 4),
            t.reshape(-1).repeat_interleave(t[:, 0].sum() - 3),
        ),
        lambda t: (t.float().reshape(-1).repeat_interleave(t.reshape(-1)), engine.searchsorted(t.sort(1)[0], t)),
        lambda t: (t.float().quantile(0.25, 1), t.float().median(), engine.isin(t, t[0]), t.float().cummax(1)[1]),
    ):
        for found, expected in zip(call(y), call(x), strict=True):
            assert_same(found, expected, "data-dependent")


# --- writes and files -------------------------------------------------------------------------------------------------


def test_writes_in_place_and_out(cuda: engine.device) -> None:
    results = []
    for device in ("cpu", cuda):
        x = engine.arange(6.0, device=device).reshape(2, 3)
        x.t()[1:].mul_(2).add_(x[:, :2].t(), alpha=0.5)
        x.clamp_(max=4).masked_fill_(x == 4, -1)
        x[:, 0].copy_(engine.tensor([7.0, 8.0], dtype=engine.float64))
        out = engine.empty(0, device=device)
        engine.add(x, x, out=out)
        engine.matmul(x, x.t(), out=(square := engine.empty(2, 2, device=device)))
        total = engine.zeros(3, device=device)
        engine.sum(x, 0, out=total)
        results.append([x, out, square, total])
    for found, expected in zip(results[1], results[0], strict=True):
        assert_same(found, expected, "written")


def test_files_remember_the_device(cuda: engine.device) -> None:
    state = {"w": engine.arange(6.0, device=cuda).reshape(2, 3).t(), "b": engine.ones(2), "step": 3}
    file = io.BytesIO()
    engine.save(state, file)
    file.seek(0)
    found = engine.load(file)
    assert found["w"].device is cuda
    assert found["w"].stride() == (1, 3)
    assert found["b"].is_cpu
    assert found["w"].tolist() == state["w"].tolist()
    file.seek(0)
    assert engine.load(file, map_location="cpu")["w"].is_cpu
    file.seek(0)
    assert engine.load(file, map_location=lambda tensor, where: tensor.to("cpu"))["w"].is_cpu
    file.seek(0)
    assert engine.load(file, map_location={"cuda:0": "cpu"})["w"].is_cpu
    assert pickle.loads(pickle.dumps(state["w"])).device is cuda


def test_dlpack_shares_memory(cuda: engine.device) -> None:
    x = engine.arange(24.0, device=cuda).reshape(4, 6)
    for source in (x, x[1:, ::2], x.t()):
        found = engine.from_dlpack(source)
        assert found.data_ptr() == source.data_ptr()
        assert found.stride() == source.stride()
        assert found.untyped_storage().nbytes() == 4 * (
            1 + sum((size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True))
        )
        assert found.tolist() == source.tolist()


def test_deep_copies_stay_on_the_device(cuda: engine.device) -> None:
    import copy

    x = engine.ones(2, device=cuda, requires_grad=True)
    y = copy.deepcopy(x)
    assert y.is_cuda
    assert y.requires_grad
    assert y.data_ptr() != x.data_ptr()


def test_bfloat16_where_cupy_has_no_kernels_for_it(cuda: engine.device) -> None:
    """CuPy 14 neither picks, tests, sorts nor clips bfloat16: all is done in single precision."""
    x = engine.tensor([[3.0, -1.0, 3.0], [0.0, 2.0, 0.0]], dtype=engine.bfloat16)
    for call in (
        lambda t: (t.argmax(1), t.argmin(1), *t.max(1), t.any(1), t.all(1), t.unique(), t.cummax(1)[1]),
        lambda t: (*t.sort(1), t.topk(2)[0], t.clamp(0, 2), t.where(t > 0, 0), t.nonzero(), t.float().histc(3)),
    ):
        for found, expected in zip(call(x.to(cuda)), call(x), strict=True):
            assert_same(found, expected, "bfloat16")
