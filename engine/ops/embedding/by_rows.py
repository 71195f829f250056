"""embedding whose table gets a sparse gradient: the rows that were looked up, as they came, not a whole table."""

from typing import Any

from engine.autograd.function import Function
from engine.autograd.modes import is_grad_enabled
from engine.ops.embedding.operator import embedding, embedding_backward
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


class EmbeddingByRows(Function):
    """`apply(input, weight, padding_idx)`; padding_idx is -1 for none.

    The gradient is dense where the table is no leaf, since what is before it computes on dense memory, and under
    create_graph. Source: aten's embedding_sparse_backward.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
        ctx.save_for_backward(input)
        ctx.table, ctx.is_leaf, ctx.padding = tuple(weight.shape), weight.is_leaf, padding_idx
        return embedding(input, weight, padding_idx)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (index,) = gradients, ctx.saved_tensors
        count, width = ctx.table
        if not ctx.is_leaf or is_grad_enabled():
            return None, embedding_backward(gradient, index, count, ctx.padding), None
        places, rows = index.reshape(-1).long(), gradient.reshape(-1, width)
        if ctx.padding >= 0:
            kept = places != ctx.padding
            places, rows = places[kept], rows[kept]
        return None, SparseTensor(places.unsqueeze(0), rows, ctx.table), None
