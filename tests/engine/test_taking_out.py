"""`out=` of composed functions: each that is listed gives what it returns, in the tensors it was given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.fft
import engine.nn.functional as F
from engine import linalg, special
from engine.ops.writing import taking_out

M = engine.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])  # symmetric, positive definite
V = engine.tensor([0.5, 0.25, 0.75])
Z = engine.complex(M, M.t().tril())
INDEX = engine.tensor([2, 0, 1])
PLANE = engine.arange(32.0).view(1, 2, 4, 4)
FACTORS = linalg.lu_factor(M)

CALLS: dict[str, Callable[..., Any]] = {
    "engine.addbmm": lambda **o: engine.addbmm(M, M[None], M[None], **o),
    "engine.addmv": lambda **o: engine.addmv(V, M, V, beta=2, **o),
    "engine.aminmax": lambda **o: engine.aminmax(M, dim=1, **o),
    "engine.bucketize": lambda **o: engine.bucketize(M, V.sort()[0], **o),
    "engine.complex": lambda **o: engine.complex(M, V, **o),
    "engine.cross": lambda **o: engine.cross(M, M.flip(0), 1, **o),
    "engine.cummax": lambda **o: engine.cummax(M, 0, **o),
    "engine.cummin": lambda **o: engine.cummin(M, 0, **o),
    "engine.diag": lambda **o: engine.diag(V, **o),
    "engine.diff": lambda **o: engine.diff(M, dim=0, **o),
    "engine.float_power": lambda **o: engine.float_power(M, 2, **o),
    "engine.frexp": lambda **o: engine.frexp(M, **o),
    "engine.hardshrink": lambda **o: engine.hardshrink(M, 0.75, **o),
    "engine.histc": lambda **o: engine.histc(M, 4, **o),
    "engine.histogram": lambda **o: engine.histogram(M, 4, **o),
    "engine.index_add": lambda **o: engine.index_add(M, 0, INDEX, M, **o),
    "engine.index_copy": lambda **o: engine.index_copy(M, 0, INDEX, M, **o),
    "engine.index_reduce": lambda **o: engine.index_reduce(M, 0, INDEX, M, "prod", **o),
    "engine.inner": lambda **o: engine.inner(M, V, **o),
    "engine.isin": lambda **o: engine.isin(M, V, **o),
    "engine.isneginf": lambda **o: engine.isneginf(M, **o),
    "engine.isposinf": lambda **o: engine.isposinf(M, **o),
    "engine.kthvalue": lambda **o: engine.kthvalue(M, 2, **o),
    "engine.logcumsumexp": lambda **o: engine.logcumsumexp(M, 1, **o),
    "engine.logspace": lambda **o: engine.logspace(0, 1, 3, **o),
    "engine.lu_solve": lambda **o: engine.lu_solve(M, *FACTORS, **o),
    "engine.lu_unpack": lambda **o: engine.lu_unpack(*FACTORS, **o),
    "engine.mode": lambda **o: engine.mode(M, **o),
    "engine.msort": lambda **o: engine.msort(M, **o),
    "engine.multinomial": lambda **o: engine.multinomial(M, 2, **o),
    "engine.nan_to_num": lambda **o: engine.nan_to_num(M / 0, **o),
    "engine.nanquantile": lambda **o: engine.nanquantile(M, 0.5, 1, **o),
    "engine.narrow_copy": lambda **o: engine.narrow_copy(M, 0, 1, 2, **o),
    "engine.polar": lambda **o: engine.polar(M, M, **o),
    "engine.qr": lambda **o: engine.qr(M, **o),
    "engine.quantile": lambda **o: engine.quantile(M, V, 1, **o),
    "engine.renorm": lambda **o: engine.renorm(M, 2, 0, 1.0, **o),
    "engine.scatter": lambda **o: engine.scatter(M, 0, INDEX[None], M, **o),
    "engine.scatter_add": lambda **o: engine.scatter_add(M, 0, INDEX[None], M, **o),
    "engine.scatter_reduce": lambda **o: engine.scatter_reduce(M, 0, INDEX[None], M, "amax", **o),
    "engine.searchsorted": lambda **o: engine.searchsorted(V.sort()[0], M, **o),
    "engine.slice_scatter": lambda **o: engine.slice_scatter(M, V[None], 0, 1, 2, **o),
    "engine.svd": lambda **o: engine.svd(M, **o),
    "engine.take_along_dim": lambda **o: engine.take_along_dim(M, INDEX[None], 0, **o),
    "engine.tensordot": lambda **o: engine.tensordot(M, M, 1, **o),
    "engine.vdot": lambda **o: engine.vdot(V, V, **o),
    "engine.addr": lambda **o: engine.addr(M, V, V, **o),
    "engine.bernoulli": lambda **o: engine.bernoulli(V, **o),
    "engine.cholesky": lambda **o: engine.cholesky(M, **o),
    "engine.cholesky_inverse": lambda **o: engine.cholesky_inverse(M.tril(), **o),
    "engine.cholesky_solve": lambda **o: engine.cholesky_solve(M, M.tril(), **o),
    "engine.clamp_max": lambda **o: engine.clamp_max(M, 1, **o),
    "engine.clamp_min": lambda **o: engine.clamp_min(M, 1, **o),
    "engine.column_stack": lambda **o: engine.column_stack([M, V], **o),
    "engine.deg2rad": lambda **o: engine.deg2rad(M, **o),
    "engine.dstack": lambda **o: engine.dstack([M, M], **o),
    "engine.kron": lambda **o: engine.kron(M, V, **o),
    "engine.ldexp": lambda **o: engine.ldexp(M, INDEX, **o),
    "engine.logit": lambda **o: engine.logit(V, **o),
    "engine.matrix_power": lambda **o: engine.matrix_power(M, 3, **o),
    "engine.mvlgamma": lambda **o: engine.mvlgamma(M + 2, 2, **o),
    "engine.nanmean": lambda **o: engine.nanmean(M, 1, **o),
    "engine.nansum": lambda **o: engine.nansum(M, 1, **o),
    "engine.normal": lambda **o: engine.normal(M, 2.0, **o),
    "engine.polygamma": lambda **o: engine.polygamma(1, M, **o),
    "engine.rad2deg": lambda **o: engine.rad2deg(M, **o),
    "engine.rand": lambda **o: engine.rand(2, 3, **o),
    "engine.randint": lambda **o: engine.randint(0, 9, (2, 3), **o),
    "engine.randn": lambda **o: engine.randn(2, 3, **o),
    "engine.randperm": lambda **o: engine.randperm(5, **o),
    "engine.linalg.cholesky": lambda **o: linalg.cholesky(M, **o),
    "engine.linalg.cholesky_ex": lambda **o: linalg.cholesky_ex(M, **o),
    "engine.linalg.cross": lambda **o: linalg.cross(M, M.flip(0), **o),
    "engine.linalg.det": lambda **o: linalg.det(M, **o),
    "engine.linalg.eigh": lambda **o: linalg.eigh(M, **o),
    "engine.linalg.eigvalsh": lambda **o: linalg.eigvalsh(M, **o),
    "engine.linalg.inv": lambda **o: linalg.inv(M, **o),
    "engine.linalg.inv_ex": lambda **o: linalg.inv_ex(M, **o),
    "engine.linalg.lu": lambda **o: linalg.lu(M, **o),
    "engine.linalg.lu_factor": lambda **o: linalg.lu_factor(M, **o),
    "engine.linalg.lu_solve": lambda **o: linalg.lu_solve(*FACTORS, M, **o),
    "engine.linalg.matrix_norm": lambda **o: linalg.matrix_norm(M, **o),
    "engine.linalg.multi_dot": lambda **o: linalg.multi_dot([M, M, V], **o),
    "engine.linalg.norm": lambda **o: linalg.norm(M, **o),
    "engine.linalg.qr": lambda **o: linalg.qr(M, **o),
    "engine.linalg.slogdet": lambda **o: linalg.slogdet(M, **o),
    "engine.linalg.solve": lambda **o: linalg.solve(M, V, **o),
    "engine.linalg.solve_triangular": lambda **o: linalg.solve_triangular(M, M, upper=True, **o),
    "engine.linalg.svd": lambda **o: linalg.svd(M, **o),
    "engine.linalg.svdvals": lambda **o: linalg.svdvals(M, **o),
    "engine.linalg.vecdot": lambda **o: linalg.vecdot(M, M, **o),
    "engine.linalg.vector_norm": lambda **o: linalg.vector_norm(M, **o),
    "engine.linalg.cond": lambda **o: linalg.cond(M, **o),
    "engine.linalg.eig": lambda **o: linalg.eig(M, **o),
    "engine.linalg.eigvals": lambda **o: linalg.eigvals(M, **o),
    "engine.linalg.lstsq": lambda **o: linalg.lstsq(M, M, **o),
    "engine.linalg.matrix_power": lambda **o: linalg.matrix_power(M, 2, **o),
    "engine.linalg.matrix_rank": lambda **o: linalg.matrix_rank(M, **o),
    "engine.linalg.pinv": lambda **o: linalg.pinv(M, **o),
    "engine.linalg.tensorinv": lambda **o: linalg.tensorinv(M, 1, **o),
    "engine.linalg.tensorsolve": lambda **o: linalg.tensorsolve(M, V, **o),
    "engine.fft.fft": lambda **o: engine.fft.fft(Z, **o),
    "engine.fft.fft2": lambda **o: engine.fft.fft2(Z, **o),
    "engine.fft.fftn": lambda **o: engine.fft.fftn(Z, **o),
    "engine.fft.hfft": lambda **o: engine.fft.hfft(Z, **o),
    "engine.fft.ifft": lambda **o: engine.fft.ifft(Z, **o),
    "engine.fft.ifft2": lambda **o: engine.fft.ifft2(Z, **o),
    "engine.fft.ifftn": lambda **o: engine.fft.ifftn(Z, **o),
    "engine.fft.irfft": lambda **o: engine.fft.irfft(Z, **o),
    "engine.fft.irfft2": lambda **o: engine.fft.irfft2(Z, **o),
    "engine.fft.irfftn": lambda **o: engine.fft.irfftn(Z, **o),
    "engine.fft.ihfft": lambda **o: engine.fft.ihfft(M, **o),
    "engine.fft.rfft": lambda **o: engine.fft.rfft(M, **o),
    "engine.fft.rfft2": lambda **o: engine.fft.rfft2(M, **o),
    "engine.fft.rfftn": lambda **o: engine.fft.rfftn(M, **o),
    "engine.special.entr": lambda **o: special.entr(V, **o),
    "engine.special.logit": lambda **o: special.logit(V, **o),
    "engine.special.multigammaln": lambda **o: special.multigammaln(M + 2, 2, **o),
    "engine.special.ndtr": lambda **o: special.ndtr(V, **o),
    "engine.special.ndtri": lambda **o: special.ndtri(V, **o),
    "engine.special.polygamma": lambda **o: special.polygamma(1, M, **o),
    "engine.nn.functional.avg_pool2d": lambda **o: F.avg_pool2d(PLANE, 2, **o),
    "engine.nn.functional.avg_pool3d": lambda **o: F.avg_pool3d(PLANE, 2, **o),
    "engine.nn.functional.logsigmoid": lambda **o: F.logsigmoid(M, **o),
    "engine.nn.functional.softplus": lambda **o: F.softplus(M, **o),
    "engine.nn.functional.softshrink": lambda **o: F.softshrink(M, **o),
}
CASTABLE = [
    f"{key.split()[0]}.{name}"
    for key, names in taking_out._NAMES.items()
    if "castable" in key
    for name in names.split()
]
RANDOM = {"engine.bernoulli", "engine.multinomial", "engine.normal"} | {
    f"engine.{name}" for name in taking_out._FACTORIES
}


def seeded(name: str, **options: Any) -> Any:
    engine.manual_seed(0)
    return CALLS[name](**options)


def listed(result: Any) -> list[engine.Tensor]:
    return [result] if isinstance(result, engine.Tensor) else list(result)


def outs_for(result: Any, make: Callable[[engine.Tensor], engine.Tensor]) -> Any:
    return make(result) if isinstance(result, engine.Tensor) else tuple(map(make, result))


def test_every_listed_function_has_a_call_here() -> None:
    names = {f"{key.split()[0]}.{name}" for key, names in taking_out._NAMES.items() for name in names.split()}
    assert names | {f"engine.{name}" for name in taking_out._FACTORIES} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_results_are_written_into_out(name: str) -> None:
    expected = seeded(name)
    outs = outs_for(expected, engine.empty_like)
    addresses = [out.data_ptr() for out in listed(outs)]
    returned = seeded(name, out=outs)
    assert type(returned) is type(expected)
    assert all(a is b for a, b in zip(listed(returned), listed(outs), strict=True))
    for out, result, address in zip(listed(outs), listed(expected), addresses, strict=True):
        assert out.data_ptr() == address
        np.testing.assert_array_equal(out.numpy(), result.numpy())


@pytest.mark.parametrize("name", CALLS)
def test_an_empty_out_takes_the_shape_and_strides(name: str) -> None:
    expected = seeded(name)
    outs = outs_for(expected, lambda result: engine.empty(0, dtype=result.dtype))
    seeded(name, out=outs)
    for out, result in zip(listed(outs), listed(expected), strict=True):
        assert (out.shape, out.stride()) == (result.shape, result.stride())
        np.testing.assert_array_equal(out.numpy(), result.numpy())


@pytest.mark.parametrize("name", sorted(set(CALLS) - {f"engine.{name}" for name in taking_out._FACTORIES}))
def test_which_dtypes_out_may_have(name: str) -> None:
    expected = listed(seeded(name))
    wider = {engine.float32: engine.float64, engine.complex64: engine.complex128, engine.float64: engine.complex128}
    if not any(result.dtype in wider for result in expected):
        wider = {engine.int64: engine.float32, engine.bool: engine.int64}
    outs = tuple(engine.empty(0, dtype=wider.get(result.dtype, result.dtype)) for result in expected)
    into = outs if isinstance(seeded(name), tuple) else outs[0]
    if name in CASTABLE:
        seeded(name, out=into)
        for out, result in zip(outs, expected, strict=True):
            np.testing.assert_allclose(out.numpy(), result.numpy(), rtol=1e-6)
    else:
        with pytest.raises(RuntimeError, match=r"out=\): Expected out tensor to have dtype"):
            seeded(name, out=into)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_a_random_factory_draws_in_the_dtype_of_out(dtype: str) -> None:
    kind = getattr(engine, dtype)
    call = engine.randn if kind.is_floating_point else engine.randperm
    engine.manual_seed(0)
    expected = call(4, dtype=kind)
    engine.manual_seed(0)
    assert call(4, out=engine.empty(9, dtype=kind)).tolist() == expected.tolist()


def test_nothing_is_recorded_through_out() -> None:
    leaf = M.clone().requires_grad_()
    for call in (lambda: linalg.inv(leaf, out=engine.empty(0)), lambda: linalg.inv(A=leaf, out=engine.empty(0))):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            call()
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        linalg.inv(M, out=engine.empty(0).requires_grad_())


def test_the_signature_and_the_text_name_it() -> None:
    import inspect

    assert list(inspect.signature(linalg.inv).parameters) == ["A", "out"]
    assert "`out`" in str(linalg.inv.__doc__)


def test_functions_of_the_hot_path_are_not_wrapped() -> None:
    for function in (engine.add, engine.mul, engine.exp, engine.relu, engine.matmul, engine.sum, F.linear, F.gelu):
        assert not hasattr(function, "__wrapped__") or "taking_out" not in function.__code__.co_filename
