"""The public calls: `backward`, as function and as method of a tensor, and `grad`."""

import warnings
from collections.abc import Sequence
from typing import Any

from engine.autograd.executor import run_backward
from engine.autograd.gradients import as_tensor
from engine.autograd.graph import GradientEdge
from engine.autograd.node import Edge
from engine.calls.listening import heard
from engine.calls.namespaces import tensor_namespace as on_tensors
from engine.memory import backend
from engine.rules.spec import Spec
from engine.tensor import Tensor

Root = Tensor | GradientEdge


def backward(
    tensors: Root | Sequence[Root],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Root | Sequence[Root] | None = None,
) -> None:
    """Accumulates the gradients of `tensors` in the leaves they depend on (or in `inputs` only), as
    torch.autograd.backward.

    Args: grad_tensors: one gradient a tensor; None for a tensor of one element. retain_graph: whether backward can run
    again (as create_graph by default).
    Raises: RuntimeError for a root without history, a non-scalar root without gradient, a mismatched gradient, an empty
    `inputs`, or a graph whose
        saved tensors were freed by an earlier backward; TypeError for what is no tensor.
    """
    outputs = _as_tuple(tensors)
    given = (None,) * len(outputs) if grad_tensors is None else _as_tuple(grad_tensors)
    requested = None
    if inputs is not None:
        wanted = _as_tuple(inputs)
        if not wanted:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
        requested = [_edge(each, "backward: inputs") for each in wanted]
        for tensor in wanted:
            if isinstance(tensor, Tensor) and not tensor.is_leaf:
                tensor.retain_grad()
    if create_graph:
        warnings.warn(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its "
            "gradient which can cause a memory "
            "leak. Use autograd.grad when creating the graph to avoid this, or reset the .grad fields to None after "
            "use.",
            UserWarning,
            stacklevel=3,
        )
    gradients = _root_gradients(outputs, given, create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    run_backward([_edge(output, "backward") for output in outputs], gradients, keep, create_graph, requested, True)


def backward_of(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | Tensor | None = None,
) -> None:
    """Computes the gradient of this tensor with respect to the leaves of its graph and accumulates it in their
    `.grad`.

    Args: gradient: the gradient of the objective with respect to this tensor (needed unless it has one element).
    Raises: RuntimeError as `engine.autograd.backward`.
    """
    backward(self, gradient, retain_graph, create_graph, inputs)


def grad(
    outputs: Root | Sequence[Root],
    inputs: Root | Sequence[Root],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, without touching any `.grad`, as torch.autograd.grad.

    Raises: RuntimeError for an input that does not require grad or (unless allow_unused) was not used; ValueError for
    contradictory arguments.
    """
    if is_grads_batched:
        raise NotImplementedError(
            "grad: is_grads_batched needs vmap, which this engine does not have; loop over the rows of grad_outputs"
        )
    if materialize_grads:
        if allow_unused is False:
            raise ValueError(
                "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
                "allow_unused=False."
            )
        allow_unused = True
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate gradient for "
            "other "
            "parts of the graph, please use autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    roots, wanted = _as_tuple(outputs), _as_tuple(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    requested = [_edge(each, "grad: inputs") for each in wanted]
    given = (None,) * len(roots) if grad_outputs is None else _as_tuple(grad_outputs)
    gradients = _root_gradients(roots, given, create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    found = run_backward([_edge(root, "grad") for root in roots], gradients, keep, create_graph, requested, False)
    assert found is not None
    results = []
    for position, value in enumerate(found):
        spec = _spec(wanted[position])
        if value is None:
            if not allow_unused:
                raise RuntimeError(
                    f"The differentiated Tensor at index {position} appears to not have been used in the graph. "
                    "Set allow_unused=True if this is the desired behavior."
                )
            results.append(_zeros(spec).requires_grad_(create_graph) if materialize_grads else None)
        else:
            results.append(as_tensor(value, spec))
    return tuple(results)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Tensor | GradientEdge) or value is None else tuple(value)


def _edge(value: Any, where: str) -> Edge:
    if isinstance(value, Tensor):
        if not value.requires_grad:
            raise RuntimeError(f"{where}: One of the differentiated Tensors does not require grad")
        return value.gradient_edge()
    if isinstance(value, GradientEdge):
        return (value.node, value.output_nr)
    raise TypeError(f"{where}: expected a Tensor or a GradientEdge, got {type(value).__name__}")


def _spec(root: Root) -> Spec:
    return root._spec if isinstance(root, Tensor) else root.node.output_specs[root.output_nr]


def _zeros(spec: Spec) -> Tensor:
    made: Tensor = on_tensors.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
    return made


def _root_gradients(outputs: tuple[Any, ...], given: tuple[Any, ...], create_graph: bool) -> list[Tensor]:
    """One gradient a root, checked against it."""
    if len(given) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(given)} gradients")
    return [
        _root_gradient(position, output, gradient, create_graph)
        for position, (output, gradient) in enumerate(zip(outputs, given, strict=True))
    ]


@heard
def _root_gradient(position: int, output: Any, gradient: Any, create_graph: bool) -> Tensor:
    if isinstance(output, Tensor):
        if not output.requires_grad:
            raise RuntimeError(
                f"element {position} of tensors does not require grad and does not have a grad_fn: nothing in its "
                f"history requires grad, "
                "or it was made under no_grad or by detach()"
            )
    elif not isinstance(output, GradientEdge):
        raise TypeError(f"backward: expected Tensors as roots, got {type(output).__name__}")
    spec = _spec(output)
    if gradient is None:
        if spec.numel != 1:
            raise RuntimeError(
                f"grad can be implicitly created only for scalar outputs, got shape {list(spec.shape)}; "
                "reduce it first (.sum() or .mean()) or pass gradient= of that shape"
            )
        if not spec.dtype.is_floating_point:
            raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {spec.dtype}")
        return Tensor(backend.ones(spec), spec)
    if not isinstance(gradient, Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(gradient).__name__}")
    if gradient.shape != spec.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{position}] has a shape of {list(gradient.shape)} and "
            f"output[{position}] has a shape of {list(spec.shape)}."
        )
    if gradient.is_complex() != spec.dtype.is_complex:
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{position}] has a dtype of {gradient.dtype} and output[{position}] has a dtype of "
            f"{spec.dtype}."
        )
    if gradient.dtype is not spec.dtype:
        gradient = gradient.to(spec.dtype)
    return gradient if create_graph or not gradient.requires_grad else gradient.detach()
