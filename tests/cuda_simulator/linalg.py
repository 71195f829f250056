"""`cupy.linalg`: what cuSOLVER reports is looked at only inside `cupyx.errstate(linalg="raise")`, which waits for it;
else a failure gives NaN."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.cuda_simulator import functions

_REPORTED = ("cholesky", "eigh", "eigvalsh", "eig", "eigvals", "inv", "lstsq", "pinv", "qr", "solve", "svd")
_NAMES = ("divide", "over", "under", "invalid", "linalg")
_state = threading.local()


def geterr() -> dict[str, Any]:
    """`cupyx.geterr`."""
    return {name: getattr(_state, name, "ignore" if name == "linalg" else None) for name in _NAMES}


def seterr(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> dict[str, Any]:
    """`cupyx.seterr`."""
    if any(each is not None for each in (divide, over, under, invalid)):
        raise NotImplementedError("CuPy sets linalg only")
    if linalg not in (None, "ignore", "raise"):
        raise NotImplementedError(f"cupyx.seterr: linalg={linalg!r}")
    before = geterr()
    if linalg is not None:
        _state.linalg = linalg
    return before


@contextmanager
def errstate(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> Iterator[None]:
    """`cupyx.errstate`."""
    before = seterr(divide=divide, over=over, under=under, invalid=invalid, linalg=linalg)
    try:
        yield
    finally:
        seterr(**before)


def function(name: str, numpy_function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `cupy.linalg`."""
    if name not in _REPORTED:
        return functions.function("cupy.linalg", name, numpy_function)

    def quiet(*args: Any, **kwargs: Any) -> Any:
        try:
            return numpy_function(*args, **kwargs)
        except np.linalg.LinAlgError as error:
            if geterr()["linalg"] == "raise" or "square" in str(error) or "dimension" in str(error):
                raise
            square = [
                np.broadcast_to(np.eye(each.shape[-1], dtype=each.dtype), each.shape)
                if isinstance(each, np.ndarray) and each.ndim > 1 and each.shape[-1] == each.shape[-2]
                else each
                for each in args
            ]
            return _undefined(numpy_function(*square, **kwargs))

    quiet.__signature__ = functions.signature_of(numpy_function)  # type: ignore[attr-defined]
    found = functions.function("cupy.linalg", name, quiet)

    def run(*args: Any, **kwargs: Any) -> Any:
        if geterr()["linalg"] == "raise":
            functions.wait(f"the report of linalg.{name}")
        return found(*args, **kwargs)

    return run


def _undefined(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_undefined(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return np.full_like(value, np.nan)
