"""Cases of complex tensors: PyTorch's values and its convention for gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.data.operators.case import Case, normal, uniform

CASES: dict[str, Case] = {}


def _waves(seed: int, *shape: int) -> np.ndarray:
    return normal(seed, *shape) + 1j * normal(seed + 100, *shape)


def _case(name: str, function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> None:
    CASES[name] = Case(function, inputs, twice=False, **options)


_Z, _W, _R = _waves(1, 3, 4), _waves(2, 3, 4), uniform(3, 0.3, 2.0, 4)
for _name in (  # noqa: SIM905
    "abs acos acosh angle asin asinh atan atanh conj cos cosh exp exp2 expm1 imag log log10 log1p log2 neg real "
    "reciprocal rsqrt sgn sigmoid sin sinh sqrt square tan tanh sinc view_as_real"
).split():
    _case(_name, lambda t, x, name=_name: getattr(t, name)(x), _Z)
for _name in ("add", "sub", "mul", "div", "pow"):
    _case(_name, lambda t, x, y, name=_name: getattr(t, name)(x, y), _Z, _W)
    _case(f"{_name} complex real", lambda t, x, y, name=_name: getattr(t, name)(x, y), _Z, _R)
    _case(f"{_name} real complex", lambda t, x, y, name=_name: getattr(t, name)(x, y), _R, _Z)
_case("mul by 2i", lambda t, x: x * 2j, _Z)
_case("cube", lambda t, x: x**3, _Z)
_case("power of a number", lambda t, x: (1 + 2j) ** x, _Z)
_case("addcmul", lambda t, x, y: t.addcmul(x, x, y, value=1j), _Z, _W)
_case("lerp", lambda t, x, y: t.lerp(x, y, 0.3), _Z, _W)
_case("where", lambda t, x, y: t.where(x.real > 0, x, y), _Z, _W)
_case("complex", lambda t, x, y: t.complex(x, y), _R, normal(4, 4))
_case("polar", lambda t, x, y: t.polar(x, y), _R, normal(4, 4))
_case("view_as_complex", lambda t, x: t.view_as_complex(x), normal(5, 3, 2))
for _name in ("sum", "mean", "prod", "var", "std"):
    _case(f"{_name} of an axis", lambda t, x, name=_name: getattr(t, name)(x, 1), _Z)
for _order in (1, 2, 3):
    _case(f"norm {_order}", lambda t, x, p=_order: t.linalg.vector_norm(x, p, 1), _Z)
_case("cumsum", lambda t, x: x.cumsum(1), _Z)
_case("cumprod", lambda t, x: x.cumprod(1), _Z)
_case("squared distance", lambda t, x, y: (x - y).abs().square().mean(), _Z, _W)
_case("matmul", lambda t, x, y: x @ y, _Z, _waves(6, 4, 2))
_case("matmul adjoint", lambda t, x: x @ x.mH, _Z)
_case("linear", lambda t, x, w: t.nn.functional.linear(x, w), _Z, _waves(7, 2, 4))
_case("einsum", lambda t, x, y: t.einsum("ij,kj->ik", x, y.conj()), _Z, _W)
_case("vdot", lambda t, x: t.vdot(x[0], x[1]), _Z)
_case("index and reshape", lambda t, x: x[[0, 2]].t().reshape(-1), _Z)
_case("cat", lambda t, x, y: t.cat([x, y]), _Z, _W)

_M = _waves(8, 3, 3) + 3 * np.eye(3)
_case("inv", lambda t, x: t.linalg.inv(x), _M)
_case("det", lambda t, x: t.linalg.det(x), _M)
_case("slogdet", lambda t, x: t.linalg.slogdet(x), _M)
_case("solve", lambda t, x, y: t.linalg.solve(x, y), _M, _waves(9, 3, 2))
_case("cholesky", lambda t, x: t.linalg.cholesky(x @ x.mH), _M)
_case("eigvalsh", lambda t, x: t.linalg.eigvalsh(x + x.mH), _M)
_case("svdvals", lambda t, x: t.linalg.svdvals(x), _Z)
_case("pinv", lambda t, x: t.linalg.pinv(x), _Z)
_case("qr", lambda t, x: (lambda r: r[0] @ r[1])(t.linalg.qr(x.mT)), _Z)
_case("matrix_exp", lambda t, x: t.linalg.matrix_exp(x), _M, tolerance=1e-9)
_case(
    "eigvals of a real matrix",
    lambda t, x: t.linalg.eigvals(x + t.diag(t.arange(3)).to(x.dtype) * 9).abs(),
    normal(10, 3, 3),
)
_case("lu_factor", lambda t, x: t.linalg.lu_factor(x)[0], _M)
_case("lu_solve", lambda t, x, y: t.linalg.lu_solve(*t.linalg.lu_factor(x), y), normal(11, 3, 3), normal(12, 3, 2))
for _norm in ("backward", "ortho"):
    _case(f"fft {_norm}", lambda t, x, n=_norm: t.fft.fft(x, norm=n), _Z)
    _case(f"ifft {_norm}", lambda t, x, n=_norm: t.fft.ifft(x, 5, 0, norm=n), _Z)
    _case(f"rfft {_norm}", lambda t, x, n=_norm: t.fft.rfft(x, norm=n), normal(13, 2, 5))
    _case(f"irfft {_norm}", lambda t, x, n=_norm: t.fft.irfft(x, 7, norm=n), _Z)
_case("fft2", lambda t, x: t.fft.fft2(x), normal(14, 4, 3))
_case("irfftn", lambda t, x: t.fft.irfftn(x), _Z)
