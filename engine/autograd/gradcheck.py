"""`gradcheck` and `gradgradcheck`: derivatives compared with finite differences.

Everything is done on real numbers: a complex tensor counts as pairs. Elementwise ("slow"), each entry of each Jacobian
is compared. With `fast_mode` one random projection uᵀJv of each Jacobian is, so that large inputs cost two evaluations
each. Source of signature and conventions: PyTorch's torch/autograd/gradcheck.py.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.autograd.api import grad
from engine.autograd.function import Function
from engine.autograd.real_vectors import Random, as_reals, from_reals, shifted
from engine.calls.namespaces import tensor_namespace as on_tensors
from engine.rules import layout
from engine.rules.dtypes import complex128, float64
from engine.tensor import Tensor

Function_ = Callable[..., Any]


class GradcheckError(RuntimeError):
    """A derivative that does not agree with finite differences (or cannot be checked)."""


def gradcheck(
    func: Function_,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the derivatives of `func` at `inputs` agree with central differences of step `eps`: |a - n| <= atol +
    rtol |n|.

    Inputs that require grad should be float64 or complex128. Raises: GradcheckError at the first disagreement (or
    returns False without `raise_exception`); ValueError when no input requires grad; NotImplementedError for checks of
    forward mode and vmap.
    """
    if check_batched_grad or check_batched_forward_grad or check_forward_ad or not check_backward_ad:
        raise NotImplementedError(
            "gradcheck: forward-mode and batched (vmap) derivatives are not implemented, so they cannot be checked"
        )
    if masked:
        raise NotImplementedError("gradcheck: masked semantics concern sparse tensors, which are not implemented")
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    try:
        _check_inputs(given)
        outputs = _differentiable_outputs(func(*given))
        compare = _compare_projections if fast_mode else _compare_elements
        compare(func, given, outputs, eps, atol, rtol)
        _check_repeatable(outputs, given, nondet_tol)
        if check_undefined_grad:
            _check_undefined(func, given, outputs)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Function_,
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """`gradcheck` of the first derivative of `func`, as a function of the inputs and of the gradients of its outputs.

    `grad_outputs` are drawn at random unless given (`gen_non_contig_grad_outputs`: with strides). Raises: as
    `gradcheck`.
    """
    if check_fwd_over_rev or not check_rev_over_rev:
        raise NotImplementedError(
            "gradgradcheck: forward-mode derivatives are not implemented, so they cannot be checked"
        )
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = _differentiable_outputs(func(*given))
    if grad_outputs is None:
        random = Random()
        weights = tuple(random.like(output, gen_non_contig_grad_outputs) for output in outputs)
    else:
        weights = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    count = len(weights)

    def first_derivative(*args: Any) -> tuple[Tensor, ...]:
        args, given_weights = args[: len(args) - count], args[len(args) - count :]
        made = _differentiable_outputs(func(*args))
        wanted = [each for each in args if isinstance(each, Tensor) and each.requires_grad]
        found = grad(made, wanted, given_weights, create_graph=True, allow_unused=True)
        return tuple(each for each in found if each is not None)

    return gradcheck(
        first_derivative,
        (*given, *weights),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
        masked=masked,
    )


# --- what is checked --------------------------------------------------------------------------------------------------


def _check_inputs(inputs: Sequence[Any]) -> None:
    checked = [
        (position, each) for position, each in enumerate(inputs) if isinstance(each, Tensor) and each.requires_grad
    ]
    if not checked:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    for position, tensor in checked:
        if tensor.dtype not in (float64, complex128):
            warnings.warn(
                f"Input #{position} requires gradient and is not a double precision floating point or complex. "
                "This check will likely fail if all the inputs are not of double precision floating point or complex.",
                stacklevel=4,
            )
        if layout.internal_overlap(tensor.shape, tensor.stride()) == "yes":
            raise GradcheckError(
                f"The {position}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call "
                ".contiguous on the input before passing it to gradcheck."
            )


def _differentiable_outputs(result: Any) -> tuple[Tensor, ...]:
    values = tuple(result) if isinstance(result, tuple | list) else (result,)
    return tuple(value for value in values if isinstance(value, Tensor) and value.requires_grad)


def _required(inputs: Sequence[Any]) -> list[Tensor]:
    return [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]


def _values_of_outputs(func: Function_, inputs: Sequence[Any], like: tuple[Tensor, ...]) -> list[np.ndarray]:
    """The outputs as flat real vectors. Where nothing is differentiable, every output counts, since none may depend on
    the inputs.
    """
    result = func(*inputs)
    outputs = _differentiable_outputs(result)
    if not like:
        values = result if isinstance(result, tuple | list) else (result,)
        outputs = tuple(value for value in values if isinstance(value, Tensor) and value._spec.dtype.category >= 2)
    elif len(outputs) != len(like):
        raise GradcheckError(
            f"the function returned {len(outputs)} differentiable outputs where it returned {len(like)} before"
        )
    for number, (output, before) in enumerate(zip(outputs, like, strict=False)):
        if output.shape != before.shape or output.dtype is not before.dtype:
            what = "shape" if output.shape != before.shape else "dtype"
            raise GradcheckError(
                f"Expected `func` to return outputs with the same {what} when inputs are perturbed, but output "
                f"{number} was {list(before.shape)} {before.dtype} and is {list(output.shape)} {output.dtype}"
            )
    return [as_reals(output) for output in outputs]


# --- numbers ----------------------------------------------------------------------------------------------------------


def _slopes(
    func: Function_,
    inputs: Sequence[Any],
    outputs: tuple[Tensor, ...],
    tensor: Tensor,
    direction: np.ndarray,
    eps: float,
) -> list[np.ndarray]:
    """Central differences of every output along a direction of one input."""

    def run() -> list[np.ndarray]:
        return _values_of_outputs(func, inputs, outputs)

    above, below = shifted(tensor, eps * direction, run), shifted(tensor, -eps * direction, run)
    return [(high - low) / (2 * eps) for high, low in zip(above, below, strict=True)]


def _products(output: Tensor, wanted: list[Tensor], weight: np.ndarray) -> list[np.ndarray]:
    """uᵀJ for each input, as flat real vectors."""
    found = grad(output, wanted, from_reals(weight, output), retain_graph=True, allow_unused=True)
    products = []
    for gradient, tensor in zip(found, wanted, strict=True):
        if gradient is not None and gradient.dtype is not tensor.dtype:
            raise GradcheckError(f"grad is {gradient.dtype} for an input of {tensor.dtype}")
        products.append(np.zeros_like(as_reals(tensor)) if gradient is None else as_reals(gradient))
    return products


def _compare_elements(
    func: Function_, inputs: Sequence[Any], outputs: tuple[Tensor, ...], eps: float, atol: float, rtol: float
) -> None:
    wanted = _required(inputs)
    sizes = [as_reals(output).size for output in outputs]
    numerical: list[list[np.ndarray]] = []  # of each input: one column an output
    for tensor in wanted:
        directions = np.eye(as_reals(tensor).size)
        slopes = [_slopes(func, inputs, outputs, tensor, direction, eps) for direction in directions]
        if not outputs:
            _require_zero(slopes)
            continue
        numerical.append(
            [
                np.stack([slope[j] for slope in slopes]) if slopes else np.zeros((0, sizes[j]))
                for j in range(len(outputs))
            ]
        )
    for j, output in enumerate(outputs):
        rows = [_products(output, wanted, weight) for weight in np.eye(sizes[j])]
        for i, tensor in enumerate(wanted):
            analytical = np.stack([row[i] for row in rows], axis=1) if rows else np.zeros((as_reals(tensor).size, 0))
            expected = numerical[i][j]
            if not np.allclose(analytical, expected, rtol, atol):
                raise GradcheckError(
                    f"Jacobian mismatch for output {j} with respect to input {i},\n"
                    f"numerical:{expected}\nanalytical:{analytical}\n"
                )


def _compare_projections(
    func: Function_, inputs: Sequence[Any], outputs: tuple[Tensor, ...], eps: float, atol: float, rtol: float
) -> None:
    random = Random()
    wanted = _required(inputs)
    directions = [random.vector(as_reals(tensor).size) for tensor in wanted]
    slopes = [
        _slopes(func, inputs, outputs, tensor, direction, eps)
        for tensor, direction in zip(wanted, directions, strict=True)
    ]
    if not outputs:
        _require_zero(slopes)
    for j, output in enumerate(outputs):
        weight = random.vector(as_reals(output).size)
        products = _products(output, wanted, weight)
        for i, direction in enumerate(directions):
            analytical, numerical = float(products[i] @ direction), float(slopes[i][j] @ weight)
            # An error in one entry of the Jacobian counts here as much as it would in the elementwise comparison.
            allowed = atol * max(np.abs(weight).sum() * np.abs(direction).sum(), 1.0) + rtol * abs(numerical)
            if not abs(analytical - numerical) <= allowed:
                raise GradcheckError(
                    f"Jacobian mismatch for output {j} with respect to input {i},\n"
                    f"numerical projection:{numerical}\nanalytical projection:{analytical}\n"
                    "The above quantities relating the numerical and analytical jacobians are computed in fast mode; "
                    "gradcheck(..., fast_mode=False) shows the full Jacobians."
                )


def _require_zero(slopes: list[list[np.ndarray]]) -> None:
    if any(np.any(slope != 0) for of_input in slopes for slope in of_input):
        raise GradcheckError("Numerical gradient for function expected to be zero")


def _check_repeatable(outputs: tuple[Tensor, ...], inputs: Sequence[Any], nondet_tol: float) -> None:
    """Backward of the same graph with the same gradients must give the same result."""
    random = Random()
    wanted = _required(inputs)
    for output in outputs:
        weight = random.vector(as_reals(output).size)
        first, second = _products(output, wanted, weight), _products(output, wanted, weight)
        if any(np.any(np.abs(a - b) > nondet_tol) for a, b in zip(first, second, strict=True)):
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                "gives "
                "different values, although analytical gradient matches numerical gradient. "
                f"The tolerance for nondeterminism was {nondet_tol}."
            )


class _Undefined(Function):
    """An identity whose backward gives no gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None


def _check_undefined(func: Function_, inputs: Sequence[Any], outputs: tuple[Tensor, ...]) -> None:
    """Undefined gradients of all outputs, or of one of several, must be as good as zeros."""
    if not outputs:
        return
    wanted = _required(inputs)
    choices = [range(len(outputs))] + ([range(j, j + 1) for j in range(len(outputs))] if len(outputs) > 1 else [])
    for undefined in choices:
        made = _differentiable_outputs(func(*inputs))
        marked = [_Undefined.apply(output) if j in undefined else output for j, output in enumerate(made)]
        zeros = [on_tensors.zeros_like(output.detach()) for output in made]
        found = grad(marked, wanted, zeros, allow_unused=True)
        if any(gradient is not None and np.any(as_reals(gradient) != 0) for gradient in found):
            raise GradcheckError(
                "Expected all input grads to be undefined or zero when all output grads are undefined or zero."
            )
