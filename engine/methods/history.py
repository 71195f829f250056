"""What joins a tensor to the graph that made it: backward, the sink of a leaf, the history of a view."""

from collections.abc import Sequence

from engine.autograd import api
from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.node import Edge
from engine.tensor import Tensor
from engine.tensor.tensor import creation


def backward(
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
    api.backward(self, gradient, retain_graph, create_graph, inputs)


def new_accumulator(self: Tensor) -> Edge:
    """The edge to the sink node of a leaf, made."""
    meta = self._autograd_meta()
    with creation:
        edge = meta.accumulator
        if edge is None:
            edge = meta.accumulator = (AccumulateGrad(self), 0)
    return edge
