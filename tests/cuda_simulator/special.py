"""`cupyx.scipy.special`, as far as the engine asks for it: ufuncs of single and double precision, by the engine's own
formulas for host memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cuda_simulator import arrays, calls


def _ufunc(name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    def function(*operands: Any) -> Any:
        for each in operands:
            if not isinstance(each, arrays.ndarray | np.generic | int | float):
                raise TypeError(f"Unsupported type {type(each)}")
            if isinstance(each, arrays.ndarray) and each.dtype.char not in "fd":
                raise TypeError(f"Wrong type ({each.dtype}) of arguments for cupyx_scipy_special_{name}")
        return calls.call(formula, name, operands, {})

    return function


def _of_one(formula: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: np.asarray(formula(np, x.astype("f8"))).astype(x.dtype)


def functions() -> dict[str, Callable[..., Any]]:
    """Every function by name."""
    from engine.ops.pointwise import bessel as more_special
    from engine.ops.pointwise import special_functions

    formulas = {
        "erf": _of_one(special_functions._erf),
        "erfc": _of_one(special_functions._erfc),
        "erfinv": _of_one(special_functions._erfinv),
        "gammaln": _of_one(special_functions._lgamma),
        "zeta": lambda x, q: more_special._zeta(np, np.asarray(x, np.asarray(q).dtype), np.asarray(q)),
        "gammainc": lambda a, x: more_special._igamma(False)(np, a, x),
        "gammaincc": lambda a, x: more_special._igamma(True)(np, a, x),
    }
    return {name: _ufunc(name, formula) for name, formula in formulas.items()}
