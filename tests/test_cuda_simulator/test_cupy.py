"""The simulated GPU beside the installed CuPy, and beneath the engine."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine.memory import backend
from tests import cuda_simulator as simulator
from tests.cuda_simulator import api
from tests.data import cupy_api


def test_a_backward_runs_without_waiting(cuda: Any) -> None:
    x = engine.tensor([[1.0, 2.0], [3.0, 4.0]], device=cuda, requires_grad=True)
    (x * x).sum().backward()
    with simulator.counters() as count:
        (x * x).sum().backward()
    assert count.synchronizations == 0, count.waits
    assert x.grad is not None
    assert x.grad.cpu().tolist() == [[4.0, 8.0], [12.0, 16.0]]


def test_the_snapshot_is_that_of_the_installed_cupy() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
    if cupy.__version__.split(".")[:2] != api.snapshot()["version"].split(".")[:2]:
        pytest.skip(f"the snapshot is of CuPy {api.snapshot()['version']}, installed is {cupy.__version__}")
    assert json.loads(json.dumps(cupy_api.snapshot())) == api.snapshot()


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "T": lambda xp, x: x.T,
    "ravel": lambda xp, x: x.ravel(),
    "ravel by columns": lambda xp, x: x.ravel("F"),
    "reshape": lambda xp, x: x.reshape(-1),
    "reshape rows": lambda xp, x: x.reshape(x.shape[0], -1),
    "reshape by columns": lambda xp, x: x.reshape(-1, order="F"),
    "squeeze": lambda xp, x: x.squeeze(),
    "expand_dims": lambda xp, x: xp.expand_dims(x, 1),
    "swapaxes": lambda xp, x: x.swapaxes(0, -1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "last": lambda xp, x: x[..., 0],
    "newaxis": lambda xp, x: x[None, ..., None],
    "backwards": lambda xp, x: x[-1:0:-1],
    "diagonal": lambda xp, x: xp.diagonal(x),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, *x.shape)),
    "view": lambda xp, x: x.view("i4"),
    "flip": lambda xp, x: xp.flip(x),
    "rot90": lambda xp, x: xp.rot90(x),
    "split": lambda xp, x: xp.split(x, [1])[0],
    "ascontiguousarray": lambda xp, x: xp.ascontiguousarray(x),
    "empty_like": lambda xp, x: xp.empty_like(x),
    "empty_like by columns": lambda xp, x: xp.empty_like(x, order="F"),
    "astype": lambda xp, x: x.astype("f4", copy=False),
    "asarray": lambda xp, x: xp.asarray(x),
}


def layouts(xp: Any, memory: Any) -> dict[str, Any]:
    """Shape, strides, offset and flags of views of an array of every kind; nothing runs on a device."""
    base = xp.ndarray((2, 3, 4), "f4", memory)
    arrays = {
        "rows": base,
        "turned": base.transpose(2, 0, 1),
        "sliced": base[:, ::2, 1:],
        "one": base[:1],
        "backwards": base[::-1, :, ::-1],
        "spread": xp.broadcast_to(base[:1], (5, 3, 4)),
        "matrix": base[0],
    }
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        for what, view in VIEWS.items():
            try:
                seen = view(xp, array)
            except (
                RuntimeError,
                ValueError,
            ) as error:  # the copy that a device would have to make; a view that is none
                found[f"{what} of {name}"] = type(error).__name__
                continue
            shared = seen.data.mem is base.data.mem and seen.size
            offset = seen.data.ptr - base.data.ptr if shared else None
            flags = seen.flags.c_contiguous, seen.flags.f_contiguous
            found[f"{what} of {name}"] = (
                seen.shape,
                seen.strides if seen.size else None,
                offset,
                str(seen.dtype),
                flags,
            )
    return found


def test_views_are_those_of_the_installed_cupy() -> None:
    real = pytest.importorskip("cupy", reason="CuPy is not installed here")
    before = real.cuda.get_allocator()
    made_up = real.cuda.UnownedMemory(1 << 40, 1 << 20, None, 0)  # no view looks at it
    real.cuda.set_allocator(lambda size: real.cuda.MemoryPointer(real.cuda.UnownedMemory(1 << 42, size, None, 0), 0))
    try:
        try:
            real.cuda.runtime.getDeviceCount()
        except real.cuda.runtime.CUDARuntimeError:
            theirs = layouts(real, real.cuda.MemoryPointer(made_up, 0))
        else:
            pytest.skip("with a GPU, copies would be made of memory that is not there")
        simulator.install()
        xp = backend.require_cupy()
        mine = layouts(xp, xp.cuda.alloc(1 << 20))
    finally:
        simulator.uninstall()
        real.cuda.set_allocator(before)
    for name, found in theirs.items():
        assert found == mine[name] or found == "CUDARuntimeError", name
