"""`engine.fft`: discrete Fourier transforms with PyTorch's names (torch.fft), with derivatives of every order.

    >>> import engine
    >>> engine.fft.rfft(engine.ones(4)).real
    tensor([4., 0., 0.])

`n` and `s` are sizes an axis is cut or padded with zeros to; `norm` is "backward" (1/n on the inverse), "forward" or
"ortho". Real input may be in any dtype but half precision; results are float32/complex64 or float64/complex128.
"""

from collections.abc import Sequence
from typing import Any

from engine import ops
from engine.calls.listening import heard
from engine.ops.writing.taking_out import wrapped as _wrapped
from engine.rules import dtypes
from engine.rules.dims import wrap_dim
from engine.tensor import Tensor

Sizes = Sequence[int] | None
_NORMS = ("backward", "forward", "ortho")


def _norm(name: str, norm: str | None) -> str:
    if norm is not None and norm not in _NORMS:
        raise RuntimeError(f'{name}: Invalid normalization mode: "{norm}"; expected one of {", ".join(_NORMS)}')
    return norm or "backward"


def _flipped(norm: str) -> str:
    return {"backward": "forward", "forward": "backward"}.get(norm, norm)


def _floating(name: str, input: Tensor, to_complex: bool) -> Tensor:
    if not input.is_complex() and not input.is_floating_point():
        input = input.to(dtypes.get_default_dtype())
    if input.itemsize == 2:
        raise RuntimeError(f"{name}: Unsupported dtype {input.dtype}; convert with .float()")
    if to_complex and not input.is_complex():
        input = input.to(dtypes.complex64 if input.dtype is dtypes.float32 else dtypes.complex128)
    return input


def _axes(name: str, input: Tensor, s: Sizes, dim: Any) -> tuple[int, ...]:
    if dim is None:
        axes = tuple(range(input.ndim)) if s is None else tuple(range(input.ndim - len(s), input.ndim))
    else:
        given = (dim,) if isinstance(dim, int) else tuple(dim)
        axes = tuple(wrap_dim(each, input.ndim, name) for each in given)
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"{name}: FFT dims must be unique, got {dim}")
    if s is not None and len(s) != len(axes):
        raise RuntimeError(f"{name}: When given, dim and shape arguments must have the same length, got {s} and {dim}")
    return axes


def _resized(name: str, input: Tensor, axes: tuple[int, ...], s: Sizes) -> Tensor:
    """Each axis cut, or padded with zeros at its end, to the size asked for (-1: as it is)."""
    for axis, size in zip(axes, s or (), strict=False):
        there = input.shape[axis]
        if size == -1 or size == there:
            continue
        if size < 1:
            raise RuntimeError(f"{name}: Invalid number of data points ({size}) specified")
        if size < there:
            input = input.narrow(axis, 0, size)
        else:
            missing = (*input.shape[:axis], size - there, *input.shape[axis + 1 :])
            input = ops.cat([input, input.new_zeros(missing)], axis)
    for axis in axes:
        if not input.shape[axis]:
            raise RuntimeError(f"{name}: Invalid number of data points (0) specified")
    return input


def _c2c(name: str, input: Tensor, s: Sizes, dim: Any, norm: str | None, forward: bool) -> Tensor:
    norm = _norm(name, norm)
    axes = _axes(name, input, s, dim)
    resized = _resized(name, _floating(name, input, True), axes, s)
    return ops.fft_c2c(resized, axes, norm, forward) if axes else resized.clone()


def _r2c(name: str, input: Tensor, s: Sizes, dim: Any, norm: str | None) -> Tensor:
    if input.is_complex():
        raise RuntimeError(f"{name} expects a real input tensor, but got {input.dtype}")
    norm = _norm(name, norm)
    axes = _axes(name, input, s, dim)
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis")
    return ops.fft_r2c(_resized(name, _floating(name, input, False), axes, s), axes, norm)


def _c2r(name: str, input: Tensor, s: Sizes, dim: Any, norm: str | None) -> Tensor:
    norm = _norm(name, norm)
    axes = _axes(name, input, s, dim)
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis")
    last = 2 * (input.shape[axes[-1]] - 1) if s is None or s[-1] == -1 else s[-1]
    if last < 1:
        raise RuntimeError(f"{name}: Invalid number of data points ({last}) specified")
    sizes = [*(s[:-1] if s is not None else (-1,) * (len(axes) - 1)), last // 2 + 1]
    return ops.fft_c2r(_resized(name, _floating(name, input, True), axes, sizes), axes, norm, last)


def _one(n: int | None) -> Sizes:
    return None if n is None else (n,)


@heard
def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform along one axis."""
    return _c2c("fft", input, _one(n), dim, norm, True)


@heard
def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`."""
    return _c2c("ifft", input, _one(n), dim, norm, False)


@heard
def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 frequencies of a real signal; the others are their conjugates."""
    return _r2c("rfft", input, _one(n), dim, norm)


@heard
def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: a real signal of n samples (2 (frequencies - 1) of them by default)."""
    return _c2r("irfft", input, _one(n), dim, norm)


@heard
def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real spectrum of a Hermitian signal, of which `input` is the first half."""
    return _c2r("hfft", ops.conj(input), _one(n), dim, _flipped(_norm("hfft", norm)))


@heard
def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`."""
    return ops.conj_physical(_r2c("ihfft", input, _one(n), dim, _flipped(_norm("ihfft", norm))))


@heard
def fftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The transform over several axes (all by default)."""
    return _c2c("fftn", input, s, dim, norm, True)


@heard
def ifftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`."""
    return _c2c("ifftn", input, s, dim, norm, False)


@heard
def rfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`rfft` along the last of several axes, `fft` along the others."""
    return _r2c("rfftn", input, s, dim, norm)


@heard
def irfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`."""
    return _c2r("irfftn", input, s, dim, norm)


@heard
def fft2(input: Tensor, s: Sizes = None, dim: Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`fftn` over two axes."""
    return _c2c("fft2", input, s, dim, norm, True)


@heard
def ifft2(input: Tensor, s: Sizes = None, dim: Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`ifftn` over two axes."""
    return _c2c("ifft2", input, s, dim, norm, False)


@heard
def rfft2(input: Tensor, s: Sizes = None, dim: Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`rfftn` over two axes."""
    return _r2c("rfft2", input, s, dim, norm)


@heard
def irfft2(input: Tensor, s: Sizes = None, dim: Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` over two axes."""
    return _c2r("irfft2", input, s, dim, norm)


def fftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies of `fft` of n samples d apart, in cycles a unit."""
    places = [*range((n + 1) // 2), *range(-(n // 2), 0)]
    return ops.tensor([float(place) for place in places], **options) * (1 / (n * d))


def rfftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies of `rfft` of n samples d apart, in cycles a unit."""
    return ops.tensor([float(place) for place in range(n // 2 + 1)], **options) * (1 / (n * d))


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Frequency 0 moved to the middle of each axis."""
    axes = _axes("fftshift", input, None, dim)
    return ops.roll(input, [input.shape[axis] // 2 for axis in axes], axes)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    axes = _axes("ifftshift", input, None, dim)
    return ops.roll(input, [(input.shape[axis] + 1) // 2 for axis in axes], axes)


globals().update(_wrapped("engine.fft", globals()))
