"""cuSOLVER, and cuBLAS's LU, on the CPU driver: factors whose product is the matrix, and what a stream or a capture
forbids."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cuda_driver import control

DTYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(5, 5), (3, 5, 5), (2, 2, 40, 40)]


@contextmanager
def _found(*texts: str) -> Iterator[None]:
    """CuPy raises, and the driver says why."""
    with pytest.raises(RuntimeError):
        yield
    found = "\n".join(control.take_problems())
    assert all(text in found for text in texts), found


def _matrices(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """With condition numbers that leave float32 its digits."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=shape) + (1j * rng.normal(size=shape) if "complex" in dtype else 0)
    return (values + 4 * np.sqrt(shape[-1]) * np.eye(*shape[-2:])).astype(dtype)


def _positive(values: np.ndarray) -> np.ndarray:
    return values @ _adjoint(values) / values.shape[-1] + np.eye(values.shape[-1], dtype=values.dtype)


def _adjoint(values: np.ndarray) -> np.ndarray:
    return np.conj(values.swapaxes(-1, -2))


def _close(found: Any, expected: np.ndarray) -> None:
    slack = 1e-4 if found.dtype.itemsize // (1 + (found.dtype.kind == "c")) == 4 else 1e-11
    scale = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=slack, atol=slack * scale)


CALLS: dict[str, Callable[[Any, np.ndarray], tuple]] = {
    "inv": lambda linalg, x: (linalg.inv, x),
    "det": lambda linalg, x: (linalg.det, x[..., :5, :5]),
    "solve": lambda linalg, x: (linalg.solve, x, x[..., :2]),
    "cholesky": lambda linalg, x: (linalg.cholesky, _positive(x)),
    "eigvalsh": lambda linalg, x: (linalg.eigvalsh, _positive(x)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_of_numpy(cupy: ModuleType, dtype: str, name: str) -> None:
    for shape in SHAPES:
        x = _matrices(shape, dtype)
        function, *arguments = CALLS[name](cupy.linalg, x)
        expected, *_ = CALLS[name](np.linalg, x)
        found = function(*map(cupy.asarray, map(np.ascontiguousarray, arguments)))
        _close(found.get(), expected(*arguments))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvectors(cupy: ModuleType, dtype: str) -> None:
    for shape in SHAPES:
        x = _positive(_matrices(shape, dtype))
        lower = np.tril(x)
        for matrix, uplo in ((lower, "L"), (_adjoint(lower).copy(), "U")):
            values, vectors = (each.get() for each in cupy.linalg.eigh(cupy.asarray(matrix), uplo))
            _close((vectors * values[..., None, :]) @ _adjoint(vectors), x)
        x = _matrices(shape, dtype)
        values, vectors = (each.get() for each in cupy.linalg.eig(cupy.asarray(x)))
        _close(vectors * values[..., None, :], x @ vectors)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 6, 4), (2, 4, 6), (2, 40, 3), (2, 3, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_values_and_qr(cupy: ModuleType, dtype: str, shape: tuple[int, ...]) -> None:
    x = _matrices(shape, dtype)
    inner = min(shape[-2:])
    for full in (True, False):
        u, s, vh = (each.get() for each in cupy.linalg.svd(cupy.asarray(x), full_matrices=full))
        _close((u[..., :inner] * s[..., None, :]) @ vh[..., :inner, :], x)
        _close(_adjoint(u) @ u, np.eye(u.shape[-1]))
        _close(vh @ _adjoint(vh), np.eye(vh.shape[-2]))
        _close(s, np.linalg.svd(x, compute_uv=False))
    for mode in ("reduced", "complete"):
        q, r = (each.get() for each in cupy.linalg.qr(cupy.asarray(x), mode))
        _close(q @ r, x)
        _close(_adjoint(q) @ q, np.eye(q.shape[-1]))
        assert (np.tril(r, -1) == 0).all()


def test_what_cannot_be_done_is_reported(cupy: ModuleType) -> None:
    import cupyx

    singular = cupy.ones((2, 3, 3))
    with cupyx.errstate(linalg="raise"):
        for function, x in ((cupy.linalg.inv, singular), (cupy.linalg.cholesky, -singular[0])):
            with pytest.raises(np.linalg.LinAlgError):
                function(x)


def test_cupy_itself_refuses_both_libraries_in_a_capture(cupy: ModuleType) -> None:
    one, many = cupy.eye(3), cupy.eye(3)[None].repeat(2, 0)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    for call in (lambda: cupy.linalg.cholesky(one), lambda: cupy.linalg.inv(many)):
        with stream:
            call()  # what it allocates is in the pool afterwards
            stream.begin_capture()
            with pytest.raises(NotImplementedError, match="during stream capture"):
                call()
            stream.end_capture()


def test_factors_of_what_another_stream_writes(cupy: ModuleType) -> None:
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x = cupy.eye(3)[None].repeat(2, 0)
    places = cupy.asarray([x[i].data.ptr for i in range(2)], np.uint64)
    info = cupy.zeros(2, np.int32)
    cupy.cuda.Device().synchronize()
    with one:
        x += 1
    solver, handle = _solver(cupy)
    with _found("race", "cusolver potrfBatched"), other:
        solver.spotrfBatched(handle, 0, 3, places.data.ptr, 3, info.data.ptr, 2)


def _solver(cupy: ModuleType) -> tuple[ModuleType, int]:
    from cupy_backends.cuda.libs import cusolver

    return cusolver, cupy.cuda.Device().cusolver_handle


def test_arguments_that_cusolver_refuses(cupy: ModuleType) -> None:
    x = cupy.cuda.MemoryPointer(cupy.cuda.Memory(400), 0)  # not of the pool: its end is known
    more = cupy.empty(1000)
    solver, handle = _solver(cupy)
    place = more.data.ptr
    for call in (
        lambda: solver.dpotrf(handle, 0, 4, x.ptr, 3, place, 128, place),  # columns lie in each other
        lambda: solver.dpotrf(handle, 0, 4, x.ptr, 4, place, 1, place),  # too small to work in
        lambda: solver.dgesvd(
            handle, ord("A"), ord("A"), 2, 4, x.ptr, 2, place, place, 2, place, 4, place, 400, 0, place
        ),
    ):
        with pytest.raises(solver.CUSOLVERError, match="INVALID_VALUE"):
            call()
    with _found("cusolver potrf: bytes 0 to 800 of an allocation of 400"):
        solver.dpotrf(handle, 0, 10, x.ptr, 10, place, 320, place)
    host = np.eye(4)
    with _found("cusolver potrf: an operand that is not in device memory"):
        solver.dpotrf(handle, 0, 4, host.ctypes.data, 4, place, 128, place)


def test_a_function_that_is_not_there_says_so(cupy: ModuleType) -> None:
    solver, handle = _solver(cupy)
    with _found("cusolverDnDsytrf_bufferSize is not there"):
        solver.dsytrf_bufferSize(handle, 4, cupy.empty((4, 4)).data.ptr, 4)
