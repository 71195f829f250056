"""Short-time Fourier transforms and the windows they take. Composed of frames, a window and `engine.fft`."""

from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.creation.from_data import tensor
from engine.ops.fourier.operator import fft_c2c, fft_c2r, fft_r2c
from engine.ops.pointwise.complex_numbers import view_as_real
from engine.ops.shape.combine import cat
from engine.ops.shape.padding import pad
from engine.rules import dtypes
from engine.tensor import Tensor


def _framed(input: Tensor, n_fft: int, hop: int) -> Tensor:
    return input.unfold(-1, n_fft, hop)


def _window(name: str, window: Tensor | None, win_length: int, n_fft: int, like: Tensor) -> Tensor:
    """The window, zeros on both sides of it up to the length of a frame."""
    if window is None:
        window = like.new_ones(win_length, dtype=like.dtype.to_real())
    if tuple(window.shape) != (win_length,):
        raise RuntimeError(
            f"{name}: expected a 1D window tensor of size equal to win_length={win_length}, but got window with size "
            f"{list(window.shape)}"
        )
    left = (n_fft - win_length) // 2
    return pad(window, (left, n_fft - win_length - left)) if win_length < n_fft else window


@heard
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """The spectra of overlapping frames of a signal (T,) or (B, T): (..., frequencies, frames), complex, or with a last
    axis of real and imaginary parts unless `return_complex`.

    Raises: RuntimeError for sizes that do not fit and where `return_complex` is not given for a real signal.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    if return_complex is None and not is_complex:
        raise RuntimeError("stft requires the return_complex parameter be given for real inputs: return_complex=True")
    if input.ndim not in (1, 2):
        raise RuntimeError(f"stft: expected a 1D or 2D tensor, got {input.ndim}D")
    if center:
        padded = pad(input.reshape((1,) * (3 - input.ndim) + input.shape), (n_fft // 2, n_fft // 2), mode=pad_mode)
        input = padded.reshape((*input.shape[:-1], padded.shape[-1]))
    length = input.shape[-1]
    if not 0 < n_fft <= length:
        raise RuntimeError(f"stft: expected 0 < n_fft <= {length}, but got n_fft={n_fft}")
    if hop <= 0:
        raise RuntimeError(f"stft: expected hop_length > 0, but got hop_length={hop}")
    if not 0 < win_length <= n_fft:
        raise RuntimeError(f"stft: expected 0 < win_length <= n_fft, but got win_length={win_length}")
    frames = _framed(input, n_fft, hop) * _window("stft", window, win_length, n_fft, input)
    norm = "ortho" if normalized else "backward"
    if frames.is_complex():
        spectra = fft_c2c(frames, (frames.ndim - 1,), norm, True)
    else:
        spectra = fft_r2c(frames, (frames.ndim - 1,), norm)
        if onesided is False:
            spectra = cat([spectra, spectra[..., 1 : (n_fft + 1) // 2].conj().flip(-1)], -1)
    spectra = spectra.transpose(-1, -2)
    return view_as_real(spectra) if return_complex is False else spectra


@heard
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` is closest to `input` (..., frequencies, frames), by overlapping and adding (D. Griffin
    and J. Lim, 1984).

    Of a spectrum of all frequencies, a real signal takes the lower half, whatever the upper one holds, as in PyTorch.
    Raises: RuntimeError for sizes that do not fit, and where the windows leave a gap.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    if not input.is_complex():
        raise RuntimeError("istft requires a complex-valued input tensor matching the output from stft")
    spectra = input.transpose(-1, -2)
    batched = spectra if spectra.ndim == 3 else spectra.unsqueeze(0)
    norm = "ortho" if normalized else "backward"
    half = n_fft // 2 + 1
    onesided = batched.shape[-1] != n_fft if onesided is None else onesided
    if batched.shape[-1] != (half if onesided else n_fft):
        raise RuntimeError(
            f"istft: expected the frequency dimension (3rd to the last) of the input tensor to have size "
            f"{half if onesided else n_fft} when onesided={onesided}, but got {batched.shape[-1]}"
        )
    if not 0 < hop <= win_length <= n_fft:
        raise RuntimeError(
            f"istft: expected 0 < hop_length <= win_length <= n_fft, but got {hop}, {win_length} and {n_fft}"
        )
    if return_complex:
        if onesided:
            raise RuntimeError("istft: cannot have onesided output if window or input is complex: return_complex=False")
        frames = fft_c2c(batched, (2,), norm, False)
    else:
        frames = fft_c2r(batched[..., :half], (2,), norm, n_fft)
    weights = _window("istft", window, win_length, n_fft, frames)
    count = frames.shape[1]
    total = n_fft + hop * (count - 1)
    places = tensor((np.arange(count)[:, None] * hop + np.arange(n_fft)).reshape(-1), device=input.device)
    pieces = (frames * weights).reshape(frames.shape[0], -1)
    signal = frames.new_zeros(frames.shape[0], total).index_add(1, places, pieces)
    envelope = weights.new_zeros(total).index_add(0, places, (weights * weights).repeat(count))
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - (n_fft // 2 if center else 0)
    signal, envelope = signal[:, start:end], envelope[start:end]
    if envelope.is_cpu and bool((envelope.detach().abs() < 1e-11).any()):  # a GPU is not waited for
        raise RuntimeError("istft: window overlap add min: the windows leave a gap; use a smaller hop_length")
    signal = signal / envelope
    if length is not None and signal.shape[-1] < length:
        signal = pad(signal, (0, length - signal.shape[-1]))
    return signal if spectra.ndim == 3 else signal.squeeze(0)


# --- windows ----------------------------------------------------------------------------------------------------------


def _made(values: Any, window_length: int, periodic: bool, options: dict[str, Any]) -> Tensor:
    """`values(n)` for n = 0 ... of a symmetric window of window_length (+ 1 if periodic) points."""
    dtype = options.pop("dtype", None) or dtypes.get_default_dtype()
    if window_length < 2:
        made = np.ones(window_length)
    else:
        made = values(np.arange(window_length), window_length if periodic else window_length - 1)
    return tensor(made, dtype=dtype, **options)


@heard
def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """(1 - cos(2πn / N)) / 2."""
    return _made(lambda n, size: 0.5 - 0.5 * np.cos(2 * np.pi * n / size), window_length, periodic, options)


@heard
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> Tensor:
    """alpha - beta cos(2πn / N)."""
    return _made(lambda n, size: alpha - beta * np.cos(2 * np.pi * n / size), window_length, periodic, options)


@heard
def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """0.42 - 0.5 cos(2πn / N) + 0.08 cos(4πn / N)."""
    return _made(
        lambda n, size: 0.42 - 0.5 * np.cos(2 * np.pi * n / size) + 0.08 * np.cos(4 * np.pi * n / size),
        window_length,
        periodic,
        options,
    )


@heard
def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """1 - |2n / N - 1|."""
    return _made(lambda n, size: 1 - np.abs(2 * n / size - 1), window_length, periodic, options)


@heard
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """I₀(beta √(1 - (2n / N - 1)²)) / I₀(beta)."""
    return _made(
        lambda n, size: np.i0(beta * np.sqrt(1 - (2 * n / size - 1) ** 2)) / np.i0(beta),
        window_length,
        periodic,
        options,
    )
