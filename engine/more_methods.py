"""Attaches to Tensor the operators beyond the core as methods and in-place methods; importing it does. `engine.methods`
attaches the core.
"""

from collections.abc import Callable
from typing import Any

from engine import linalg, older, ops, promotion
from engine.autograd.modes import no_grad
from engine.ops import inplace, pointwise
from engine.ops.einsum import trace
from engine.tensor import Tensor

# Functions of engine.ops whose first argument is the tensor they are called on.
_METHODS = """
absolute addbmm addcdiv addcmul addmv addr aminmax arccos arccosh arcsin arcsinh arctan arctan2 arctanh argsort
argwhere bincount bitwise_left_shift bitwise_right_shift clamp_max clamp_min copysign corrcoef count_nonzero cov cummax
cummin deg2rad diag diag_embed diagflat diagonal_scatter diff digamma dist dsplit erf erfc erfinv fix fliplr flipud
float_power frac gcd ger greater greater_equal heaviside histc hsplit histogram frexp i0 igamma igammac mvlgamma
is_nonzero is_same_size is_signed narrow_copy nonzero_static as_strided_scatter hardshrink index_add index_copy
index_fill index_put inner isclose isin isneginf isposinf isreal kron kthvalue lcm ldexp less less_equal lgamma
log_softmax logaddexp2 logcumsumexp logit masked_scatter median mode msort multiply adjoint angle conj conj_physical
is_conj is_neg resolve_conj resolve_neg nan_to_num nanmean nanmedian nanquantile nansum negative nextafter norm
not_equal prelu put quantile rad2deg ravel scatter_reduce index_reduce renorm rot90 select_scatter sgn sinc
slice_scatter softmax sort split_with_sizes stft istft topk unique unique_consecutive vdot vsplit xlogy
""".split()  # noqa: SIM905 - a list would take a line a name

# Functions of engine.linalg that are methods as well.
_LINALG = """
cholesky_inverse cholesky_solve det logdet matrix_exp matrix_power slogdet
""".split()  # noqa: SIM905

# Rows of the pointwise table whose in-place method the core does not have.
_POINTWISE_IN_PLACE = """
acos acosh asin asinh atan2 atanh bitwise_left_shift bitwise_not bitwise_right_shift copysign cosh digamma erf erfc
erfinv exp2 fmax fmin gcd hypot lcm lgamma log10 log2 logical_xor nextafter sinc sinh xlogy
i0 igamma igammac
arccos arccosh arcsin arcsinh arctan arctan2 arctanh fix greater greater_equal less less_equal multiply negative
not_equal sgn
""".split()  # noqa: SIM905

# Functions whose result is written back.
_WRITTEN_BACK = """
absolute addbmm addcdiv addcmul addmm addmv addr baddbmm clip cumprod cumsum deg2rad float_power frac index_fill ldexp
logit masked_scatter mvlgamma nan_to_num put rad2deg renorm scatter_reduce index_reduce tril triu clamp_max clamp_min
""".split()  # noqa: SIM905


def _written_back(name: str) -> Callable[..., Tensor]:
    function = getattr(ops, name)

    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        # A function that keeps its input for backward must not keep the memory that is about to be overwritten.
        source = self.clone() if self.requires_grad else self
        result = function(source, *arguments, **options)
        exact = name == "float_power"  # PyTorch's takes doubles alone
        if not promotion.can_cast(result.dtype, self.dtype) or (exact and result.dtype is not self.dtype):
            raise RuntimeError(
                f"{name}_: result type {result.dtype} can't be cast to the desired output type {self.dtype}; "
                f"{name}() returns a new tensor"
            )
        return inplace.copy_(self, result)

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"In-place {name}."
    return method


def polygamma(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma at each element."""
    return ops.polygamma(n, self)


def heaviside_(self: Tensor, values: Tensor) -> Tensor:
    """In-place heaviside."""
    return inplace.become(self, ops.heaviside(self, values), "heaviside_")


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Writes a number on the main diagonal; `wrap` goes on after every width + 1 rows of a tall matrix."""
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    with no_grad():
        places = range(0, min(self.numel(), self.numel() if wrap else self.shape[1] ** 2), self.shape[1] + 1)
    if self.ndim == 2:
        rows = [place // self.shape[1] for place in places if place // self.shape[1] < self.shape[0]]
        self[rows, [place % self.shape[1] for place in places][: len(rows)]] = fill_value
        return self
    if len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    each = list(range(self.shape[0]))
    self[(each,) * self.ndim] = fill_value
    return self


def _attach() -> None:
    for name in _METHODS:
        setattr(Tensor, name, getattr(ops, name))
    for name in _LINALG:
        setattr(Tensor, name, getattr(linalg, name))
    # engine.trace, unlike torch.trace, is the tracing of calls
    named = {"inverse": linalg.inv, "pinverse": linalg.pinv, "cross": ops.cross, "trace": trace}
    named |= {"svd": older.svd, "qr": older.qr, "cholesky": older.cholesky, "lu_solve": older.lu_solve}
    for name, function in named.items():
        setattr(Tensor, name, function)
    for name, part in {"real": ops.real, "imag": ops.imag, "mH": ops.adjoint}.items():
        setattr(Tensor, name, property(part))
    for name in _POINTWISE_IN_PLACE:
        setattr(Tensor, f"{name}_", inplace.functional_inplace(pointwise.FUNCTIONS[name].__name__))
    for name in _WRITTEN_BACK:
        setattr(Tensor, f"{name}_", _written_back(name))
    for method in (polygamma, heaviside_, fill_diagonal_):
        setattr(Tensor, method.__name__, method)


_attach()
