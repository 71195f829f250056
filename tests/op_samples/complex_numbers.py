"""Samples of operators on complex tensors: all that have a derivative there, and Fourier transforms."""

import numpy as np

import engine
import engine.fft
import engine.linalg
from tests.op_samples.table import Array, add, draw, raw, whole


def waves(*shape: int) -> Array:
    """Complex numbers away from 0 and from the branch cuts on the real axis."""
    return draw(*shape, low=0.3, high=1.4) + 1j * draw(*shape, low=0.3, high=1.4)


_SHAPES = [(2, 3), (), (0, 3)]
for _name, _reference in {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "conj": np.conj,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "neg": np.negative,
    "positive": np.positive,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sgn": lambda x: x / np.abs(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinc": np.sinc,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
    "abs": np.abs,
    "angle": np.angle,
    "real": np.real,
    "imag": np.imag,
    "view_as_real": lambda x: np.stack([x.real, x.imag], -1),
}.items():
    for _shape in _SHAPES:
        add(_name, raw(_name), waves(*_shape), reference=_reference)
for _shape in [(2, 3, 2), (2,), (0, 3, 2)]:
    add(
        "view_as_complex",
        raw("view_as_complex"),
        draw(*_shape),
        reference=lambda x: x[..., 0] + 1j * x[..., 1],
        relayout=False,
    )
for _shape, _other in [((2, 3), (2, 3)), ((2, 1), (3,)), ((0, 3), (1, 3))]:
    add("complex", raw("complex"), draw(*_shape), draw(*_other), reference=lambda x, y: x + 1j * y)
    for _name, _reference in {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.true_divide,
        "pow": np.power,
    }.items():
        _a, _b, _c = waves(*_shape), waves(*_other), draw(*_other, low=0.5, high=1.5)
        add(_name, raw(_name), _a, _b, reference=_reference)
        add(_name, raw(_name), _a, _c, reference=_reference)  # real beside complex
        add(_name, raw(_name), _c, _a, reference=_reference)
    add("where", raw("where"), whole(0, 2, *_shape).astype(bool), waves(*_other), waves(*_shape), reference=np.where)
    add(
        "lerp",
        raw("lerp"),
        waves(*_shape),
        waves(*_other),
        draw(*_shape, low=0.1, high=0.4),
        reference=lambda a, b, w: a + w * (b - a),
    )
add("mul", lambda x: x * (2 - 1j), waves(2, 3), reference=lambda x: x * (2 - 1j))
add("pow", lambda x: x**3, waves(2, 3), reference=lambda x: x**3)
add("pow", lambda x: (2 + 1j) ** x, waves(2, 3), reference=lambda x: (2 + 1j) ** x)
C128, F64 = engine.complex128, engine.float64
for _name, _reference in {"sum": np.sum, "mean": np.mean, "prod": np.prod}.items():
    add(_name, raw(_name, (1,), False, C128), waves(3, 4), reference=lambda x, f=_reference: f(x, axis=1))
for _name, _reference in {"var": np.var, "std": np.std}.items():
    add(_name, raw(_name, (1,), False, F64, 1), waves(3, 4), reference=lambda x, f=_reference: f(x, axis=1, ddof=1))
for _order in (1.0, 2.0, 3.0):
    add("vector_norm", raw("vector_norm", _order, (1,), False), waves(3, 4))
for _name, _reference in {"cumsum": np.cumsum, "cumprod": np.cumprod}.items():
    add(_name, raw(_name, 1, C128), waves(3, 4), reference=lambda x, f=_reference: f(x, 1))
for _name, _first, _second in [
    ("mv", (2, 3), (3,)),
    ("dot", (3,), (3,)),
    ("bmm", (2, 2, 3), (2, 3, 4)),
    ("bmm", (3,), (5, 3, 4)),
]:
    add(_name, raw(_name), waves(*_first), waves(*_second), reference=np.matmul)
add("mm", raw("mm", False), waves(2, 3), waves(3, 4), reference=np.matmul)
add("addmm", raw("addmm", 0.5, 2j, False), waves(4), waves(2, 3), waves(3, 4))
add("baddbmm", raw("baddbmm", 0.5, 2j), waves(4), waves(2, 2, 3), waves(2, 3, 4))
add("addmm", raw("addmm", 1, 1, True), waves(4), waves(2, 3), waves(4, 3), reference=lambda b, x, w: x @ w.T + b)
for _name, _attributes in {
    "permute": ((1, 0),),
    "expand": ((4, 2, 3),),
    "select": (1, 2),
    "flip": ((0,),),
    "tril": (0,),
    "constant_pad_nd": ((1, 2), 0.0),
    "index_select": (),
}.items():
    if _attributes:
        add(_name, raw(_name, *_attributes), waves(2, 3))
add("index_select", raw("index_select", 1), waves(2, 3), np.array([2, 0, 2]), reference=lambda x, i: x[:, i])
add("gather", raw("gather", 1), waves(2, 3), whole(0, 3, 2, 4), reference=lambda x, i: np.take_along_axis(x, i, 1))
add("cat", lambda x, y: engine.cat([x, y]), waves(2, 3), waves(1, 3), reference=lambda *x: np.concatenate(x))
add("masked_fill", lambda x, m: x.masked_fill(m, 1j), waves(2, 3), whole(0, 2, 2, 3).astype(bool))

_SQUARE = waves(2, 3, 3) + 3 * np.eye(3)
add("linalg_inv", engine.linalg.inv, _SQUARE, reference=np.linalg.inv)
add("linalg_det", engine.linalg.det, _SQUARE, reference=np.linalg.det)
add("linalg_slogdet", raw("linalg_slogdet"), _SQUARE, reference=lambda x: tuple(np.linalg.slogdet(x)))
add("linalg_solve", engine.linalg.solve, _SQUARE, waves(2, 3, 2), reference=np.linalg.solve)
add("linalg_pinv", engine.linalg.pinv, waves(4, 3) + np.eye(4, 3), reference=np.linalg.pinv)
add("linalg_cholesky", lambda x: engine.linalg.cholesky(x @ x.mH), _SQUARE)
add("linalg_qr", lambda x: (lambda r: (r[0].abs(), r[1].abs()))(engine.linalg.qr(x)), waves(4, 3) + np.eye(4, 3))
_GAPS = np.diag([1.0, 2.5, 4.0])
add(
    "linalg_eigh",
    lambda x: (lambda r: (r[0], r[1].abs()))(engine.linalg.eigh(x + x.mH)),
    _GAPS + 0.1 * waves(3, 3),
    reference=lambda x: (lambda r: (r[0], np.abs(r[1])))(np.linalg.eigh(x + x.conj().T)),
)
add(
    "linalg_svd",
    lambda x: (lambda r: (r[0].abs(), r[1], r[2].abs()))(engine.linalg.svd(x, full_matrices=False)),
    np.eye(4, 3) * [3.0, 2.0, 1.0] + 0.1 * waves(4, 3),
)
for _matrix in (_GAPS + 0.1 * waves(3, 3), _GAPS + 0.1 * draw(3, 3)):
    add(
        "linalg_eig",
        lambda x: (lambda r: (r[0].real, r[1].abs()))(engine.linalg.eig(x)),
        _matrix,
        relayout=False,  # LAPACK may order the eigenvalues of another layout otherwise
    )
for _matrix in (draw(2, 3, 3) + 2 * np.eye(3), _SQUARE):
    add("linalg_lu_factor", raw("linalg_lu_factor"), _matrix)

for _norm in ("backward", "ortho", "forward"):
    for _inverse in (False, True):
        _transform = np.fft.ifftn if _inverse else np.fft.fftn
        add(
            "fft_c2c",
            raw("fft_c2c", (0, 1), _norm, not _inverse),
            waves(3, 4),
            reference=lambda x, f=_transform, n=_norm: f(x, norm=n),
        )
    for _size in (4, 5):
        add("fft_r2c", raw("fft_r2c", (1,), _norm), draw(2, _size), reference=lambda x, n=_norm: np.fft.rfft(x, norm=n))
        add(
            "fft_c2r",
            raw("fft_c2r", (1,), _norm, _size),
            waves(2, 3),
            reference=lambda x, n=_norm, s=_size: np.fft.irfft(x, s, norm=n),
        )
add("fft_r2c", raw("fft_r2c", (1, 0), "backward"), draw(3, 4))
add("fft_c2r", raw("fft_c2r", (1, 0), "backward", 4), waves(3, 4))
add("fft_c2c", raw("fft_c2c", (1,), "backward", True), np.zeros((0, 3), complex))
add("fft_r2c", raw("fft_r2c", (1,), "backward"), np.zeros((0, 3)))
add("fft_c2r", raw("fft_c2r", (1,), "backward", 4), np.zeros((0, 3), complex))
