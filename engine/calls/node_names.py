"""What the backward step of a call is named, as `grad_fn.name()` and error messages show it: PyTorch's names.

The rule is the operator's name in camel case. This is the table of the others: those whose PyTorch name is another one,
and those that PyTorch numbers by the overload. `tests/engine/autograd/test_node_names.py` compares them with PyTorch.
"""

from collections.abc import Callable
from typing import Any

from engine.rules.spec import Spec

_RENAMED = {
    "batch_norm_inference": "NativeBatchNormBackward0",
    "batch_norm_training": "NativeBatchNormBackward0",
    "conv": "ConvolutionBackward0",
    "conv_transposed": "ConvolutionBackward0",
    "copy": "CopyBackwards",
    "cross_entropy": "NllLossBackward0",
    "div_floor": "DivBackward2",
    "div_trunc": "DivBackward2",
    "erfcx": "SpecialErfcxBackward0",
    "group_norm": "NativeGroupNormBackward0",
    "i0e": "SpecialI0EBackward0",
    "i1": "SpecialI1Backward0",
    "i1e": "SpecialI1EBackward0",
    "imag": "SelectBackward0",
    "index_get": "IndexBackward0",
    "lay_out": "CloneBackward0",
    "layer_norm": "NativeLayerNormBackward0",
    "linalg_cholesky": "LinalgCholeskyExBackward0",
    "linalg_inv": "LinalgInvExBackward0",
    "linalg_lu_factor": "LinalgLuFactorExBackward0",
    "linalg_solve": "LinalgSolveExBackward0",
    "log_ndtr": "SpecialLogNdtrBackward0",
    "logsigmoid": "LogSigmoidBackward0",
    "masked_scale": "NativeDropoutBackward0",
    "max_dim": "MaxBackward0",
    "median_dim": "MedianBackward1",
    "min_dim": "MinBackward0",
    "real": "SelectBackward0",
    "square": "PowBackward0",
    "vector_norm": "LinalgVectorNormBackward0",
    "xlog1py": "SpecialXlog1PyBackward0",
    "zeta": "SpecialZetaBackward0",
}


def node_name(operator: str) -> str:
    """The name of an operator's backward steps, "MulBackward0"; a namespace before :: is left out."""
    return _RENAMED.get(operator) or operator.rpartition("::")[2].title().replace("_", "") + "Backward0"


def node_name_of_call(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    """The name where it depends on the inputs' Specs or the attributes, else None."""
    named = _OF_CALLS.get(operator)
    return None if named is None else named(operator, specs, attributes)


def _reduction(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    """Over some axes it is PyTorch's overload with `dim`."""
    dims, keepdim, *_ = attributes
    return f"{operator.title()}Backward1" if keepdim or len(dims) < specs[0].ndim else None


def _pow(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    base, exponent = specs
    return "PowBackward2" if base.number is not None else "PowBackward1" if exponent.number is None else None


def _of_two_tensors(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    return f"{operator.title()}Backward1" if specs[-1].number is None else None


def _clamp(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    return None if any(spec is not None and spec.number is None for spec in specs[1:]) else "ClampBackward1"


def _pooling(operator: str, specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> str | None:
    """Windows on a line are PyTorch's on a plane of one row."""
    axes = max(2, len(attributes[0]))
    return f"AvgPool{axes}DBackward0" if operator == "avg_pool" else f"MaxPool{axes}DWithIndicesBackward0"


_OF_CALLS: dict[str, Callable[[str, tuple[Spec, ...], tuple[Any, ...]], str | None]] = {
    "avg_pool": _pooling,
    "clamp": _clamp,
    "fmod": _of_two_tensors,
    "lerp": _of_two_tensors,
    "max_pool": _pooling,
    "max_pool_with_indices": _pooling,
    "mean": _reduction,
    "pow": _pow,
    "prod": _reduction,
    "remainder": _of_two_tensors,
    "sum": _reduction,
}
