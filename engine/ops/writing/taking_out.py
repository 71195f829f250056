"""`out=` of composed functions, which do not know of it: which they are, and what dtype `out` must have.

A function that is called for every sample or layer has `out` among its own parameters (`add`, `matmul`, `linear`): that
costs one comparison. The ones named here are wrapped where the public namespaces are made. The wrapper computes, then
writes as `engine.ops.writing.out` does; derivative rules and methods of Tensor call what is inside it.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from engine.calls.listening import heard
from engine.ops.writing.out import deliver

# `out` has the dtype of the result, or, for those that are `castable`, one of the same category or a higher one.
_NAMES = {
    "engine": """
addbmm addmv aminmax bucketize complex cross cummax cummin diag diff float_power frexp hardshrink histc histogram
index_add index_copy index_reduce inner isin isneginf isposinf kthvalue logcumsumexp logspace lu_solve lu_unpack mode
msort multinomial nan_to_num nanquantile narrow_copy polar qr quantile renorm scatter scatter_add scatter_reduce
searchsorted slice_scatter svd take_along_dim tensordot vdot
""",
    "engine castable": """
addr bernoulli cholesky cholesky_inverse cholesky_solve clamp_max clamp_min column_stack deg2rad dstack kron ldexp logit
matrix_power mvlgamma nanmean nansum normal polygamma rad2deg
""",
    "engine.linalg": """
cholesky cholesky_ex cross det eigh eigvalsh inv inv_ex lu lu_factor lu_solve matrix_norm multi_dot norm qr slogdet
solve solve_triangular svd svdvals vecdot vector_norm
""",
    "engine.linalg castable": "cond eig eigvals lstsq matrix_power matrix_rank pinv tensorinv tensorsolve",
    "engine.fft castable": """
fft fft2 fftn hfft ifft ifft2 ifftn ihfft irfft irfft2 irfftn rfft rfft2 rfftn
""",
    "engine.special castable": "entr logit multigammaln ndtr ndtri polygamma",
    "engine.nn.functional": "avg_pool2d avg_pool3d logsigmoid softplus softshrink",
}
# Their `out` says in which dtype and on which device, unless the call does.
_FACTORIES = {"rand", "randint", "randn", "randperm"}
_RAISES_TYPE_ERROR = {"column_stack", "dstack"}

_wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}


def wrapped(module: str, names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """What takes `out=` from now on in the namespace of a module: name and wrapper, aliases too."""
    for name, castable in _listed(module):
        function = names[name]
        if function not in _wrappers and function not in _wrappers.values():
            _wrappers[function] = _factory(function) if name in _FACTORIES else _wrapper(function, castable)
    functions = ((name, value) for name, value in names.items() if type(value) is FunctionType)
    return {name: _wrappers[function] for name, function in functions if function in _wrappers}


def _listed(module: str) -> Iterator[tuple[str, bool]]:
    for name in _NAMES.get(module, "").split():
        yield name, False
    for name in _NAMES.get(f"{module} castable", "").split():
        yield name, True
    if module == "engine":
        for name in sorted(_FACTORIES):
            yield name, False


def _wrapper(function: Callable[..., Any], castable: bool) -> Callable[..., Any]:
    error = TypeError if function.__name__ in _RAISES_TYPE_ERROR else RuntimeError

    @functools.wraps(function)
    def taking_out(*arguments: Any, out: Any = None, **keywords: Any) -> Any:
        if out is None:
            return function(*arguments, **keywords)
        return deliver(out, function, *arguments, same_dtype=not castable, cast_error=error, **keywords)

    return heard(_described(taking_out, function))


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def taking_out(*arguments: Any, out: Any = None, **keywords: Any) -> Any:
        if out is None:
            return function(*arguments, **keywords)
        for name in ("dtype", "device"):
            if keywords.get(name) is None:
                keywords[name] = getattr(out, name, None)
        return deliver(out, function, *arguments, warn=False, **keywords)

    return _described(taking_out, function)


def _described(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    options = next((at for at, each in enumerate(parameters) if each.kind is each.VAR_KEYWORD), len(parameters))
    parameters.insert(options, inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__doc__ = f"{function.__doc__}\n\n    `out`: a Tensor to write into; a tuple of them for several results."
    return wrapper
