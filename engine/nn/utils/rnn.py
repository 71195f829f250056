"""Sequences of different lengths as one padded tensor, and back."""

from collections.abc import Iterable

import engine
from engine.tensor import Tensor


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Stacks tensors (L, ...) of different lengths to (longest, N, ...), N first with `batch_first`; differentiable.

    Raises: RuntimeError for no sequences, trailing shapes that differ, or another side than "right" and "left".
    """
    tensors = list(sequences.unbind(0) if isinstance(sequences, Tensor) else sequences)
    if not tensors:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"padding_side should be either 'left' or 'right', but got: {padding_side}")
    longest = max(tensor.shape[0] for tensor in tensors)
    padded = []
    for tensor in tensors:
        if tensor.shape[1:] != tensors[0].shape[1:]:
            raise RuntimeError(
                f"pad_sequence: expected the same shape after the first axis, got {tuple(tensors[0].shape)} and "
                f"{tuple(tensor.shape)}"
            )
        missing = longest - tensor.shape[0]
        if missing:
            filler = tensor.new_full((missing, *tensor.shape[1:]), padding_value)
            tensor = engine.cat([tensor, filler] if padding_side == "right" else [filler, tensor])
        padded.append(tensor)
    return engine.stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The sequences that `pad_sequence` padded at their right."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[: int(length)] for row, length in zip(rows.unbind(0), lengths.tolist(), strict=True)]
