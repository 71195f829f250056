"""engine.fft against NumPy's: sizes, norms, axes, dtypes, errors. Derivatives: tests/engine/test_operators.py."""

from collections.abc import Callable

import numpy as np
import pytest

import engine
from engine import fft

STREAM = np.random.RandomState(0)
REAL = STREAM.standard_normal((3, 6))
WAVES = REAL + 1j * STREAM.standard_normal((3, 6))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 4, 9])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(name: str, dim: int, n: int | None, norm: str | None) -> None:
    array = REAL if name in ("rfft", "ihfft") else WAVES
    found = getattr(fft, name)(engine.from_numpy(array), n, dim, norm)
    np.testing.assert_allclose(found.numpy(), getattr(np.fft, name)(array, n, dim, norm), atol=1e-12)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"])
@pytest.mark.parametrize("s", [None, (4, 5)])
def test_several_axes(name: str, s: tuple[int, int] | None) -> None:
    array = REAL if name.startswith("rfft") else WAVES
    found = getattr(fft, name)(engine.from_numpy(array), s)
    expected = getattr(np.fft, name)(array, s, axes=(-2, -1))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_dtypes_and_frequencies() -> None:
    assert fft.fft(engine.ones(4)).dtype is engine.complex64
    assert fft.fft(engine.ones(4).long()).dtype is engine.complex64
    assert fft.irfft(engine.ones(3, dtype=engine.complex128)).dtype is engine.float64
    np.testing.assert_allclose(fft.fftfreq(5, 0.5).numpy(), np.fft.fftfreq(5, 0.5), rtol=1e-6)
    np.testing.assert_allclose(fft.rfftfreq(6, 0.5).numpy(), np.fft.rfftfreq(6, 0.5), rtol=1e-6)
    x = engine.arange(6).reshape(2, 3)
    assert fft.fftshift(x).tolist() == np.fft.fftshift(x.numpy()).tolist()
    assert engine.equal(fft.ifftshift(fft.fftshift(x)), x)


def test_a_short_time_spectrum_is_undone() -> None:
    signal, window = engine.from_numpy(STREAM.standard_normal(64)), engine.hann_window(16, dtype=engine.float64)
    spectrum = engine.stft(signal, 16, 4, window=window, return_complex=True)
    assert spectrum.shape == (9, 17)
    back = engine.istft(spectrum, 16, 4, window=window)
    np.testing.assert_allclose(back.numpy(), signal.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fft.fft(engine.ones(4), norm="x"), "Invalid normalization mode"),
        (lambda: fft.fft(engine.ones(4), n=0), r"Invalid number of data points \(0\)"),
        (lambda: fft.fft(engine.ones(0)), r"number of data points \(0\) specified"),
        (lambda: fft.rfft(engine.from_numpy(WAVES)), "expects a real input"),
        (lambda: fft.fftn(engine.ones(2, 3), dim=(0, -2)), "must be unique"),
        (lambda: fft.fftn(engine.ones(2, 3), s=(2, 3), dim=(0,)), "same length"),
        (lambda: fft.fft(engine.ones(4).half()), "Unsupported dtype"),
        (lambda: engine.stft(engine.ones(64), 16), "return_complex"),
        (lambda: engine.stft(engine.ones(8), 16, center=False, return_complex=True), "0 < n_fft <= 8"),
        (lambda: engine.stft(engine.ones(64), 16, window=engine.ones(4), return_complex=True), "win_length=16"),
        (lambda: engine.istft(engine.ones(9, 3), 16), "complex-valued"),
    ],
)
def test_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()
