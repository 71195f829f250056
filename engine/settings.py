"""Global switches of PyTorch's that scripts set: float32 products may lose precision, algorithms must be deterministic.

Here every product has full precision and every result on the CPU is the same from run to run, so that both are kept for
whoever reads them back and change nothing.
"""

_PRECISIONS = ("highest", "high", "medium")
_float32_matmul_precision = "highest"
_deterministic = False


def set_float32_matmul_precision(precision: str) -> None:
    """Permits less than float32 inside matrix products ("high", "medium"). Nothing makes use of the permission.

    Raises: RuntimeError for any other word.
    """
    global _float32_matmul_precision
    if precision not in _PRECISIONS:
        raise RuntimeError(f"set_float32_matmul_precision: expected one of {', '.join(_PRECISIONS)}, got {precision!r}")
    _float32_matmul_precision = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was last given, "highest" at first."""
    return _float32_matmul_precision


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Asks for results that are the same from run to run, which they always are on the CPU."""
    global _deterministic
    _deterministic = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was last given, False at first."""
    return _deterministic
