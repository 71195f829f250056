"""Ranks whose models differ are told so, all with the same words."""

import pytest

from ddp.execution.layouts import TensorLayout, find_difference
from ddp.replicas.agreement import Replica, check_replicas

WEIGHT = TensorLayout("fc.weight", (10, 4), (4, 1), "float32")
BIAS = TensorLayout("fc.b", (9,), (1,), "float32")


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        ([[WEIGHT, BIAS], [WEIGHT, BIAS], [WEIGHT, BIAS]], None),
        ([[]], None),
        (
            [[WEIGHT, BIAS], [WEIGHT, BIAS], [WEIGHT._replace(shape=(10, 5), stride=(5, 1)), BIAS]],
            "rank 2 has fc.weight (10, 5) float32 where rank 0 has (10, 4) float32",
        ),
        (
            [[WEIGHT], [WEIGHT._replace(stride=(1, 10))]],
            "rank 1 has fc.weight (10, 4) with strides (1, 10) where rank 0 has (4, 1)",
        ),
        (
            [[BIAS], [BIAS._replace(dtype="float64")], [BIAS._replace(dtype="float64")]],
            "ranks 1, 2 have fc.b as float64 where rank 0 has float32",
        ),
        (
            [[BIAS], [BIAS._replace(dtype="float64")], [BIAS._replace(dtype="int8")]],
            "rank 1 has fc.b as float64 where rank 0 has float32; rank 2 has fc.b as int8 where rank 0 has float32",
        ),
        (
            [[WEIGHT, BIAS], [WEIGHT]],
            "rank 1 has no fc.b (9,) float32 with strides (1,), which rank 0 has (tensors per rank: [2, 1])",
        ),
        (
            [[WEIGHT], [WEIGHT, BIAS]],
            "rank 1 has fc.b (9,) float32 with strides (1,), which rank 0 has not (tensors per rank: [1, 2])",
        ),
        (
            [[WEIGHT, BIAS], [WEIGHT, BIAS._replace(name="fc.g")]],
            "rank 1 has fc.g (9,) float32 with strides (1,) where rank 0 has fc.b (9,) float32 with strides (1,)",
        ),
    ],
)
def test_the_first_difference_is_named(layouts, words) -> None:
    assert find_difference(layouts) == words


ALIKE = Replica("", {"bucket_cap_mb": 25}, [WEIGHT, BIAS], [BIAS], [WEIGHT])


def test_alike_replicas_send_a_digest_only() -> None:
    sent: list[object] = []

    def exchange(value: object) -> list[object]:
        sent.append(value)
        return [value, value]

    check_replicas(ALIKE, exchange)
    assert [len(value) for value in sent] == [16]
    with pytest.raises(RuntimeError, match="rank 0 says: no parameters"):
        check_replicas(ALIKE._replace(problem="no parameters"), exchange)  # all of them have it


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_alike_replicas_are_accepted() -> None:
    from ddp.world import bootstrap

    check_replicas(ALIKE, bootstrap.start_world().exchange)
    bootstrap.stop_world()


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"problem": "no parameters"}, RuntimeError, r"cannot be made: rank \d says: no parameters"),
        (
            {"options": {"bucket_cap_mb": 1}},
            ValueError,
            r"bucket_cap_mb differs between ranks: rank \d has 1 where rank 0 has 25",
        ),
        ({"parameters": [BIAS]}, ValueError, r": parameters differ between ranks: rank \d has fc.b"),
        ({"trainable": []}, ValueError, r": parameters that require grad differ between ranks: rank \d has no fc.b"),
        (
            {"buffers": [WEIGHT, BIAS]},
            ValueError,
            r": buffers differ between ranks: rank \d has fc.b .*, which rank 0 has not",
        ),
    ],
    ids=["problem", "options", "parameters", "trainable", "buffers"],
)
def test_every_rank_raises_the_same(changed, kind, words) -> None:
    from ddp.world import bootstrap

    world = bootstrap.start_world()
    mine = ALIKE._replace(**changed) if world.rank == world.size - 1 else ALIKE
    with pytest.raises(kind, match=words) as raised:
        check_replicas(mine, world.exchange)
    assert len(set(world.exchange(str(raised.value)))) == 1
    bootstrap.stop_world()
