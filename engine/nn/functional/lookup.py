"""Table look-ups: embedding, embedding_bag, one_hot."""

import numpy as np

import engine
from engine import ops
from engine.autograd.modes import no_grad
from engine.ops.embedding.by_rows import EmbeddingByRows
from engine.tensor import Tensor


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight` (V, D) at the indices `input`: shape (..., D). The row `padding_idx` gets no gradient.

    With `sparse` the gradient of a leaf `weight` is a sparse tensor of the rows that were looked up. Raises:
    AssertionError for a padding_idx outside the table; RuntimeError for `sparse` with `scale_grad_by_freq`.
    """
    if padding_idx is not None:
        padding_idx = checked_padding(padding_idx, weight.shape[0])
    if max_norm is not None:
        _renormalise(weight, input, max_norm, norm_type)
    if sparse:
        if scale_grad_by_freq:
            raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
        return EmbeddingByRows.apply(input, weight, -1 if padding_idx is None else padding_idx)
    return ops.embedding(input, weight, padding_idx, scale_grad_by_freq)


def checked_padding(padding_idx: int, rows: int) -> int:
    """`padding_idx` counted from the front. Raises AssertionError outside the table, as PyTorch."""
    if not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return padding_idx % rows


def _renormalise(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    """Scales the used rows of `weight` whose norm exceeds `max_norm` down to it, in place and unrecorded."""
    with no_grad():
        rows = input.reshape(-1).unique()
        used = weight[rows]
        lengths = used.norm(norm_type, 1, keepdim=True)
        factors = engine.where(lengths > max_norm, max_norm / (lengths + 1e-7), engine.ones_like(lengths))
        weight[rows] = used * factors


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sum, mean or max of the rows of each bag: shape (B, D).

    Shapes: input (B, N), a bag a row; or (N) cut into bags at `offsets` (B). Rows `padding_idx` do not count. Raises:
    ValueError for other shapes or an unknown mode; NotImplementedError for per-sample weights without mode="sum".
    """
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the "
            f"same shape as the input ({input.shape})"
        )
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )
    sizes = _sizes(input, offsets, include_last_offset)
    indices = input.reshape(-1)
    rows = embedding(indices, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if input.dim() == 2:  # from its shape alone, as engine.compile wants it
        bag_of = engine.arange(len(sizes), device=input.device).unsqueeze(1).expand(input.shape).reshape(-1)
    else:
        bag_of = engine.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(input.device)
    counted = None
    if padding_idx is not None:
        counted = indices != checked_padding(padding_idx, weight.shape[0])
    if mode == "max":
        return _bag_maxima(rows, bag_of, counted, sizes)
    if counted is not None:
        rows = rows * counted.to(rows.dtype).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    sums = ops.embedding_backward(rows, bag_of, len(sizes))  # rows of one bag, added up
    if mode == "sum":
        return sums
    if counted is not None:
        counts = sums.new_zeros(len(sizes)).index_add(0, bag_of, counted.to(sums.dtype))
    elif input.dim() == 2:
        return sums / max(input.shape[1], 1)
    else:
        counts = engine.from_numpy(sizes).to(device=sums.device, dtype=sums.dtype)
    return sums / counts.clamp(min=1).unsqueeze(1)


def _sizes(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> np.ndarray:
    """How many indices each bag has, int64."""
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
                f"sequences. However, found offsets of type {type(offsets)}"
            )
        return np.full(input.shape[0], input.shape[1])
    if input.dim() != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if offsets.dim() != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    starts = offsets.tolist()
    if include_last_offset:
        starts = starts[:-1]
    if starts and starts[0] != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {starts[0]}"
        )
    return np.diff(np.array([*starts, input.shape[0]] if starts else [0], np.int64))


def _bag_maxima(rows: Tensor, bag_of: Tensor, counted: Tensor | None, sizes: np.ndarray) -> Tensor:
    """Elementwise maximum of the counted rows of each bag; zeros for an empty one."""
    if counted is None and sizes.size and (sizes == sizes[0]).all() and sizes[0]:
        return rows.reshape(len(sizes), -1, rows.shape[1]).max(1).values
    maxima = []
    for bag in range(len(sizes)):
        inside = bag_of.eq(bag)
        members = rows[inside if counted is None else inside.logical_and(counted)]
        maxima.append(members.max(0).values if members.shape[0] else rows.new_zeros(rows.shape[1]))
    return engine.stack(maxima)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 of shape (..., num_classes) with a 1 at each class; -1 takes one more than the largest.

    Raises: RuntimeError for negative classes, classes outside num_classes, or an empty tensor without num_classes.
    """
    if tensor.dtype is not engine.int64:
        raise RuntimeError("one_hot is only applicable to index tensor.")
    if tensor.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return engine.zeros(*tensor.shape, num_classes, dtype=engine.int64, device=tensor.device)
    if tensor.is_cpu and int(tensor.min()) < 0:
        raise RuntimeError("Class values must be non-negative.")
    largest = int(tensor.max()) if tensor.is_cpu or num_classes == -1 else -1  # a GPU's are waited for where they must
    if num_classes == -1:
        num_classes = largest + 1
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    elif num_classes <= largest:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return (tensor.unsqueeze(-1) == engine.arange(num_classes, device=tensor.device)).to(engine.int64)
