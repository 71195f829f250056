"""Fourier transforms: the three kinds every other is made of, with derivatives. `engine.fft` has the public names.

`norm` is NumPy's ("backward": a factor 1/n on the inverse; "forward": on the forward transform; "ortho": 1/√n on both),
so the adjoint of a transform is the other direction with the other norm.
"""

from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.rules import dtypes, layout
from engine.rules.spec import Spec
from engine.tensor import Tensor

Dims = tuple[int, ...]
_OTHER_NORM = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _refuse(name: str, spec: Spec, is_complex: bool) -> None:
    if spec.dtype.is_complex is not is_complex or spec.dtype.itemsize == 2 or spec.dtype.category < 2:
        raise RuntimeError(
            f"{name}: expected a {'complex' if is_complex else 'real'} tensor in single or double precision, got "
            f"{spec.dtype}"
        )


def _complex_of(spec: Spec) -> dtypes.dtype:
    return dtypes.complex64 if spec.dtype in (dtypes.float32, dtypes.complex64) else dtypes.complex128


def _result(input: Spec, shape: tuple[int, ...], steps: tuple[Dims, ...], kind: dtypes.dtype) -> Spec:
    """The layout of transforms over sets of axes, one after another: those axes fastest, then the rest, both in the
    order in which they lay before, as PyTorch's have it (aten/src/ATen/native/mkl/SpectralOps.cpp, _exec_fft).
    """
    order = sorted(range(len(shape)), key=lambda axis: (input.stride[axis], -axis))
    for dims in steps:
        order = [*(axis for axis in order if axis in dims), *(axis for axis in order if axis not in dims)]
    return input.like(shape=shape, stride=layout.strides_in_order(shape, tuple(order)), dtype=kind)


# --- complex to complex -----------------------------------------------------------------------------------------------


def _c2c_rule(input: Spec, dims: Dims, norm: str, forward: bool) -> Spec:
    _refuse("fft", input, True)
    return _result(input, tuple(input.shape), (dims,), input.dtype)


def _c2c(xp: ModuleType, input: Any, dims: Dims, norm: str, forward: bool) -> Any:
    return (xp.fft.fftn if forward else xp.fft.ifftn)(input, axes=dims, norm=norm).astype(input.dtype, copy=False)


FFT_C2C = define(
    "fft_c2c",
    rule=_c2c_rule,
    forward=_c2c,
    backward=(lambda g, nd, dims, norm, forward: nd.fft_c2c(g, dims, _OTHER_NORM[norm], not forward),),
    attributes="dims norm forward",
)


def fft_c2c(input: Tensor, dims: Dims, norm: str, forward: bool) -> Tensor:
    """The transform of a complex tensor over axes."""
    return apply(FFT_C2C, (input,), (dims, norm, forward))


# --- real to half of a complex spectrum, and back ---------------------------------------------------------------------


def _r2c_rule(input: Spec, dims: Dims, norm: str) -> Spec:
    _refuse("rfft", input, False)
    last = dims[-1]
    shape = (*input.shape[:last], input.shape[last] // 2 + 1, *input.shape[last + 1 :])
    return _result(input, shape, (dims, dims[-1:]), _complex_of(input))


def _r2c(xp: ModuleType, input: Any, dims: Dims, norm: str) -> Any:
    return xp.fft.rfftn(input, axes=dims, norm=norm).astype("F" if input.dtype.char == "f" else "D", copy=False)


def _r2c_slope(g: Any, nd: Any, input_spec: Spec, dims: Dims, norm: str) -> Any:
    """The other half of the spectrum is not in the result: its gradient is 0."""
    last, size = dims[-1], input_spec.shape[dims[-1]]
    missing = (*g.shape[:last], size - g.shape[last], *g.shape[last + 1 :])
    whole = nd.cat([g, nd.zeros_beside(g, missing)], last)
    return nd.real(nd.fft_c2c(whole, dims, _OTHER_NORM[norm], False))


FFT_R2C = define("fft_r2c", rule=_r2c_rule, forward=_r2c, backward=(_r2c_slope,), attributes="dims norm")


def fft_r2c(input: Tensor, dims: Dims, norm: str) -> Tensor:
    """The first half, along the last of the axes, of the spectrum of a real tensor."""
    return apply(FFT_R2C, (input,), (dims, norm))


def _c2r_rule(input: Spec, dims: Dims, norm: str, size: int) -> Spec:
    _refuse("irfft", input, True)
    last = dims[-1]
    shape = (*input.shape[:last], size, *input.shape[last + 1 :])
    return _result(input, shape, (dims[:-1], dims[-1:]), input.dtype.to_real())


def _c2r(xp: ModuleType, input: Any, dims: Dims, norm: str, size: int) -> Any:
    sizes = [input.shape[dim] for dim in dims[:-1]] + [size]
    return xp.fft.irfftn(input, sizes, axes=dims, norm=norm).astype("f" if input.dtype.char == "F" else "d", copy=False)


def _c2r_slope(g: Any, nd: Any, dims: Dims, norm: str, size: int) -> Any:
    """All but the ends of the half spectrum stand for two frequencies."""
    half = nd.fft_r2c(g, dims, _OTHER_NORM[norm])
    last, count = dims[-1], half.shape[dims[-1]]
    xp = nd if nd.records else nd.xp
    twice = [1.0] + [2.0] * (size - count) + [1.0] * (2 * count - size - 1)
    shape = (-1,) + (1,) * (len(g.shape) - 1 - last)
    weights = g.new_tensor(twice) if nd.records else xp.asarray(twice, g.dtype)
    return half * weights.reshape(shape)


FFT_C2R = define("fft_c2r", rule=_c2r_rule, forward=_c2r, backward=(_c2r_slope,), attributes="dims norm size")


def fft_c2r(input: Tensor, dims: Dims, norm: str, size: int) -> Tensor:
    """The real tensor, `size` long along the last of the axes, of which `input` is half the spectrum."""
    return apply(FFT_C2R, (input,), (dims, norm, size))


for _operator in (FFT_C2C, FFT_R2C, FFT_C2R):
    _operator.analytic = False
