"""Packed sequences: packing, padding, and recurrent layers over them. Numbers of PyTorch are in test_compat."""

import numpy as np
import pytest

import engine
from engine import nn
from engine.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
)

LENGTHS = [3, 5, 1, 5]


def sequences(width: int = 2) -> list[engine.Tensor]:
    rng = np.random.default_rng(0)
    return [engine.tensor(rng.standard_normal((length, width))) for length in LENGTHS]


def test_steps_lie_one_after_the_other() -> None:
    packed = pack_sequence([engine.tensor([1, 2, 3]), engine.tensor([4, 5]), engine.tensor([6])])
    assert packed.data.tolist() == [1, 4, 6, 2, 5, 3]
    assert packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices is None


def test_unsorted_sequences_come_back_in_order() -> None:
    packed = pack_sequence(sequences(), enforce_sorted=False)
    assert packed.sorted_indices.tolist() == [1, 3, 0, 2]
    assert packed.unsorted_indices.tolist() == [2, 0, 3, 1]
    for given, back in zip(sequences(), unpack_sequence(packed), strict=True):
        assert engine.equal(given, back)
    padded, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0, total_length=6)
    assert lengths.tolist() == LENGTHS
    assert padded.shape == (4, 6, 2)
    assert padded[2, 1:].eq(-1).all()


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
def test_packed_is_each_sequence_by_itself(kind: str, bidirectional: bool) -> None:
    layer = getattr(nn, kind)(2, 3, 2, batch_first=True, bidirectional=bidirectional).double()
    packed = pack_padded_sequence(pad_sequence(sequences(), True), LENGTHS, batch_first=True, enforce_sorted=False)
    start = engine.tensor(np.random.default_rng(1).standard_normal((4 if bidirectional else 2, 4, 3)))
    states = (start, start * 2) if kind == "LSTM" else start
    output, final = layer(packed, states)
    assert isinstance(output, PackedSequence)
    padded, _ = pad_packed_sequence(output, batch_first=True)
    for which, sequence in enumerate(sequences()):
        own = tuple(each[:, which] for each in states) if kind == "LSTM" else states[:, which]
        alone, last = layer(sequence, own)
        np.testing.assert_allclose(padded[which, : LENGTHS[which]].detach(), alone.detach(), rtol=1e-12)
        for ours, theirs in zip(final if kind == "LSTM" else [final], last if kind == "LSTM" else [last], strict=True):
            np.testing.assert_allclose(ours[:, which].detach(), theirs.detach(), rtol=1e-12)


def test_gradients_reach_the_padded_input() -> None:
    padded = pad_sequence(sequences()).requires_grad_()
    layer = nn.LSTM(2, 3).double()
    output, _ = layer(pack_padded_sequence(padded, engine.tensor(LENGTHS), enforce_sorted=False))
    output.data.sum().backward()
    inside = padded.grad.abs().sum(2) > 0
    assert inside.sum(0).tolist() == LENGTHS


def test_conversions_keep_the_order() -> None:
    packed = pack_sequence(sequences(), enforce_sorted=False)
    assert packed.float().data.dtype is engine.float32
    assert packed.to("cpu", engine.float16).data.dtype is engine.float16
    assert packed.float().sorted_indices.tolist() == packed.sorted_indices.tolist()
    assert not packed.is_cuda


def test_wrong_lengths() -> None:
    x = engine.ones(4, 3, 2)
    cases = [
        ([1, 2, 3], r"`lengths` array must be sorted in decreasing order when `enforce_sorted` is True"),
        ([3, 2], r"Expected `len\(lengths\)` to be equal to batch_size, but got 2 \(batch_size=3\)"),
        ([3, 2, 0], r"Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"),
        ([5, 2, 1], r"expected lengths of at most 4 steps, .* got 5"),
        (engine.tensor([3.0, 2.0, 1.0]), r"'lengths' argument should be a 1D CPU int64 tensor, but got 1D cpu"),
    ]
    for lengths, message in cases:
        with pytest.raises(RuntimeError, match=message):
            pack_padded_sequence(x, lengths)
    packed = pack_padded_sequence(x, [4, 2, 1])
    with pytest.raises(ValueError, match="total_length=3 and max sequence length being 4"):
        pad_packed_sequence(packed, total_length=3)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size. Expected 5, got 2"):
        nn.GRU(5, 3)(packed)
    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 3, 3\), got \[1, 2, 3\]"):
        nn.GRU(2, 3)(packed, engine.zeros(1, 2, 3))
    with pytest.raises(TypeError, match="expected a Tensor or PackedSequence, got list"):
        nn.GRU(2, 3)([1.0])
