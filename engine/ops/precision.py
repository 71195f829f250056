"""Real floating point only, and half precision computed in single: what activations, softmax, losses and attention
share.
"""

from typing import Any

import numpy as np

from engine.spec import Spec


def require_real(name: str, spec: Spec) -> None:
    """Raises NotImplementedError, as PyTorch's kernels do, unless the input is of a real floating point dtype."""
    if not spec.dtype.is_floating_point:
        raise NotImplementedError(
            f'"{name}" not implemented for {spec.dtype} (input of shape {list(spec.shape)}); convert it with .float()'
        )


def in_single_precision(array: Any) -> Any:
    """float16 and bfloat16 arrays as float32, in which PyTorch's CPU kernels compute; others as they are."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
