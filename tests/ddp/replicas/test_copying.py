"""Tensors of one rank become those of all, from several ranks at once, in messages of any size."""

import pytest

import engine
from ddp.replicas import copying as replicas

SHAPES = {
    "none": [],
    "small": [(3,), (2, 5), ()],
    "empty": [(0,), (4, 0)],
    "large": [(40,), (1,), (7, 11)],
    "mixed": [(100,), (0,), (2,), (3, 3)],
}


def tensors_of(kind: str, value: int) -> list[engine.Tensor]:
    """Tensors of these shapes, dense and not, with numbers that tell the rank."""
    dense = [engine.arange(shape.numel()).reshape(shape) + value for shape in map(engine.Size, SHAPES[kind])]
    return [*dense, *(engine.arange(2 * tensor.numel())[::2] + value for tensor in dense)]


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("packed_bytes", [0, 24, 1 << 16])
@pytest.mark.parametrize("message_bytes", [8, 64, 1 << 20])
@pytest.mark.parametrize("kinds", [tuple(SHAPES), ("large", "none", "none", "mixed"), ("mixed",)])
def test_each_share_is_that_of_its_rank(group, monkeypatch, message_bytes, packed_bytes, kinds) -> None:
    monkeypatch.setattr(replicas, "_MESSAGE_BYTES", message_bytes)
    monkeypatch.setattr(replicas, "_PACKED_BYTES", packed_bytes)
    kinds = kinds[: group.size()]
    shares = {rank: tensors_of(kind, 1000 * group.rank) for rank, kind in enumerate(kinds)}
    replicas.copy_shares(shares, group)
    for rank, kind in enumerate(kinds):
        for tensor, expected in zip(shares[rank], tensors_of(kind, 1000 * rank), strict=True):
            assert engine.equal(tensor, expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("root", [0, 1])
def test_strides_stay_as_they_are(group, root) -> None:
    tensor = engine.full((4, 6), float(group.rank)).t()
    window = engine.zeros(5, 5)
    view = window[1:3, ::2]
    view.fill_(group.rank)
    replicas.copy_from(root, [tensor, view], group)
    assert tensor.stride() == (1, 6)
    assert engine.equal(tensor, engine.full((6, 4), float(root)))
    assert window.sum().item() == root * 6  # what lies between the elements of the view is left alone
