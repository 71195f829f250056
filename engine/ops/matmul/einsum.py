"""Products over named axes, composed from matmul and views: einsum, tensordot, inner, kron, cdist and their relatives.

einsum contracts from left to right. Source of the order of axes in intermediate results, which decides the strides of
the last: aten/native/Linear.cpp.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

from engine.calls.listening import heard
from engine.ops.matmul.addmm import weighted_sum
from engine.ops.matmul.operator import bmm, matmul, mv
from engine.ops.pointwise.selection import constant_beside
from engine.ops.reduce.norms import vector_norm
from engine.ops.shape.combine import stack
from engine.ops.views.parts import diagonal
from engine.rules import layout
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import FLOATING_CATEGORY, bool_
from engine.rules.promotion import promote_types
from engine.tensor import Tensor

_ELLIPSIS = "."

Axes = tuple[int, ...]
Step = tuple[str, tuple[Any, ...]]  # a method of Tensor, and what it is given
Steps = tuple[Step, ...]


@heard
def einsum(equation: Any, *operands: Any) -> Tensor:
    """The sum of products that an equation such as "bij,bjk->bik" names: axes that are missing on the right are summed.

    `...` stands for axes that broadcast; operands and lists of axis numbers may alternate in place of a string.
    Raises: RuntimeError for an equation that does not fit the operands, naming the subscript and sizes.
    """
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    pairs, last = _program(equation, tuple([tuple(each.shape) for each in operands]))
    result = operands[0]
    for pair, other in zip(pairs, operands[1:], strict=True):
        result, other = _after(result, pair.of_result), _after(other, pair.of_other)
        if pair.turned:
            result, other = other, result
        product = matmul(result, other) if pair.summed else result * other
        result = _after(product, pair.of_product)
    return _after(result, last)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The sublist format, einsum(a, [0, 1], b, [1, 2], [0, 2]), as a string and operands."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    lists = [each for each in arguments if not isinstance(each, Tensor)]

    def letters(axes: Any) -> str:
        return "".join("..." if axis is Ellipsis else ascii_letters[axis] for axis in axes)

    equation = ",".join(letters(axes) for axes in lists[: len(tensors)])
    return equation + ("->" + letters(lists[len(tensors)]) if len(lists) > len(tensors) else ""), tuple(tensors)


class _Pair(NamedTuple):
    """What is done with the result so far and the next operand."""

    of_result: Steps
    of_other: Steps
    summed: bool  # a matrix product, not one of elements
    turned: bool  # with the other operand first
    of_product: Steps


def _after(tensor: Tensor, steps: Steps) -> Tensor:
    for method, arguments in steps:
        tensor = getattr(tensor, method)(*arguments)
    return tensor


@lru_cache(1024)
def _program(equation: str, shapes: tuple[Axes, ...]) -> tuple[tuple[_Pair, ...], Steps]:
    """What is done with the first operand and each of the others in turn, and with what results: a function of the
    equation and the shapes alone, which takes longer to find out than it takes to be done.
    """
    inputs, output = _parse(equation, shapes)
    position = {label: place for place, label in enumerate(output)}
    for labels in inputs:
        for label in labels:
            position.setdefault(label, len(position))
    _check_sizes(inputs, shapes)
    result, pairs = _Labelled(inputs[0], shapes[0]), []
    for number in range(1, len(shapes)):
        other = _Labelled(inputs[number], shapes[number])
        later = set(output).union(*inputs[number + 1 :])
        result.sum_out(later | set(other.labels))
        other.sum_out(later | set(result.labels))
        result, pair = _contraction(result, other, later, position)
        pairs.append(pair)
    result.sum_out(set(output))
    result.permute(tuple(result.labels.index(label) for label in output))
    return tuple(pairs), tuple(result.steps)


class _Labelled:
    """A tensor with a label an axis, as far as it matters here, and what was done to it."""

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        self.labels, self.sizes = list(labels), list(sizes)
        self.steps: list[Step] = []
        for label in dict.fromkeys(labels):
            while self.labels.count(label) > 1:
                self._diagonal(label)

    def _diagonal(self, label: str) -> None:
        """Two axes that share a label become one."""
        first = self.labels.index(label)
        second = self.labels.index(label, first + 1)
        if self.sizes[first] != self.sizes[second]:
            raise RuntimeError(
                f"einsum(): subscript {label} is repeated for operand but the sizes don't match, "
                f"{self.sizes[second]} != {self.sizes[first]}"
            )
        self.steps += [("diagonal", (0, first, second)), ("movedim", (-1, first))]
        del self.labels[second], self.sizes[second]

    def size_of(self, label: str) -> int:
        """Of the axis with a label; 1 where there is none."""
        return self.sizes[self.labels.index(label)] if label in self.labels else 1

    def sum_out(self, kept: set[str]) -> None:
        """Sums over the axes of other labels than these."""
        axes = tuple(axis for axis, label in enumerate(self.labels) if label not in kept)
        if axes:
            self.steps.append(("sum", (axes,)))
            self.sizes = [size for size, label in zip(self.sizes, self.labels, strict=True) if label in kept]
            self.labels = [label for label in self.labels if label in kept]

    def drop(self, label: str) -> None:
        """Takes away an axis that has one element in the other operand, or here."""
        axis = self.labels.index(label)
        self.steps.append(("sum" if self.sizes[axis] != 1 else "squeeze", (axis,)))
        del self.labels[axis], self.sizes[axis]

    def permute(self, axes: Axes) -> None:
        if axes != tuple(range(len(axes))):
            self.steps.append(("permute", (axes,)))
            self.sizes = [self.sizes[axis] for axis in axes]
            self.labels = [self.labels[axis] for axis in axes]

    def arrange(self, order: Sequence[str]) -> None:
        """Its axes in this order."""
        self.permute(tuple(self.labels.index(label) for label in order if label in self.labels))

    def reshape(self, shape: Axes) -> None:
        if shape != tuple(self.sizes):
            self.steps.append(("reshape", (shape,)))

    def product(self, labels: Sequence[str]) -> int:
        """How many elements its axes of these labels have."""
        return prod(map(self.size_of, labels))


def _parse(equation: str, shapes: tuple[Axes, ...]) -> tuple[list[list[str]], list[str]]:
    """Labels of the axes of each operand and of the result. Axes of an ellipsis are labelled ".0", ".1" ... from the
    left of the broadcast shape.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) > len(shapes):
        raise RuntimeError(f"einsum(): fewer operands were provided than specified in the equation {equation!r}")
    if len(terms) < len(shapes):
        raise RuntimeError(f"einsum(): more operands were provided than specified in the equation {equation!r}")
    named, extra = [], []
    for number, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        before, dots, after = term.partition("...")
        for letter in before + after:
            if letter not in ascii_letters:
                raise RuntimeError(
                    f"einsum(): invalid subscript given at operand {number}: {letter!r}, subscripts must be in [a-zA-Z]"
                )
        free = len(shape) - len(before) - len(after)
        if free < 0 or (free and not dots):
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({len(before) + len(after)}) does not match the "
                f"number of dimensions ({len(shape)}) "
                f"for operand {number} and no ellipsis was given"
            )
        named.append((before, after, dots))
        extra.append(free)
    rank = max(extra)
    inputs = []
    for (before, after, dots), free in zip(named, extra, strict=True):
        middle = [f"{_ELLIPSIS}{rank - free + i}" for i in range(free)] if dots else []
        inputs.append([*before, *middle, *after])
    free_labels = [f"{_ELLIPSIS}{i}" for i in range(rank)]
    if arrow:
        before, dots, after = right.partition("...")
        output = [*before, *(free_labels if dots else []), *after]
        known = {label for labels in inputs for label in labels}
        for label in output:
            if label not in known:
                raise RuntimeError(
                    f"einsum(): output subscript {label} does not appear in the equation for any input operand"
                )
            if output.count(label) > 1:
                raise RuntimeError(f"einsum(): output subscript {label} appears more than once in the output")
    else:
        letters = [label for labels in inputs for label in labels if label[0] != _ELLIPSIS]
        output = free_labels + sorted(label for label in set(letters) if letters.count(label) == 1)
    return inputs, output


def _check_sizes(inputs: list[list[str]], shapes: tuple[Axes, ...]) -> None:
    """Raises RuntimeError where a label's sizes do not broadcast."""
    sizes: dict[str, int] = {}
    for number, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for label, size in zip(labels, shape, strict=True):
            seen = sizes.get(label, 1)
            if seen != size and 1 not in (seen, size):
                raise RuntimeError(
                    f"einsum(): subscript {label} has size {size} for operand {number} which does not broadcast with "
                    f"previously seen size {seen}"
                )
            sizes[label] = seen if size == 1 else size


def _contraction(a: _Labelled, b: _Labelled, later: set[str], position: dict[str, int]) -> tuple[_Labelled, _Pair]:
    """The product of two operands, summed over the labels that both have and nothing later needs."""
    union = sorted({*a.labels, *b.labels}, key=position.__getitem__)
    summed = []
    for label in [label for label in union if label not in later]:
        if a.size_of(label) == b.size_of(label):
            summed.append(label)
        else:  # the operand in which the axis has its size is summed alone, the other has but one element there
            a.drop(label)
            b.drop(label)
            union.remove(label)
    if not summed:
        for each in (a, b):
            each.arrange(union)
            each.reshape(tuple(map(each.size_of, union)))
        made = _Labelled(union, [a.size_of(label) if b.size_of(label) == 1 else b.size_of(label) for label in union])
        return made, _Pair(tuple(a.steps), tuple(b.steps), False, False, ())
    free = [label for label in union if label in later]
    shared = [
        label for label in free if label in a.labels and label in b.labels and a.size_of(label) == b.size_of(label)
    ]
    left = [label for label in free if label not in shared and (label not in b.labels or a.size_of(label) != 1)]
    right = [label for label in free if label not in shared and label not in left]
    turned = bool(left and right) and position[left[0]] > position[right[0]]
    first, second = (b, a) if turned else (a, b)
    if turned:
        left, right = right, left
    first.arrange(shared + left + right + summed)
    second.arrange(shared + summed + right + left)
    made = _Labelled(
        shared + left + right,
        [*map(first.size_of, shared), *map(first.size_of, left), *map(second.size_of, right)],
    )
    if len(left) == len(right) == len(summed) == 1 and left[0] not in second.labels and right[0] not in first.labels:
        return made, _Pair(tuple(a.steps), tuple(b.steps), True, turned, ())  # matrices, in a batch of several axes
    batch, inner = first.product(shared), first.product(summed)
    first.reshape((batch, first.product(left), inner))
    second.reshape((batch, inner, second.product(right)))
    return made, _Pair(tuple(a.steps), tuple(b.steps), True, turned, (("reshape", (tuple(made.sizes),)),))


@heard
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sum of products over the last `dims` axes of `a` and the first of `b`, or over two lists of axes; an axis of
    size 1 meets one of any size.

    Raises: RuntimeError where the sizes differ.
    """
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        first, second = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        first, second = ([each] if isinstance(each, int) else [int(axis) for axis in each] for each in dims)
    first, second = [axis % a.ndim for axis in first], [axis % b.ndim for axis in second]
    if len(first) != len(second):
        raise RuntimeError(f"both dimension lists should have same length, got {first} and {second}")
    for i, j in zip(first, second, strict=True):
        if a.shape[i] == 1:
            b = b.sum(j, keepdim=True, dtype=b.dtype)
        elif b.shape[j] == 1:
            a = a.sum(i, keepdim=True, dtype=a.dtype)
        elif a.shape[i] != b.shape[j]:
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {a.shape[i]} in dim {i} and second has size "
                f"{b.shape[j]} in dim {j}"
            )
    rows = [axis for axis in range(a.ndim) if axis not in first]
    columns = [axis for axis in range(b.ndim) if axis not in second]
    inner = prod(a.shape[axis] for axis in first)
    left = a.permute((*rows, *first)).reshape(prod(a.shape[axis] for axis in rows), inner)
    right = b.permute((*second, *columns)).reshape(inner, prod(b.shape[axis] for axis in columns))
    return matmul(left, right).reshape([a.shape[axis] for axis in rows] + [b.shape[axis] for axis in columns])


@heard
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sum of products over the last axis of both."""
    if not input.ndim or not other.ndim:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.shape)} and "
            f"{list(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


@heard
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of vectors, the first one conjugated."""
    return (input.conj() if input.is_complex() else input).dot(other)


@heard
def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """`outer`."""
    return input.outer(vec2)


def vector_product(input: Tensor, other: Tensor, dim: int) -> Tensor:
    """The cross product along an axis of size 3; other axes broadcast."""
    if input.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    axis = wrap_dim(dim, input.ndim, "linalg.cross")
    if input.shape[axis] != 3 or other.shape[axis] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {input.shape[axis]} and {other.shape[axis]}"
        )
    a, b = input.unbind(axis), other.unbind(axis)
    return stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], axis)


@heard
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along an axis of size 3, the first such axis without `dim`."""
    if dim is None:
        dim = next((axis for axis, size in enumerate(input.shape) if size == 3), None)
        if dim is None:
            raise RuntimeError(f"cross: no dimension of size 3 in input, got shape {list(input.shape)}")
    return vector_product(input, other, dim)


@heard
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product; the shorter shape is extended by ones in front."""
    axes = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (axes - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (axes - other.ndim) + tuple(other.shape))
    product = a.reshape([n for size in a.shape for n in (size, 1)]) * b.reshape(
        [n for size in b.shape for n in (1, size)]
    )
    return product.reshape([m * n for m, n in zip(a.shape, b.shape, strict=True)])


@heard
def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return diagonal(input).sum()


@heard
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return weighted_sum("addmv", input, mv(mat, vec), beta, alpha)


@heard
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2), of bools with `and` and `or`.

    Raises: RuntimeError for factors that the dtype does not hold, and an input that does not expand to the product.
    """
    product = vec1.outer(vec2)
    kind = promote_types(input.dtype, product.dtype)
    if layout.broadcast_shapes(tuple(input.shape), tuple(product.shape)) != tuple(product.shape):
        raise RuntimeError(
            f"addr: expected an input that expands to the product's shape {list(product.shape)}, but got "
            f"{list(input.shape)}"
        )
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, bool) and kind is not bool_:
            raise RuntimeError(f"Boolean {name} only supported for Boolean results, got {kind}.")
        if isinstance(factor, float) and kind.category < FLOATING_CATEGORY:
            raise RuntimeError(
                f"For integral input tensors, argument {name} must not be a floating point number, got {factor}."
            )
        if isinstance(factor, complex) and not kind.is_complex:
            raise RuntimeError(f"addr: {name}={factor} cannot be converted to {kind}: it is complex")
    if kind is bool_:
        return (input & bool(beta)) | (product & bool(alpha))
    product = product * alpha
    return input * beta + product if beta else constant_beside(product.to(kind), input)


@heard
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum of the batch's products."""
    return weighted_sum("addbmm", input, bmm(batch1, batch2).sum(0, dtype=batch1.dtype), beta, alpha)


@heard
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """p-norm distances between the rows of two (batches of) matrices: (..., P, R). Every distance is computed from the
    differences.
    """
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"cdist: X1 and X2 must have at least two dimensions and the same number of columns. X1: {list(x1.shape)} "
            f"X2: {list(x2.shape)}"
        )
    layout.broadcast_shapes(tuple(x1.shape[:-2]), tuple(x2.shape[:-2]))
    return vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


@heard
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """p-norm distances between all pairs of rows, as a vector."""
    from engine.ops.shape.composed import triu_indices

    if input.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    pairs = triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    return vector_norm(input[pairs[0]] - input[pairs[1]], p, -1)
