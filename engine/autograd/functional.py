"""Derivatives of functions of Tensors: jacobian, hessian, and their products with vectors, as
torch.autograd.functional.

With create_graph the results can be differentiated again. `strict` turns a result that is zero because two things are
independent into an error. Source of the conventions: PyTorch's torch/autograd/functional.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from engine.autograd.api import grad
from engine.autograd.modes import enable_grad, is_grad_enabled, set_grad_enabled
from engine.calls.namespaces import tensor_namespace as on_tensors
from engine.tensor import Tensor

Tensors = tuple[Tensor, ...]


def vjp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(outputs, vᵀJ): the product of a vector with the Jacobian of `func` at `inputs`.

    Args: v: shaped as the outputs; may be left out for a single output of one element.
    Raises: TypeError for what is no tensor; RuntimeError for shapes that do not match, and with `strict` for
    independence.
    """
    with enable_grad():
        is_inputs_tuple, inputs = _as_tensors(inputs, "inputs", "vjp")
        inputs = _prepare(inputs, create_graph)
        is_outputs_tuple, outputs = _outputs(func, inputs, "vjp", strict)
        vectors = _vectors(v, outputs, "vjp", "output")
    with set_grad_enabled(create_graph or is_grad_enabled()):
        found = _gradients(outputs, inputs, vectors, create_graph=create_graph)
        product = _fill(found, inputs, strict, create_graph, "back")
    return _result(outputs, is_outputs_tuple, create_graph), _result(product, is_inputs_tuple, create_graph)


def jvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(outputs, Jv): the product of the Jacobian of `func` at `inputs` with a vector, by the double backward trick.

    Args: v: shaped as the inputs; may be left out for a single input of one element.
    Raises: as `vjp`.
    """
    with enable_grad():
        _, inputs = _as_tensors(inputs, "inputs", "jvp")
        inputs = _prepare(inputs, create_graph)
        vectors = _vectors(v, inputs, "jvp", "input")
        is_outputs_tuple, outputs = _outputs(func, inputs, "jvp", strict)
        # vᵀJ is linear in a stand-in for v, so its derivative with respect to the stand-in is J times a vector.
        stand_ins = tuple(on_tensors.zeros_like(output, requires_grad=True) for output in outputs)
        back = _gradients(outputs, inputs, stand_ins, create_graph=True)
        _require_history(back, "grad_input", strict)
    with set_grad_enabled(create_graph or is_grad_enabled()):
        found = _gradients(back, stand_ins, vectors, create_graph=create_graph)
        product = _fill(found, outputs, strict, create_graph, "back_trick")
    return _result(outputs, is_outputs_tuple, create_graph), _result(product, is_outputs_tuple, create_graph)


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of `func`: for each output and input a Tensor of shape (*output.shape, *input.shape).

    A tuple for several inputs, a tuple of tuples for several outputs. Rows are computed one by one; `vectorize` changes
    nothing.
    Raises: NotImplementedError for the strategy "forward-mode"; otherwise as `vjp`.
    """
    _check_strategy("jacobian", strategy)
    if strict and vectorize:
        raise RuntimeError(
            "jacobian: `strict=True` and `vectorized=True` are not supported together. "
            "Please either set `strict=False` or `vectorize=False`."
        )
    with enable_grad():
        is_inputs_tuple, inputs = _as_tensors(inputs, "inputs", "jacobian")
        inputs = _prepare(inputs, create_graph)
        is_outputs_tuple, outputs = _outputs(func, inputs, "jacobian", strict)
        rows = tuple(_jacobian_of(output, inputs, create_graph, strict, i) for i, output in enumerate(outputs))
    rows = _result(rows, True, create_graph)
    per_output = tuple(row if is_inputs_tuple else row[0] for row in rows)
    return per_output if is_outputs_tuple else per_output[0]


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function with one output of one element: for each pair of inputs a Tensor of shape
    (*first.shape, *second.shape).

    Raises: RuntimeError when the output has more than one element; otherwise as `jacobian`.
    """
    _check_strategy("hessian", outer_jacobian_strategy)
    is_inputs_tuple, inputs = _as_tensors(inputs, "inputs", "hessian")

    def scalar_func(*given: Tensor) -> Any:
        return _scalar_output(func, given, "hessian", strict)[0].reshape(())

    def gradient(*given: Tensor) -> Any:
        found = jacobian(scalar_func, given, create_graph=True)
        _require_history(found, "jacobian", strict)
        return found

    found = jacobian(gradient, inputs, create_graph=create_graph, strict=strict, vectorize=vectorize)
    return found if is_inputs_tuple else found[0][0]


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, vᵀH): the product of a vector with the Hessian of a function with one output of one element.

    Raises: as `hessian`.
    """
    with enable_grad():
        is_inputs_tuple, inputs = _as_tensors(inputs, "inputs", "vhp")
        inputs = _prepare(inputs, create_graph)
        vectors = _vectors(v, inputs, "vhp", "input")
        outputs = _scalar_output(func, inputs, "vhp", strict)
        first = _gradients(outputs, inputs, None, create_graph=True)
        _require_history(first, "jacobian", strict)
    with set_grad_enabled(create_graph or is_grad_enabled()):
        found = _gradients(first, inputs, vectors, create_graph=create_graph)
        product = _fill(found, inputs, strict, create_graph, "double_back")
    return _result(outputs, False, create_graph), _result(product, is_inputs_tuple, create_graph)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, Hv): the product of the Hessian with a vector; equal to `vhp` up to rounding, since the Hessian is
    symmetric.

    Raises: as `hessian`.
    """
    with enable_grad():
        is_inputs_tuple, inputs = _as_tensors(inputs, "inputs", "hvp")
        inputs = _prepare(inputs, create_graph)
        vectors = _vectors(v, inputs, "hvp", "input")
        outputs = _scalar_output(func, inputs, "hvp", strict)
        first = _gradients(outputs, inputs, None, create_graph=True)
        _require_history(first, "jacobian", strict)
        stand_ins = tuple(on_tensors.zeros_like(each, requires_grad=True) for each in inputs)
        back = _gradients(first, inputs, stand_ins, create_graph=True)
        _require_history(back, "hessian", strict)
    with set_grad_enabled(create_graph or is_grad_enabled()):
        found = _gradients(back, stand_ins, vectors, create_graph=create_graph)
        product = _fill(found, inputs, strict, create_graph, "double_back_trick")
    return _result(outputs, False, create_graph), _result(product, is_inputs_tuple, create_graph)


# --- shared -----------------------------------------------------------------------------------------------------------


def _as_tensors(value: Any, what: str, name: str) -> tuple[bool, Tensors]:
    """(whether `value` was a tuple, a tuple of Tensors)."""
    is_tuple = isinstance(value, tuple)
    values = value if is_tuple else (value,)
    for position, each in enumerate(values):
        if not isinstance(each, Tensor):
            where = f"Value at index {position} of the {what}" if is_tuple else f"The {what}"
            raise TypeError(
                f"{where} given to {name} must be a Tensor{' or a tuple of Tensors' if not is_tuple else ''} but got "
                f"{type(each).__name__}"
            )
    return is_tuple, values


def _outputs(func: Callable[..., Any], inputs: Tensors, name: str, strict: bool) -> tuple[bool, Tensors]:
    """What `func` returns, as `_as_tensors` gives it."""
    is_tuple, outputs = _as_tensors(func(*inputs), "outputs of the user-provided function", name)
    _require_history(outputs, "outputs", strict)
    return is_tuple, outputs


def _scalar_output(func: Callable[..., Any], inputs: Tensors, name: str, strict: bool) -> Tensors:
    """The same of a function that must return a single Tensor with a single element."""
    is_tuple, outputs = _outputs(func, inputs, name, strict)
    if is_tuple or outputs[0].numel() != 1:
        got = f"{len(outputs)} outputs" if is_tuple else f"shape {list(outputs[0].shape)}"
        raise RuntimeError(
            f"The function given to {name} should return a single Tensor with a single element, got {got}"
        )
    return outputs


def _prepare(inputs: Tensors, create_graph: bool) -> Tensors:
    """New Tensors that a graph can start at; with create_graph they stay connected to what they came from."""
    return tuple(
        tensor.view_as(tensor) if create_graph and tensor.requires_grad else tensor.detach().requires_grad_()
        for tensor in inputs
    )


def _vectors(v: Any, like: Tensors, name: str, what: str) -> Tensors:
    """The vector of a product, checked against what it multiplies."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(
                f"The vector v can only be None if the user-provided function has a single {what} with a single "
                f"element."
            )
        return (on_tensors.ones_like(like[0].detach()),)
    vectors = _as_tensors(v, "v", name)[1]
    if len(vectors) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(vectors)}.")
    for position, (vector, each) in enumerate(zip(vectors, like, strict=True)):
        if vector.shape != each.shape:
            raise RuntimeError(
                f"Entry {position} of v has invalid size: should be {list(each.shape)} but got {list(vector.shape)}."
            )
    return vectors


def _require_history(values: Sequence[Tensor | None], what: str, strict: bool) -> None:
    if not strict:
        return
    for position, value in enumerate(values):
        if value is None or not value.requires_grad:
            raise RuntimeError(
                f"Output {position} of the user-provided function does not require gradients ({what}): it is "
                f"independent of the inputs. "
                "The outputs must be computed in a differentiable manner from the input when running in strict mode."
            )


def _check_strategy(name: str, strategy: str) -> None:
    if strategy == "forward-mode":
        raise NotImplementedError(f"{name}: forward-mode differentiation is not implemented; leave the strategy out")
    if strategy != "reverse-mode":
        raise ValueError(f"{name}: expected strategy 'reverse-mode', got {strategy!r}")


def _gradients(
    outputs: Sequence[Tensor | None], inputs: Tensors, vectors: Sequence[Tensor | None] | None, create_graph: bool
) -> tuple[Tensor | None, ...]:
    """grad() over the outputs that have a history; all None when none has."""
    given = (None,) * len(outputs) if vectors is None else vectors
    pairs = [
        (output, vector)
        for output, vector in zip(outputs, given, strict=True)
        if output is not None and output.requires_grad
    ]
    if not pairs:
        return (None,) * len(inputs)
    kept, weights = zip(*pairs, strict=True)
    return grad(kept, inputs, weights, allow_unused=True, create_graph=create_graph, retain_graph=True)


def _fill(found: Sequence[Tensor | None], like: Tensors, strict: bool, create_graph: bool, stage: str) -> Tensors:
    """Zeros where something did not depend; an error in strict mode."""
    filled = []
    for position, (gradient, each) in enumerate(zip(found, like, strict=True)):
        if strict and gradient is None:
            raise RuntimeError(
                f"The output of the user-provided function is independent of input {position} ({stage}). This is not "
                f"allowed in strict mode."
            )
        if strict and create_graph and gradient is not None and not gradient.requires_grad:
            raise RuntimeError(
                f"The product with respect to input {position} is independent of the inputs ({stage}). "
                "This is not allowed in strict mode when create_graph=True."
            )
        filled.append(on_tensors.zeros_like(each.detach()) if gradient is None else gradient)
    return tuple(filled)


def _jacobian_of(output: Tensor, inputs: Tensors, create_graph: bool, strict: bool, number: int) -> Tensors:
    """The Jacobian of one output, row by row."""
    columns: list[list[Tensor]] = [[] for _ in inputs]
    flat = output.reshape(-1)
    for row in range(flat.numel()):
        found = _gradients(
            (flat[row],), inputs, None if not flat.is_complex() else (on_tensors.ones_like(flat[row]),), create_graph
        )
        for column, gradient, each in zip(columns, found, inputs, strict=True):
            if gradient is None:
                if strict:
                    raise RuntimeError(
                        f"Output {number} of the user-provided function is independent of an input. This is not "
                        f"allowed in strict mode."
                    )
                gradient = on_tensors.zeros_like(each.detach())
            elif strict and create_graph and not gradient.requires_grad:
                raise RuntimeError(
                    "The jacobian of the user-provided function is independent of an input. "
                    "This is not allowed in strict mode when create_graph=True."
                )
            column.append(gradient)
    return tuple(
        on_tensors.stack(column).reshape((*output.shape, *each.shape))
        if column
        else each.new_zeros((*output.shape, *each.shape))
        for column, each in zip(columns, inputs, strict=True)
    )


def _result(values: Any, is_tuple: bool, create_graph: bool) -> Any:
    """The values as the caller gave theirs (tuple or not), without history unless it was asked for."""
    if not create_graph:
        values = tuple(
            value.detach() if isinstance(value, Tensor) else tuple(each.detach() for each in value) for value in values
        )
    return values if is_tuple else values[0]
