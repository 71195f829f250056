"""Autograd metadata, made on demand."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.autograd.node import Edge
from engine.rules.spec import Spec

if TYPE_CHECKING:
    from engine.tensor.tensor import Tensor


class AutogradMeta:
    """What only some tensors have: a gradient, hooks, the sink node of a leaf."""

    __slots__ = (
        "accumulator",
        "breach",
        "destination",
        "destination_of",
        "grad",
        "inference",
        "listener",
        "name",
        "post_accumulate",
        "retains_grad",
    )

    def __init__(self) -> None:
        self.grad: Any = None  # a Tensor, a SparseTensor or None
        self.accumulator: Edge | None = None  # (AccumulateGrad node, 0); the node refers back weakly
        self.post_accumulate: OrderedDict[int, Callable[[Tensor], None]] | None = None
        self.retains_grad = False
        self.inference = False
        # For whoever reduces gradients (`engine.autograd.graph`): where the first gradient is to be written, and who is
        # told that one was accumulated.
        self.destination: Tensor | None = None
        self.destination_of: Spec | None = None  # what this tensor was when it was given the destination
        self.listener: Callable[[bool, Tensor | None], None] | None = None
        # For the layout report (`engine.reports.layout_report`).
        self.breach: Any = None
        self.name: str | None = None
