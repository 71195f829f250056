"""Sequences of different lengths: as one padded tensor, packed for recurrent layers, and back."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import engine
from engine.tensor import Tensor


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences sorted by length, longest first, step by step without padding: what recurrent layers take and return.

    Fields: data (all steps, ...); batch_sizes (longest,), int64 in host memory: how many sequences have that step;
    sorted_indices and unsorted_indices (N,), or None: the order of the sequences and the way back.
    Made by `pack_padded_sequence` and `pack_sequence`.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> "PackedSequence":
        if batch_sizes is None:
            raise ValueError("PackedSequence: expected batch_sizes; make one with pack_padded_sequence")
        if not batch_sizes.is_cpu:
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be created manually. "
                f"They should be instantiated by functions like pack_sequence and pack_padded_sequences. Got "
                f"{batch_sizes.device}"
            )
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def _map(self, convert: Callable[[Tensor], Tensor], indices: Callable[[Tensor], Tensor]) -> "PackedSequence":
        order = [None if each is None else indices(each) for each in self[2:]]
        return PackedSequence(convert(self.data), self.batch_sizes, *order)

    def to(self, *args: Any, **kwargs: Any) -> "PackedSequence":
        """Data in another dtype or on another device, as `Tensor.to` takes them; the indices follow the device."""
        data = self.data.to(*args, **kwargs)
        return self._map(lambda _: data, lambda each: each.to(data.device))

    def cpu(self) -> "PackedSequence":
        return self.to("cpu")

    def cuda(self, *args: Any, **kwargs: Any) -> "PackedSequence":
        return self._map(lambda data: data.cuda(*args, **kwargs), lambda each: each.cuda(*args, **kwargs))

    def float(self) -> "PackedSequence":
        return self.to(engine.float32)

    def double(self) -> "PackedSequence":
        return self.to(engine.float64)

    def half(self) -> "PackedSequence":
        return self.to(engine.float16)

    def long(self) -> "PackedSequence":
        return self.to(engine.int64)

    def int(self) -> "PackedSequence":
        return self.to(engine.int32)

    def pin_memory(self) -> "PackedSequence":
        """As it is: `Tensor.pin_memory` is for copies to a GPU, which pin what they need."""
        return self

    @property
    def is_cuda(self) -> bool:
        return self.data.is_cuda


def segments(batch_sizes: Tensor) -> list[tuple[int, int]]:
    """(steps, sequences) of each stretch of steps that have the same sequences."""
    return [(len(list(steps)), size) for size, steps in groupby(batch_sizes.tolist())]


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The indices that undo a permutation."""
    return None if permutation is None else permutation.argsort()


def _checked_lengths(input: Tensor, lengths: Tensor | Sequence[int], batch: int) -> list[int]:
    if isinstance(lengths, Tensor) and not (lengths.is_cpu and lengths.ndim == 1 and lengths.dtype is engine.int64):
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.ndim}D {lengths.device} "
            f"{lengths.dtype} tensor"
        )
    found = lengths.tolist() if isinstance(lengths, Tensor) else [int(length) for length in lengths]
    if not input.numel():
        raise RuntimeError("Cannot pack empty tensors.")
    if len(found) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(found)} (batch_size={batch})"
        )
    if min(found) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    return found


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs a padded batch (T, N, ...), N first with `batch_first`, of sequences of given lengths; differentiable.

    enforce_sorted: the lengths must decrease; False sorts the sequences, and what recurrent layers return comes back in
        the order given.
    Raises: RuntimeError for lengths that do not decrease, are not positive, too long or not one a sequence.
    """
    if batch_first:
        input = input.transpose(0, 1)
    sizes = _checked_lengths(input, lengths, input.shape[1])
    order = None
    if not enforce_sorted:
        ranking = sorted(range(len(sizes)), key=lambda which: -sizes[which])
        order = engine.tensor(ranking, device=input.device)
        input, sizes = input.index_select(1, order), [sizes[which] for which in ranking]
    if any(later > earlier for earlier, later in pairwise(sizes)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you "
            "do not need ONNX exportability."
        )
    if sizes[0] > input.shape[0]:
        raise RuntimeError(
            f"pack_padded_sequence: expected lengths of at most {input.shape[0]} steps, which the input of shape "
            f"{tuple(input.shape)} has, got {sizes[0]}"
        )
    batch_sizes = engine.tensor([sum(length > step for length in sizes) for step in range(sizes[0])])
    parts, start = [], 0
    for steps, batch in segments(batch_sizes):
        parts.append(input[start : start + steps, :batch].reshape(steps * batch, *input.shape[2:]))
        start += steps
    return PackedSequence(engine.cat(parts), batch_sizes, order)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded batch (T, N, ...), N first with `batch_first`, in the order before packing, and the lengths (N,).

    total_length: T, where it is to be more than the longest sequence has. Raises: ValueError where it is less.
    """
    longest, batch = len(sequence.batch_sizes), int(sequence.batch_sizes[0])
    if total_length is not None and total_length < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    data, rest = sequence.data, sequence.data.shape[1:]
    parts, start = [], 0
    for steps, size in segments(sequence.batch_sizes):
        part = data[start : start + steps * size].reshape(steps, size, *rest)
        start += steps * size
        if size < batch:
            part = engine.cat([part, data.new_full((steps, batch - size, *rest), padding_value)], 1)
        parts.append(part)
    if total_length is not None and total_length > longest:
        parts.append(data.new_full((total_length - longest, batch, *rest), padding_value))
    padded = engine.cat(parts)
    lengths = (sequence.batch_sizes.unsqueeze(1) > engine.arange(batch)).sum(0)
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs tensors (L, ...) of different lengths; see `pack_padded_sequence`."""
    lengths = engine.tensor([len(sequence) for sequence in sequences])
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that `pack_sequence` packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


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
