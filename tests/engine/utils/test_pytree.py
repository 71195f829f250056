"""Trees of containers, as `torch.utils._pytree` has them."""

from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

from engine.utils import _pytree as pytree

Point = namedtuple("Point", "x y")

TREES = [
    3,
    None,
    [],
    [1, (2, {"a": 3, "b": [4]})],
    OrderedDict(b=1, a=(2,)),
    Point([1, 2], 3),
    deque([1, [2]], maxlen=4),
    defaultdict(list, {"a": 1, "b": [2]}),
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_tree_comes_back(tree: object) -> None:
    leaves, spec = pytree.tree_flatten(tree)
    back = pytree.tree_unflatten(leaves, spec)
    assert back == tree
    assert type(back) is type(tree)
    assert spec == pytree.tree_structure(tree)
    assert spec.num_leaves == len(leaves)


def test_kinds_of_containers_keep_what_they_are() -> None:
    back = pytree.tree_map(lambda leaf: leaf, TREES)
    assert back[6].maxlen == 4
    assert back[7].default_factory is list
    assert back[5].x == [1, 2]


def test_leaves_come_in_order_and_none_is_one() -> None:
    assert pytree.tree_leaves({"b": 1, "a": [None, (2, 3)]}) == [1, None, 2, 3]
    assert pytree.tree_leaves([(1, 2), [3]], is_leaf=lambda tree: isinstance(tree, tuple)) == [(1, 2), 3]


def test_maps() -> None:
    assert pytree.tree_map(lambda a, b: a + b, [1, (2,)], [10, (20,)]) == [11, (22,)]
    assert pytree.tree_map_only(int, lambda leaf: leaf + 1, [1, "a", (2,)]) == [2, "a", (3,)]
    assert pytree.tree_map_only((int, str), lambda leaf: leaf * 2, [1, "a", 2.5]) == [2, "aa", 2.5]
    assert pytree.tree_any(lambda leaf: leaf > 2, [1, {"a": 3}])
    assert not pytree.tree_all(lambda leaf: leaf > 2, [1, {"a": 3}])
    assert pytree.tree_all_only(int, lambda leaf: leaf > 0, [1, "a"])
    seen: list[int] = []
    tree = [1, (2,)]
    assert pytree.tree_map_(seen.append, tree) is tree
    assert seen == [1, 2]


def test_another_number_of_leaves_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected 2 leaves, got 1"):
        pytree.tree_unflatten([1], pytree.tree_structure([1, 2]))


def test_a_class_of_ones_own() -> None:
    class Pair:
        def __init__(self, first: object, second: object) -> None:
            self.parts = first, second

    pytree.register_pytree_node(Pair, lambda pair: (pair.parts, "name"), lambda parts, _: Pair(*parts))
    try:
        doubled = pytree.tree_map(lambda leaf: leaf * 2, [Pair(1, [2])])
        assert doubled[0].parts == (2, [4])
        with pytest.raises(ValueError, match="already registered"):
            pytree.register_pytree_node(Pair, lambda pair: (pair.parts, None), lambda parts, _: Pair(*parts))
    finally:
        del pytree._KINDS[Pair]
