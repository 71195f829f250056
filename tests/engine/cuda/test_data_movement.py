"""Batches, parameters and checkpoints between host memory and a GPU: page-locked memory, copies that nobody waits for,
and the loader that is one batch ahead. On the CPU driver, writes to host memory are seen after the host has waited
only, and what is read or given away too early fails the test.
"""

import gc
from collections import namedtuple

import numpy as np
import pytest

import engine
import engine.nn as nn
from engine import data
from engine.autograd.graph import save_on_cpu
from engine.data.pinning import pin_memory, to_device
from engine.memory import transfer
from tests import cuda_device

LAYOUTS = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.permute(2, 0, 1),
    "strided": lambda x: x[::2, 1:, ::3],
    "expanded": lambda x: x[:, :1].expand(6, 5, 7),
    "0-dim": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def made(layout: str, dtype: engine.dtype = engine.float32) -> engine.Tensor:
    return LAYOUTS[layout](engine.arange(6 * 5 * 7).reshape(6, 5, 7).to(dtype))


# --- page-locked memory -----------------------------------------------------------------------------------------------


@layouts
@pytest.mark.parametrize("dtype", [engine.float32, engine.bfloat16, engine.int64, engine.bool, engine.complex64])
def test_pinned_copies(cuda, layout, dtype) -> None:
    x = made(layout, dtype)
    pinned = x.pin_memory()
    assert pinned.is_pinned() == (x.numel() > 0)
    assert not x.is_pinned()
    assert pinned.tolist() == x.tolist()
    assert (pinned.dtype, pinned.shape) == (x.dtype, x.shape)
    assert pinned.stride() == (x.stride() if x._spec.dense else x.clone().stride())
    assert pinned.pin_memory() is pinned or not x.numel()


def test_pinned_memory_lives_as_long_as_its_views(cuda) -> None:
    view = engine.arange(1000).pin_memory()[500:].view(250, 2)
    gc.collect()
    others = [engine.zeros(1000, dtype=engine.int64).pin_memory() for _ in range(3)]
    assert view.is_pinned()
    assert view.flatten().tolist() == list(range(500, 1000))
    assert all(other.sum().item() == 0 for other in others)


def test_pinned_from_the_start(cuda) -> None:
    x = engine.empty(2, 3, 4, 5, pin_memory=True, memory_format=engine.channels_last, dtype=engine.float16)
    assert x.is_pinned()
    assert x.is_contiguous(memory_format=engine.channels_last)
    assert engine.empty(3, pin_memory=True, requires_grad=True).requires_grad
    assert not engine.empty(3).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        engine.empty(3, pin_memory=True, device=cuda)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        engine.empty(3, device=cuda).pin_memory()
    assert not engine.empty(3, device=cuda).is_pinned()


def test_without_a_gpu(monkeypatch) -> None:
    def missing() -> None:
        raise RuntimeError("no GPU here")

    monkeypatch.setattr("engine.memory.backend.require_cupy", missing)
    monkeypatch.setattr("engine.memory.backend._cupy", None)
    with pytest.raises(RuntimeError, match="Cannot access accelerator device when none is available: no GPU here"):
        engine.ones(2).pin_memory()
    with pytest.raises(RuntimeError, match="pin_memory=True requires a CUDA or other accelerator backend; no GPU"):
        engine.empty(2, pin_memory=True)
    assert not engine.ones(2).is_pinned()
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        loader = data.DataLoader(data.TensorDataset(engine.ones(2)), pin_memory=True)
    assert [batch[0].tolist() for batch in loader] == [[1], [1]]


# --- copies -----------------------------------------------------------------------------------------------------------


@layouts
@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("dtype", [engine.float32, engine.float16])
def test_to_a_gpu_and_back(cuda, layout, non_blocking, pinned, dtype) -> None:
    x = made(layout)
    x = x.pin_memory() if pinned else x
    there = x.to(cuda, dtype, non_blocking=non_blocking)
    assert there.stride() == x.clone().stride() or not x.numel()
    back = there.to("cpu", engine.float32, non_blocking=non_blocking)
    assert back.is_pinned() == (non_blocking and x.numel() > 0)
    engine.cuda.synchronize()
    assert back.tolist() == x.tolist()
    assert back.stride() == there.stride()


def test_copies_from_pinned_memory_wait_for_nothing(cuda) -> None:
    x = engine.randn(64, 64).pin_memory()
    with cuda_device.counters() as count:
        there = x.to(cuda, non_blocking=True)
        there = there + x.cuda(non_blocking=True)
        back = there.to("cpu", non_blocking=True)
    assert count.synchronizations == count.pageable == 0
    engine.cuda.synchronize()
    np.testing.assert_allclose(back.numpy(), 2 * x.numpy())


def test_the_source_may_go_before_the_copy_has_run(cuda) -> None:
    """Page-locked memory that is free goes to whoever asks next: not before the copy has run."""
    expected = engine.arange(5000.0)
    side = engine.cuda.Stream()
    with engine.cuda.stream(side):
        there = expected.pin_memory().to(cuda, non_blocking=True)
    assert len(transfer._under_way) == 1
    gc.collect()
    assert engine.zeros(5000).pin_memory().sum().item() == 0  # would overwrite it
    side.synchronize()
    assert there.tolist() == expected.tolist()
    engine.ones(1).pin_memory().to(cuda, non_blocking=True)
    assert len(transfer._under_way) == 1  # what has run is let go


def test_a_blocking_copy_may_be_followed_by_a_write(cuda) -> None:
    x = engine.ones(1000).pin_memory()
    there = x.to(cuda)
    x.zero_()
    assert there.sum().item() == 1000


def test_gradients_cross_devices(cuda) -> None:
    x = engine.arange(6.0).reshape(2, 3).pin_memory().requires_grad_()
    (x.to(cuda, non_blocking=True) * 3).to("cpu").sum().backward()
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [[3, 3, 3], [3, 3, 3]]


@layouts
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("non_blocking", [True, False])
def test_copy_into_existing_memory(cuda, layout, pinned, non_blocking) -> None:
    x = made(layout)
    x = x.pin_memory() if pinned else x
    for dtype in (engine.float32, engine.float64):
        there = engine.zeros(tuple(x.shape), dtype=dtype, device=cuda)
        assert there.copy_(x, non_blocking=non_blocking) is there
        assert there.cpu().tolist() == x.tolist()
        assert there._version == 1
        back = engine.zeros(tuple(x.shape), dtype=engine.float32)
        back = back.pin_memory() if pinned else back
        back.copy_(there, non_blocking=non_blocking)
        engine.cuda.synchronize()
        assert back.tolist() == x.tolist()


def test_copy_into_pinned_memory_goes_there_directly(cuda) -> None:
    there, host = engine.randn(100, device=cuda), engine.zeros(100).pin_memory()
    with cuda_device.counters() as count:
        host.copy_(there, non_blocking=True)
        there.copy_(host.pin_memory(), non_blocking=True)
    assert count.synchronizations == count.device_copies == count.pageable == 0
    assert count.pinned == 2 or not cuda_device.ours()
    engine.cuda.synchronize()
    assert host.tolist() == there.tolist()


def test_copy_broadcasts_and_records(cuda) -> None:
    there = engine.zeros(3, 4, device=cuda)
    there.copy_(engine.arange(4.0).pin_memory(), non_blocking=True)
    assert there.tolist() == [[0, 1, 2, 3]] * 3
    x = engine.ones(3, 4).pin_memory().requires_grad_()
    (there * 1).copy_(x, non_blocking=True).sum().backward()
    assert x.grad.tolist() == [[1] * 4] * 3


def test_modules_move_without_waiting(cuda) -> None:
    layer = nn.Linear(8, 4)
    expected = layer.weight.tolist()
    for parameter in layer.parameters():
        parameter.data = parameter.data.pin_memory()
    with cuda_device.counters() as count:
        layer.to(cuda, non_blocking=True)
    assert count.synchronizations == 0
    assert layer.weight.is_cuda
    assert layer.weight.tolist() == expected


@pytest.mark.parametrize("pinned", [True, False])
def test_saved_tensors_wait_in_host_memory(cuda, pinned) -> None:
    x = engine.arange(6.0, device=cuda).requires_grad_()
    engine.randn(2).pin_memory()
    with cuda_device.counters() as count, save_on_cpu(pinned):
        y = (x * x).exp().sum()
    assert count.synchronizations == (0 if pinned else 3) or not cuda_device.ours()
    with cuda_device.counters() as count, engine.cuda.stream(engine.cuda.Stream()):
        engine.cuda.current_stream().wait_stream(engine.cuda.default_stream())
        y.backward()
    assert count.synchronizations == 0 or not pinned
    engine.cuda.synchronize()
    expected = 2 * np.arange(6.0) * np.exp(np.arange(6.0) ** 2)
    np.testing.assert_allclose(x.grad.cpu().numpy(), expected, rtol=1e-5)


# --- batches ----------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x y")


class Own:
    def __init__(self) -> None:
        self.pinned = False

    def pin_memory(self) -> "Own":
        self.pinned = True
        return self


def test_structures_are_pinned(cuda) -> None:
    batch = {"pair": Pair(engine.ones(2), "text"), "list": [engine.ones(1), b"bytes"], "own": Own(), "n": 3}
    found = pin_memory(batch)
    assert found["pair"].x.is_pinned()
    assert found["pair"].y == "text"
    assert found["list"][0].is_pinned()
    assert found["list"][1] == b"bytes"
    assert found["own"].pinned
    assert found["n"] == 3
    moved = to_device((engine.ones(2), {"x": engine.ones(1)}), cuda)
    assert moved[0].is_cuda
    assert moved[1]["x"].is_cuda


class Squares(data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[engine.Tensor, int]:
        return engine.full((3,), float(index**2)), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_pinned_batches(cuda, workers) -> None:
    loader = data.DataLoader(Squares(), 4, pin_memory=True, num_workers=workers, pin_memory_device="cuda")
    batches = list(loader)
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert all(x.is_pinned() and y.is_pinned() for x, y in batches)
    assert [y.tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(iter(loader)) == len(loader) == 3 or workers


@pytest.mark.parametrize("pinned", [True, False])
def test_the_prefetcher_is_one_batch_ahead(cuda, pinned) -> None:
    fetched = []

    class Counted(Squares):
        def __getitem__(self, index: int) -> tuple[engine.Tensor, int]:
            fetched.append(index)
            return super().__getitem__(index)

    loader = data.DevicePrefetcher(data.DataLoader(Counted(), 4, pin_memory=pinned), cuda)
    assert len(loader) == 3
    total, seen = engine.zeros(3, device=cuda), []
    for _ in range(2):
        fetched.clear()
        for number, (x, y) in enumerate(loader):
            assert x.is_cuda
            assert y.is_cuda
            assert len(fetched) == min(4 * (number + 2), 10)
            total += x.sum(0) * 2
            seen.append(y)
            del x, y  # memory of the stream that copied, while this one may still read it
    assert total.tolist() == [2 * 2 * sum(i**2 for i in range(10))] * 3
    assert [i for y in seen for i in y.tolist()] == [*range(10)] * 2


def test_the_prefetcher_waits_for_nothing(cuda) -> None:
    batches = [engine.randn(16, 4).pin_memory() for _ in range(4)]
    with cuda_device.counters() as count:
        total = sum(x.sum() for x in data.DevicePrefetcher(batches, cuda))
    assert count.synchronizations == count.pageable == 0
    assert total.item() == pytest.approx(sum(x.sum().item() for x in batches), abs=1e-4)


def test_the_prefetcher_on_another_stream(cuda) -> None:
    loader = data.DevicePrefetcher([engine.full((1000,), float(i)) for i in range(5)], cuda)
    with engine.cuda.stream(engine.cuda.Stream()):
        assert [x.mean().item() for x in loader] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="DevicePrefetcher copies to a GPU; expected a cuda device, got cpu"):
        data.DevicePrefetcher([], "cpu")


def test_an_error_of_the_dataset_arrives(cuda) -> None:
    def batches():
        yield engine.ones(2)
        raise ValueError("a broken file")

    with pytest.raises(ValueError, match="a broken file"):
        list(data.DevicePrefetcher(batches(), cuda))


def test_memory_belongs_to_streams_on_gpus_only(cuda) -> None:
    x = engine.ones(2, device=cuda)
    x.record_stream(engine.cuda.current_stream())
    with pytest.raises(RuntimeError, match="record_stream: only memory of a GPU belongs to streams"):
        engine.ones(2).record_stream(engine.cuda.current_stream())


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_go_where_they_are_mapped(cuda, tmp_path) -> None:
    layer = nn.Conv2d(2, 3, 3).to(cuda).to(memory_format=engine.channels_last)
    optimizer = engine.optim.AdamW(layer.parameters(), lr=0.1)
    layer(engine.ones(1, 2, 4, 4, device=cuda)).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint.safetensors"
    engine.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}, path)
    to_host = ("cpu", {"cuda:0": "cpu"}, lambda tensor, location: tensor)
    for where in (None, cuda, *to_host):
        found = engine.load(path, map_location=where)
        weight = found["model"]["weight"]
        assert weight.device.type == ("cpu" if where in to_host else "cuda")
        assert weight.stride() == layer.weight.stride()
        assert weight.tolist() == layer.weight.tolist()
        again = nn.Conv2d(2, 3, 3).to(cuda).to(memory_format=engine.channels_last)
        again.load_state_dict(found["model"])
        fresh = engine.optim.AdamW(again.parameters(), lr=0.1)
        fresh.load_state_dict(found["optimizer"])
        assert fresh.state[again.weight]["exp_avg"].is_cuda
        assert fresh.state[again.weight]["exp_avg"].tolist() == optimizer.state[layer.weight]["exp_avg"].tolist()
