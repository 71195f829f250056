"""What an operator case is, and how it runs: the same on the engine and on PyTorch, which is passed in as `t`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """`function(t, *tensors)` gives a tensor or several; floating point and complex inputs require gradients.

    `twice`: whether the second derivative is checked. `constants`: positions of inputs that are held constant.
    `tolerance`: of the float64 comparison, for PyTorch kernels that hold constants in float32.
    """

    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    twice: bool = True
    constants: tuple[int, ...] = ()
    tolerance: float = 1e-10

    def varies(self, position: int) -> bool:
        """Whether an input requires a gradient."""
        return self.inputs[position].dtype.kind in "fc" and position not in self.constants


COMPLEX = {"float64": "complex128", "float32": "complex64"}


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers, row-major."""
    return np.random.RandomState(seed).standard_normal(shape)


def uniform(seed: int, low: float, high: float, *shape: int) -> np.ndarray:
    """Uniform numbers, row-major."""
    return np.random.RandomState(seed).uniform(low, high, shape)


def integers(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    """Integers of low ... high - 1, row-major."""
    return np.random.RandomState(seed).randint(low, high, shape).astype(np.int64)


def tensors(t: Any, case: Case, dtype: str) -> list[Any]:
    """The case's inputs as leaves in a floating point dtype."""
    made = []
    for position, array in enumerate(case.inputs):
        tensor = t.from_numpy(array)
        if array.dtype.kind in "fc":  # not astype, which may give axes of size 1 other strides
            tensor = tensor.to(getattr(t, dtype if array.dtype.kind == "f" else COMPLEX[dtype]))
        if not array.size:  # versions of NumPy give empty arrays different strides
            tensor = t.zeros(*array.shape, dtype=tensor.dtype)
        made.append(tensor.detach().requires_grad_() if case.varies(position) else tensor)
    return made


def outputs(t: Any, case: Case, inputs: list[Any]) -> list[Any]:
    """What the case's function gives, as a list."""
    result = case.function(t, *inputs)
    return list(result) if isinstance(result, tuple | list) else [result]


def scalar(t: Any, results: list[Any]) -> Any:
    """The floating point results times fixed random weights, summed: one number to differentiate. None if there are
    none.
    """
    total = None
    for number, result in enumerate(results):
        if result.requires_grad:
            random = np.random.RandomState(100 + number)
            weights = np.asarray(random.standard_normal(tuple(result.shape)))
            if result.is_complex():
                weights = weights + 1j * random.standard_normal(tuple(result.shape))
            term = (result * t.from_numpy(np.asarray(weights)).to(result.dtype)).sum()
            term = term.real if result.is_complex() else term
            total = term if total is None else total + term
    return total


def gradients(t: Any, case: Case, dtype: str, create_graph: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
    """(inputs, results, gradients of the inputs that require them; None where the result does not depend on one)."""
    inputs = tensors(t, case, dtype)
    results = outputs(t, case, inputs)
    total = scalar(t, results)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if total is None:
        return inputs, results, []
    return inputs, results, list(t.autograd.grad(total, wanted, create_graph=create_graph, allow_unused=True))
