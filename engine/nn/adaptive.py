"""Adaptive softmax for many classes of uneven frequency."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import engine
import engine.nn.functional as F
from engine.nn.container import ModuleList, Sequential
from engine.nn.linear import Linear
from engine.nn.module import Module
from engine.tensor import Tensor


class ASMoutput(NamedTuple):
    """Log-probability of each target (N,), and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Classes up to cutoffs[0] are scored by the head; those between later cutoffs by a tail each, of a width that
    shrinks by `div_value`, under one entry of the head. Grave et al. (2017).

    Shapes: input (N, in_features) or (in_features,), target (N,) or (). Raises: ValueError for cutoffs that do not
    increase; RuntimeError for shapes and targets out of range.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(set(cutoffs))
            or cutoffs[0] <= 0
            or cutoffs[-1] > n_classes - 1
            or any(int(cutoff) != cutoff for cutoff in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                "value is between 1 and n_classes-1"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = cutoffs[0]
        self.n_clusters = len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        made = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, head_bias, **made)
        self.tail = ModuleList()
        for which in range(self.n_clusters):
            width = int(in_features // div_value ** (which + 1))
            size = self.cutoffs[which + 1] - self.cutoffs[which]
            self.tail.append(Sequential(Linear(in_features, width, False, **made), Linear(width, size, False, **made)))

    def reset_parameters(self) -> None:
        for layer in self.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> ASMoutput:
        """(log-probability of each target, mean negative of it)."""
        batched = target_.dim() > 0
        if input_.dim() != target_.dim() + 1:
            raise RuntimeError(
                f"Input and target should be (N, in_features) and (N,), or (in_features,) and (), got "
                f"{tuple(input_.shape)} and {tuple(target_.shape)}"
            )
        input, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        if len(input) != len(target):
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        if target.numel() and not (int(target.min()) >= 0 and int(target.max()) < self.n_classes):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range [{int(target.min())}, "
                f"{int(target.max())}] were found. "
            )
        head = F.log_softmax(self.head(input), 1)
        in_head = target < self.shortlist_size
        chosen = engine.where(in_head, target, 0)
        for which in range(self.n_clusters):
            chosen = engine.where(self._belongs(target, which), self.shortlist_size + which, chosen)
        output = head.gather(1, chosen.unsqueeze(1)).squeeze(1)
        for which, tail in enumerate(self.tail):
            (rows,) = self._belongs(target, which).nonzero(as_tuple=True)
            if rows.numel():
                scores = F.log_softmax(tail(input.index_select(0, rows)), 1)
                own = (target.index_select(0, rows) - self.cutoffs[which]).unsqueeze(1)
                output = output.index_add(0, rows, scores.gather(1, own).squeeze(1))
        return ASMoutput(output if batched else output.squeeze(0), (-output).mean())

    def _belongs(self, target: Tensor, which: int) -> Tensor:
        return (target >= self.cutoffs[which]) & (target < self.cutoffs[which + 1])

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities (N, n_classes)."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for which, tail in enumerate(self.tail):
            parts.append(F.log_softmax(tail(input), 1) + head[:, self.shortlist_size + which].unsqueeze(1))
        return engine.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most likely class of each sample (N,)."""
        return self.log_prob(input).argmax(1)
