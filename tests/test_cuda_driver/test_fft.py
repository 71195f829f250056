"""cuFFT on the CPU driver: NumPy's transforms, and what a plan, a stream or a capture forbids."""

from types import ModuleType

import numpy as np
import pytest

from tests.cuda_driver import control

SLACK = {"float32": 1e-4, "complex64": 1e-4, "float64": 1e-11, "complex128": 1e-11}


def _values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + (1j * rng.normal(size=shape) if "complex" in dtype else 0)).astype(dtype)


def _close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=SLACK[dtype], atol=SLACK[dtype])


@pytest.mark.parametrize("size", [1, 2, 7, 16, 30, 101, 360])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_lengths(cupy: ModuleType, dtype: str, size: int) -> None:
    x = _values((3, size), dtype)
    for name in ("fft", "ifft"):
        _close(getattr(cupy.fft, name)(cupy.asarray(x)).get(), getattr(np.fft, name)(x), dtype)
    _close(cupy.fft.fft(cupy.asarray(x.T.copy()), axis=0).get(), np.fft.fft(x.T, axis=0), dtype)


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_several_axes(cupy: ModuleType, dtype: str, axes: tuple[int, ...]) -> None:
    for x in (_values((4, 5, 6), dtype), _values((4, 5, 6), dtype).T):
        for name in ("fftn", "ifftn"):
            found = getattr(cupy.fft, name)(cupy.asarray(x), axes=axes, norm="ortho").get()
            _close(found, getattr(np.fft, name)(x, axes=axes, norm="ortho"), dtype)


@pytest.mark.parametrize("last", [6, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_numbers(cupy: ModuleType, dtype: str, last: int) -> None:
    x = _values((4, 5, last), dtype)
    for axes in ((2,), (1, 2), (0, 1, 2), (2, 0)):
        expected = np.fft.rfftn(x, axes=axes)
        found = cupy.fft.rfftn(cupy.asarray(x), axes=axes)
        _close(found.get(), expected, dtype)
        sizes = [x.shape[axis] for axis in axes]
        _close(cupy.fft.irfftn(found, sizes, axes=axes).get(), x, dtype)
        _close(found.get(), expected, dtype)  # CuPy keeps its caller's from cuFFT


def test_what_no_real_numbers_have_is_ignored(cupy: ModuleType) -> None:
    x = _values((3, 5), "complex128")
    _close(cupy.fft.irfft2(cupy.asarray(x), (3, 8)).get(), np.fft.irfft2(x, (3, 8)), "complex128")


def _plan(cupy: ModuleType, size: int, kind: str = "CUFFT_Z2Z"):
    from cupy.cuda import cufft

    return cufft.Plan1d(size, getattr(cufft, kind), 1)


def test_a_plan_to_real_numbers_destroys_what_it_reads(cupy: ModuleType) -> None:
    x, result = cupy.ones(5, complex), cupy.empty(8)
    _plan(cupy, 8, "CUFFT_Z2D").fft(x, result, 1)
    assert np.isnan(x.get()).all()
    _close(result.get(), np.fft.irfft(np.ones(5)) * 8, "float64")


def test_a_graph_transforms_what_is_there_when_it_runs(cupy: ModuleType) -> None:
    x = cupy.zeros(8, complex)
    plan, result = _plan(cupy, 8), cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        plan.fft(x, result, -1)
        graph = stream.end_capture()
        x += 1
        graph.launch(stream)
        assert result.get().tolist() == [8, *[0] * 7]


def test_two_streams_do_not_share_what_a_plan_works_in(cupy: ModuleType) -> None:
    plan = _plan(cupy, 8)
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.ones(8, complex), cupy.ones(8, complex)
    cupy.cuda.Device().synchronize()
    with one:
        plan.fft(x, x, -1)
    with pytest.raises(RuntimeError, match="CUFFT_EXEC_FAILED"), other:
        plan.fft(y, y, -1)
    assert "race: cufft" in control.take_problems()[0]


def test_what_cufft_refuses(cupy: ModuleType) -> None:
    from cupy.cuda import cufft

    plan = _plan(cupy, 8)
    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(100), 0)  # not of the pool: its end is known
    x = cupy.ndarray(6, complex, memory)
    with pytest.raises(cufft.CuFFTError, match="INVALID_SIZE"):
        _plan(cupy, 0)
    with pytest.raises(cufft.CuFFTError, match="EXEC_FAILED"):
        plan.fft(x, x, -1)
    assert "cufft: bytes 0 to 128 of an allocation of 100" in control.take_problems()
    with pytest.raises(cufft.CuFFTError, match="INVALID_VALUE"):
        cufft.execZ2Z(plan.handle, memory.ptr + 4, memory.ptr, -1)
    assert control.take_problems() == ["cufft: data that is not aligned to complex numbers"]
    with pytest.raises(cufft.CuFFTError, match="INVALID_VALUE"):
        cufft.execC2C(plan.handle, memory.ptr, memory.ptr, -1)  # a plan of another type
    with pytest.raises(cufft.CuFFTError, match="INVALID_PLAN"):
        cufft.execZ2Z(12345, memory.ptr, memory.ptr, -1)
