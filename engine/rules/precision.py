"""Global switches of PyTorch's that scripts set: products may lose precision, algorithms must be deterministic.

On the CPU every product has full precision and every result is the same from run to run: there they are kept for
whoever reads them back and change nothing. On a GPU `engine.ops.matmul.gpu` reads them.
"""

_PRECISIONS = ("highest", "high", "medium")
_deterministic = False


class MatmulSettings:
    """What matrix products on a GPU may do with precision (`engine.backends.cuda.matmul`).

    allow_tf32: operands of float32 products may be rounded to 10 bits of mantissa; the same switch as
    `set_float32_matmul_precision`. allow_fp16_reduced_precision_reduction and allow_bf16_...: partial sums of half
    precision products may be rounded to half precision.
    """

    __slots__ = ("_precision", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")

    def __init__(self) -> None:
        self._precision = "highest"
        self.allow_fp16_reduced_precision_reduction = True
        self.allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 products may use TF32: unless the precision is "highest"."""
        return self._precision != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        self._precision = "high" if value else "highest"


matmul = MatmulSettings()


def set_float32_matmul_precision(precision: str) -> None:
    """Permits less than float32 inside matrix products on a GPU: TF32 with "high" and with "medium".

    Raises: RuntimeError for any other word.
    """
    if precision not in _PRECISIONS:
        raise RuntimeError(f"set_float32_matmul_precision: expected one of {', '.join(_PRECISIONS)}, got {precision!r}")
    matmul._precision = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was last given, "highest" at first."""
    return matmul._precision


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Asks for results that are the same from run to run, which they always are on the CPU."""
    global _deterministic
    _deterministic = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was last given, False at first."""
    return _deterministic
