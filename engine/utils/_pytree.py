"""Trees of containers, as `torch.utils._pytree` has them: what many libraries take apart their arguments with.

Nodes are lists, tuples, namedtuples, dicts, OrderedDicts, defaultdicts, deques and what was registered; all else is
leaves, None too. Leaves come in the order of the containers. (torch/utils/_pytree.py)
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

PyTree = Any
Context = Any


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """The shape of a tree: the kind of its root, what that needs besides its children, and those; a leaf is `LEAF`."""

    type: Any
    context: Context
    children_specs: "tuple[TreeSpec, ...]"

    @property
    def num_leaves(self) -> int:
        """Of the whole tree."""
        return 1 if self.is_leaf() else sum(child.num_leaves for child in self.children_specs)

    def is_leaf(self) -> bool:
        """Whether it is no container."""
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> PyTree:
        """See `tree_unflatten`."""
        return tree_unflatten(leaves, self)


LEAF = TreeSpec(None, None, ())


@dataclass(frozen=True, slots=True)
class _Kind:
    flatten: Callable[[Any], tuple[Iterable[Any], Context]]
    unflatten: Callable[[Iterable[Any], Context], Any]


def _of_dict(kind: Any) -> _Kind:
    return _Kind(lambda tree: (tree.values(), list(tree)), lambda values, keys: kind(zip(keys, values, strict=True)))


_KINDS: dict[Any, _Kind] = {
    list: _Kind(lambda tree: (tree, None), lambda values, _: list(values)),
    tuple: _Kind(lambda tree: (tree, None), lambda values, _: tuple(values)),
    dict: _of_dict(dict),
    OrderedDict: _of_dict(OrderedDict),
    defaultdict: _Kind(
        lambda tree: (tree.values(), (tree.default_factory, list(tree))),
        lambda values, context: defaultdict(context[0], zip(context[1], values, strict=True)),
    ),
    deque: _Kind(lambda tree: (tree, tree.maxlen), lambda values, most: deque(values, most)),
}
_NAMEDTUPLE = _Kind(lambda tree: (tree, type(tree)), lambda values, kind: kind(*values))


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Context]],
    unflatten_fn: Callable[[Iterable[Any], Context], Any],
    **_: Any,
) -> None:
    """Makes a class a container. Raises ValueError where it is one already."""
    if cls in _KINDS:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _KINDS[cls] = _Kind(flatten_fn, unflatten_fn)


def _kind_of(tree: PyTree) -> tuple[Any, _Kind] | None:
    known = _KINDS.get(type(tree))
    if known is not None:
        return type(tree), known
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree), _NAMEDTUPLE
    return None


def tree_flatten(tree: PyTree, is_leaf: Callable[[PyTree], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves, and the shape of the tree. is_leaf: what else is not taken apart."""
    leaves: list[Any] = []
    return leaves, _walk(tree, is_leaf, leaves)


def _walk(tree: PyTree, is_leaf: Callable[[PyTree], bool] | None, leaves: list[Any]) -> TreeSpec:
    found = _kind_of(tree)
    if found is None or (is_leaf is not None and is_leaf(tree)):
        leaves.append(tree)
        return LEAF
    name, kind = found
    children, context = kind.flatten(tree)
    return TreeSpec(name, context, tuple(_walk(child, is_leaf, leaves) for child in children))


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """The tree of this shape. Raises ValueError for another number of leaves."""
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ValueError(f"tree_unflatten: expected {treespec.num_leaves} leaves, got {len(given)}")
    return _build(iter(given), treespec)


def _build(leaves: Iterator[Any], spec: TreeSpec) -> PyTree:
    if spec.is_leaf():
        return next(leaves)
    kind = _KINDS.get(spec.type, _NAMEDTUPLE)
    return kind.unflatten([_build(leaves, child) for child in spec.children_specs], spec.context)


def tree_leaves(tree: PyTree, is_leaf: Callable[[PyTree], bool] | None = None) -> list[Any]:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: PyTree, is_leaf: Callable[[PyTree], bool] | None = None) -> TreeSpec:
    """The shape."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(
    func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: Callable[[PyTree], bool] | None = None
) -> PyTree:
    """The tree of `func` of each leaf, and of those of `rests`, of the same shape, in its place."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_leaves(rest, is_leaf) for rest in rests]
    return tree_unflatten([func(*each) for each in zip(leaves, *others, strict=True)], spec)


def tree_map_(func: Callable[..., Any], tree: PyTree, *rests: PyTree) -> PyTree:
    """Calls `func` with each leaf; returns the tree itself."""
    tree_map(func, tree, *rests)
    return tree


def _only(kinds: Any, func: Callable[[Any], Any]) -> Callable[[Any], Any]:
    chosen = kinds if callable(kinds) and not isinstance(kinds, type) else lambda leaf: isinstance(leaf, kinds)
    return lambda leaf: func(leaf) if chosen(leaf) else leaf


def tree_map_only(kinds: Any, func: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """`tree_map` of the leaves of a type, of several, or for which a function says so."""
    return tree_map(_only(kinds, func), tree)


def tree_any(predicate: Callable[[Any], bool], tree: PyTree) -> bool:
    """Whether it holds for a leaf."""
    return any(map(predicate, tree_leaves(tree)))


def tree_all(predicate: Callable[[Any], bool], tree: PyTree) -> bool:
    """Whether it holds for all leaves."""
    return all(map(predicate, tree_leaves(tree)))


def tree_all_only(kinds: Any, predicate: Callable[[Any], bool], tree: PyTree) -> bool:
    """Whether it holds for all leaves of a type."""
    return all(predicate(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, kinds))
