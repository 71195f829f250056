"""Bad input of the layout layer: PyTorch's error type, and a message that says what was expected, what came, what to
do.

And the inputs that look bad and are not: without elements, without axes, too large for memory.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F

Call = Callable[[], Any]
Row = tuple[Call, type[Exception], tuple[str, ...]]

zeros, ones, tensor = engine.zeros, engine.ones, engine.tensor


def assign(target: engine.Tensor, key: Any, value: Any) -> engine.Tensor:
    target[key] = value
    return target


def overlapping(write: Callable[[engine.Tensor, engine.Tensor], Any]) -> Call:
    """Calls `write` with the two overlapping halves of one vector."""
    line = engine.arange(5.0)
    return lambda: write(line[1:], line[:-1])


def check(row: Row) -> None:
    call, error, parts = row
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error or error in (RuntimeError, IndexError), type(caught.value)
    for part in parts:
        assert part in str(caught.value), (part, str(caught.value))


VIEWS: dict[str, Row] = {
    "view count": (lambda: zeros(2, 3).view(7), RuntimeError, ("[7]", "input of size 6")),
    "view order": (lambda: zeros(2, 3).t().view(6), RuntimeError, ("[3, 2]", "(1, 3)", "reshape")),
    "view two free": (lambda: zeros(2, 3).view(-1, -1), RuntimeError, ("only one dimension", "[-1, -1]")),
    "view negative": (lambda: zeros(2, 3).view(-2, 3), RuntimeError, ("-2",)),
    "view float": (lambda: zeros(2, 3).view(1.5), TypeError, ("1.5",)),
    "view zero free": (lambda: zeros(0, 3).view(0, -1), RuntimeError, ("ambiguous", "give every size")),
    "reshape": (lambda: zeros(2, 3).reshape(4, -1), RuntimeError, ("[4, -1]", "6")),
    "unflatten": (lambda: zeros(2, 3).unflatten(1, (2, 2)), RuntimeError, ("[2, 2]", "3")),
    "flatten": (lambda: zeros(2, 3).flatten(1, 0), RuntimeError, ("start_dim",)),
    "expand size": (lambda: zeros(2, 3).expand(4, 3), RuntimeError, ("(4)", "(2)", "[4, 3]", "[2, 3]")),
    "expand fewer": (lambda: zeros(2, 3).expand(3), RuntimeError, ("[2, 3]", "[3]")),
    "expand new free": (lambda: zeros(3).expand(-1, 3), RuntimeError, ("-1", "leading")),
    "expand negative": (lambda: zeros(3).expand(-2, 3), RuntimeError, ("[-2, 3]", "negative")),
    "permute length": (lambda: zeros(2, 3).permute(0), RuntimeError, ("input.dim() = 2", "len(dims) = 1")),
    "permute twice": (lambda: zeros(2, 3).permute(0, 0), RuntimeError, ("duplicate",)),
    "permute range": (lambda: zeros(2, 3).permute(0, 5), IndexError, ("[-2, 1]", "5")),
    "transpose range": (lambda: zeros(2, 3).transpose(0, 5), IndexError, ("transpose", "[-2, 1]", "5")),
    "mT of a vector": (lambda: zeros(3).mT, RuntimeError, ("1-D", "unsqueeze")),
    "squeeze range": (lambda: zeros(2, 3).squeeze(4), IndexError, ("[-2, 1]", "4")),
    "narrow": (lambda: zeros(5).narrow(0, 3, 4), RuntimeError, ("start (3)", "length (4)", "5")),
    "select": (lambda: zeros(5).select(0, 5), IndexError, ("5",)),
    "unfold": (lambda: zeros(5).unfold(0, 6, 1), RuntimeError, ("6", "5")),
    "diagonal": (lambda: zeros(2, 3).diagonal(0, 1, 1), RuntimeError, ("1",)),
    "as_strided negative": (lambda: zeros(5).as_strided((3,), (-1,)), RuntimeError, ("Negative strides", "[-1]")),
    "as_strided outside": (lambda: zeros(5).as_strided((30,), (2,)), RuntimeError, ("[30]",)),
    "as_strided offset": (lambda: zeros(5).as_strided((1,), (1,), 7), RuntimeError, ("7",)),
    "as_strided lengths": (lambda: zeros(5).as_strided((1, 1), (1,)), RuntimeError, ("stride",)),
    "chunk": (lambda: zeros(2).chunk(0), RuntimeError, ("greater than 0", "0")),
    "chunk of a scalar": (lambda: zeros(()).chunk(2), RuntimeError, ("0 dims", "reshape(1)")),
    "split": (lambda: zeros(2).split([1, 2]), RuntimeError, ("2", "[1, 2]")),
    "unbind of a scalar": (lambda: zeros(()).unbind(), IndexError, ("no dimensions",)),
    "movedim": (lambda: zeros(2, 3).movedim((0, 1), (0,)), RuntimeError, ("movedim",)),
    "format of another rank": (
        lambda: zeros(2, 2, 2).to(memory_format=engine.channels_last),
        RuntimeError,
        ("rank 4", "[2, 2, 2]"),
    ),
    "empty preserve": (lambda: engine.empty(2, memory_format=engine.preserve_format), RuntimeError, ("preserve",)),
    "empty negative": (lambda: engine.empty(2, -1), RuntimeError, ("negative", "[2, -1]")),
    "empty_strided negative": (lambda: engine.empty_strided((2,), (-1,)), RuntimeError, ("[-1]",)),
}

SLICES: dict[str, Row] = {
    "negative step": (lambda: zeros(5)[::-1], ValueError, ("step must be greater than zero", "flip")),
    "step 0": (lambda: zeros(5)[::0], ValueError, ("step", "0")),
    "negative step, writing": (lambda: assign(zeros(5), slice(None, None, -1), 1.0), ValueError, ("step", "flip")),
    "NumPy memory": (lambda: engine.from_numpy(np.zeros(5)[::-1]), ValueError, ("negative strides", "copy")),
    "NumPy memory behind a header": (
        lambda: engine.frombuffer(bytearray(43), dtype=engine.float32, offset=3),
        ValueError,
        ("float32", "no multiples of 4", "copy"),
    ),
    "too many": (lambda: zeros(5)[0, 0], IndexError, ("dimension 1", "2")),
    "of a scalar": (lambda: zeros(())[0], IndexError, ("0",)),
    "out of range": (lambda: zeros(3, 2)[5], IndexError, ("5", "[3, 2]", "dimension 0")),
    "a float": (lambda: zeros(5)[1.0], IndexError, ("integers", "float")),
    "a string": (lambda: zeros(5)["a"], TypeError, ("integers", "str")),
    "two ellipses": (lambda: zeros(5)[..., ...], IndexError, ("single ellipsis",)),
    "float tensor": (lambda: zeros(5)[tensor([1.0])], IndexError, ("long, int, byte or bool", "float32")),
    "mask shape": (lambda: zeros(5)[tensor([True])], IndexError, ("[1]", "[5]")),
    "index tensors": (lambda: zeros(5, 5)[tensor([0, 1]), tensor([0, 1, 2])], IndexError, ("[2]", "[3]")),
    "value shape": (lambda: assign(zeros(5), slice(0, 2), ones(3)), RuntimeError, ("[3]", "[2]")),
    "index_select": (lambda: zeros(3).index_select(0, tensor([5])), IndexError, ("index_select", "5", "size 3")),
    "gather": (lambda: zeros(3, 2).gather(1, tensor([[5]])), RuntimeError, ("gather", "5", "size 2")),
    "gather rank": (lambda: zeros(3, 2).gather(0, tensor([1])), RuntimeError, ("[1]", "[3, 2]")),
    "scatter dtype": (
        lambda: zeros(3).scatter(0, tensor([0]), tensor([1])),
        RuntimeError,
        ("float32", "int64", ".to()"),
    ),
    "take": (lambda: zeros(3).take(tensor([9])), IndexError, ("9", "3")),
    "masked_fill value": (
        lambda: zeros(2).masked_fill(zeros(2).bool(), zeros(2)),
        RuntimeError,
        ("0-dimensional", "1 dimension", "where"),
    ),
    "masked_fill mask": (lambda: zeros(2).masked_fill(zeros(2), 1.0), RuntimeError, ("boolean", "float32")),
    "where condition": (lambda: engine.where(zeros(2), 1.0, 0.0), RuntimeError, ("boolean", "float32", "!= 0")),
}

EXPANDED = "more than one element of the written-to tensor refers to a single memory location"
WRITING: dict[str, Row] = {
    "add_ to an expanded tensor": (
        lambda: zeros(1, 3).expand(2, 3).add_(1),
        RuntimeError,
        ("add_", EXPANDED, "clone()", "[2, 3]", "(0, 1)"),
    ),
    "operator on an expanded tensor": (lambda: zeros(3, 1).expand(3, 2).__imul__(2), RuntimeError, (EXPANDED,)),
    "copy_ to an expanded tensor": (lambda: zeros(1).expand(3).copy_(ones(3)), RuntimeError, ("copy_", EXPANDED)),
    "item of an expanded tensor": (lambda: assign(zeros(1).expand(3), slice(0, 2), ones(2)), RuntimeError, (EXPANDED,)),
    "random numbers": (lambda: zeros(1).expand(3).uniform_(), RuntimeError, ("uniform_", EXPANDED)),
    "add_ to overlapping memory": (
        overlapping(lambda a, b: a.add_(b)),
        RuntimeError,
        ("add_", "single memory location", "clone()", "[4]"),
    ),
    "copy_ to overlapping memory": (overlapping(lambda a, b: a.copy_(b)), RuntimeError, ("copy_", "clone()")),
    "assignment to overlapping memory": (
        lambda: (lambda t: assign(t, slice(1, None), t[:-1]))(engine.arange(5.0)),
        RuntimeError,
        ("single memory location",),
    ),
    "transposed self": (lambda: (lambda t: t.add_(t.t()))(ones(2, 2)), RuntimeError, ("single memory location",)),
    "broadcast destination": (
        lambda: zeros(3).add_(zeros(2, 3)),
        RuntimeError,
        ("add_", "[3]", "doesn't match the broadcast shape [2, 3]"),
    ),
    "float into int": (
        lambda: zeros(3, dtype=engine.int64).add_(1.5),
        RuntimeError,
        ("add_", "float32", "can't be cast to", "int64"),
    ),
    "complex into float": (lambda: zeros(3).mul_(1j), RuntimeError, ("complex64", "float32")),
    "int into bool": (lambda: tensor([True]).add_(1), RuntimeError, ("int64", "bool")),
    "leaf": (lambda: zeros(2, requires_grad=True).add_(1), RuntimeError, ("leaf", "no_grad")),
    "copy_ shape": (lambda: zeros(2).copy_(zeros(3)), RuntimeError, ("[3]", "[2]")),
    "fill_ with a vector": (lambda: zeros(2).fill_(zeros(2)), RuntimeError, ("0-dimension", "1 dimensions")),
}

HALF = {"dtype": engine.float16}
INT8 = {"dtype": engine.int8}
UINT8 = {"dtype": engine.uint8}
OVERFLOW = "cannot be converted to type {} without overflow"
NUMBERS: dict[str, Row] = {
    "fill_ int8": (lambda: zeros(2, **INT8).fill_(300), RuntimeError, (OVERFLOW.format("engine.int8"), "-128", "300")),
    "fill_ uint8": (lambda: zeros(2, **UINT8).fill_(-256), RuntimeError, (OVERFLOW.format("engine.uint8"), "-256")),
    "fill_ half": (lambda: zeros(2, **HALF).fill_(1e6), RuntimeError, ("engine.float16", "65504", "1000000.0")),
    "fill_ float32": (lambda: zeros(2).fill_(1e39), RuntimeError, ("engine.float32", "1e+39")),
    "fill_ nan into int": (lambda: zeros(2, **INT8).fill_(float("nan")), RuntimeError, ("int8", "nan")),
    "fill_ complex": (lambda: zeros(2).fill_(1j), RuntimeError, ("float32", "1j")),
    "full half": (lambda: engine.full((2,), 1e6, **HALF), RuntimeError, ("full", "engine.float16")),
    "full int64": (lambda: engine.full((2,), 2**63), RuntimeError, ("full", "engine.int64")),
    "full_like": (lambda: engine.full_like(zeros(2, **INT8), 300), RuntimeError, ("full_like", "int8")),
    "new_full": (lambda: zeros(2, **INT8).new_full((2,), 300), RuntimeError, ("int8",)),
    "item": (lambda: assign(zeros(2, **INT8), 0, 300), RuntimeError, ("setitem", "int8")),
    "items by index": (lambda: assign(zeros(2, **INT8), tensor([0]), 300), RuntimeError, ("setitem", "int8")),
    "where": (lambda: engine.where(tensor([True]), zeros(1, **UINT8), 300), RuntimeError, ("where", "uint8")),
    "clamp": (lambda: zeros(2, **INT8).clamp(min=1000), RuntimeError, ("clamp", "int8", "1000")),
    "clamp half": (lambda: zeros(2, **HALF).clamp(max=1e6), RuntimeError, ("clamp", "float16")),
    "masked_fill half": (
        lambda: zeros(2, **HALF).masked_fill(tensor([True, False]), -1e9),
        RuntimeError,
        ("masked_fill", "float16", "-65504"),
    ),
    "scatter": (lambda: zeros(3, **INT8).scatter(0, tensor([0]), 300), RuntimeError, ("scatter", "int8")),
    "pad": (lambda: F.pad(zeros(2, **INT8), (1, 1), value=300), RuntimeError, ("pad", "int8")),
    "pow exponent": (lambda: ones(2, **UINT8) ** 300, RuntimeError, ("pow", "uint8", "300")),
    "negative power of int": (
        lambda: tensor([2]) ** -1,
        RuntimeError,
        ("Integers to negative integer powers are not allowed", "-1", ".float()"),
    ),
    "int beyond 64 bits": (lambda: tensor([1]) + 2**64, OverflowError, ("int too big", str(2**64))),
    "int beyond 64 bits, float": (lambda: ones(1) * 10**40, OverflowError, ("int too big",)),
    "tensor int8": (lambda: tensor([300], **INT8), RuntimeError, (OVERFLOW.format("engine.int8"), "300")),
    "tensor of a large float": (lambda: tensor([300.5], **INT8), RuntimeError, ("int8", "300.5")),
    "tensor of inf": (lambda: tensor([float("inf")], dtype=engine.int32), RuntimeError, ("int32", "inf")),
    "tensor 2**63": (lambda: tensor([2**63]), ValueError, ("Overflow", str(2**63))),
    "tensor 2**64": (lambda: tensor([2**64]), ValueError, ("Overflow", str(2**64))),
    "tensor of complex": (lambda: tensor([1j], dtype=engine.float32), TypeError, ("must be real", "complex")),
    "tensor of None": (lambda: tensor(None), RuntimeError, ("Could not infer dtype of NoneType", "expected numbers")),
    "tensor of strings": (lambda: tensor(["a"]), ValueError, ("str", "expected numbers")),
    "tensor ragged": (lambda: tensor([[1, 2], [3]]), ValueError, ("equal length",)),
    "floor_divide by 0": (lambda: tensor([1]) // 0, RuntimeError, ("floor_divide", "ZeroDivisionError", "float")),
    "remainder by 0": (lambda: tensor([1, 2]) % tensor([1, 0]), RuntimeError, ("remainder", "ZeroDivisionError")),
    "fmod by 0": (lambda: engine.fmod(tensor([1]), 0), RuntimeError, ("fmod", "ZeroDivisionError")),
    "float alpha": (
        lambda: tensor([1]).sub(tensor([2]), alpha=2.5),
        RuntimeError,
        ("alpha must not be a floating point number", "int64", "2.5"),
    ),
    "complex alpha": (lambda: ones(1).add(ones(1), alpha=1j), RuntimeError, ("alpha", "complex", "float32")),
    "bool minus bool": (lambda: tensor([True]) - tensor([True]), RuntimeError, ("sub", "bool", "^")),
    "minus bool": (lambda: -tensor([True]), RuntimeError, ("neg", "bool", "~")),
    "bits of floats": (lambda: ones(2) & 1, RuntimeError, ("bitwise_and", "float32", "expected bool or integer")),
    "invert floats": (lambda: ~ones(2), TypeError, ("integer and Boolean", "float32")),
    "order of complex": (lambda: ones(2, dtype=engine.complex64) < 1, RuntimeError, ("lt", "complex64", ".abs()")),
    "complex32": (lambda: ones(2, **HALF) * 1j, NotImplementedError, ("mul", "float16", "complex32", ".float()")),
    "a string": (lambda: ones(2) + "a", TypeError, ("Tensor", "str")),
    "a list": (lambda: engine.add(ones(2), [1, 2]), TypeError, ("add", "list", "engine.tensor")),
    "float()": (lambda: float(zeros(2)), ValueError, ("only one element", "[2]")),
    "item()": (lambda: zeros(2).item(), RuntimeError, ("2 elements", "one element")),
    "bool()": (lambda: bool(zeros(2)), RuntimeError, ("ambiguous", ".any()")),
    "len()": (lambda: len(zeros(())), TypeError, ("0-d",)),
}

SHAPES: dict[str, Row] = {
    "broadcast": (lambda: zeros(2, 3) + zeros(2), RuntimeError, ("(3)", "(2)", "[2, 3]", "[2]")),
    "matmul": (lambda: zeros(2, 3) @ zeros(2, 3), RuntimeError, ("2x3 and 2x3", "transpose")),
    "matmul dtype": (lambda: zeros(2, 3) @ zeros(3, 2).double(), RuntimeError, ("float32", "float64", ".to()")),
    "mm": (lambda: engine.mm(zeros(2), zeros(2, 2)), RuntimeError, ("2-D", "[2]", "matmul")),
    "bmm": (lambda: engine.bmm(zeros(2, 3, 1), zeros(3, 1, 3)), RuntimeError, ("[2, 3, 1]", "[3, 1, 3]")),
    "cat": (lambda: engine.cat([zeros(2, 3), zeros(2, 2)]), RuntimeError, ("[2, 3]", "[2, 2]", "number 1")),
    "cat ranks": (lambda: engine.cat([zeros(2, 3), zeros(2)]), RuntimeError, ("2", "1", "tensor 1")),
    "cat of scalars": (lambda: engine.cat([zeros(())]), RuntimeError, ("zero-dimensional", "position 0")),
    "cat of nothing": (lambda: engine.cat([]), ValueError, ("non-empty",)),
    "cat of one tensor": (lambda: engine.cat(zeros(2)), TypeError, ("tuple of Tensors", "[tensor]")),
    "cat of numbers": (lambda: engine.cat([1, 2]), TypeError, ("element 0", "int")),
    "stack": (lambda: engine.stack([zeros(2), zeros(3)]), RuntimeError, ("[2]", "[3]", "entry 1")),
    "stack of nothing": (lambda: engine.stack([]), RuntimeError, ("non-empty",)),
    "sum dim": (lambda: zeros(2).sum(1), IndexError, ("sum", "[-1, 0]", "1")),
    "sum twice": (lambda: zeros(2, 2).sum((0, 0)), RuntimeError, ("multiple times", "[0, 0]")),
    "mean of ints": (lambda: tensor([1]).mean(), RuntimeError, ("mean", "int64", ".float()")),
    "tril": (lambda: engine.tril(zeros(2)), RuntimeError, ("at least 2 dimensions", "[2]")),
    "repeat": (lambda: zeros(2, 2).repeat(2), RuntimeError, ("[2]", "[2, 2]")),
    "arange": (lambda: engine.arange(5, 0), RuntimeError, ("5", "0", "step")),
    "eye": (lambda: engine.eye(-1), RuntimeError, ("-1",)),
    "dtype": (lambda: zeros(2, dtype="float32"), TypeError, ("float32", "engine.float32")),
    "device": (lambda: zeros(2, device="banana"), RuntimeError, ("banana", "cpu")),
    "devices": (lambda: zeros(2, device="meta") + zeros(2), RuntimeError, ("cpu", "meta", ".to(device)")),
    "out of meta": (lambda: zeros(2, device="meta").to("cpu"), NotImplementedError, ("no data", "empty_like")),
    "values of meta": (lambda: zeros(1, device="meta").item(), RuntimeError, ("meta", "no memory")),
    "memory": (lambda: engine.empty(2**60), RuntimeError, ("allocate", f"{2**62:,} bytes", "[1152921504606846976]")),
    "grad shape": (lambda: setattr(zeros(2), "grad", zeros(3)), RuntimeError, ("[2]", "[3]")),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    check(VIEWS[name])


@pytest.mark.parametrize("name", SLICES)
def test_indexing(name: str) -> None:
    check(SLICES[name])


@pytest.mark.parametrize("name", WRITING)
def test_writing_in_place(name: str) -> None:
    check(WRITING[name])


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    check(NUMBERS[name])


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_dtypes_and_devices(name: str) -> None:
    check(SHAPES[name])


# --- numbers that PyTorch takes: wrapped around, or infinite ----------------------------------------------------------


TAKEN: dict[str, tuple[Call, object]] = {
    "half + int": (lambda: ones(1, **HALF) + 100000, float("inf")),
    "half * float": (lambda: ones(1, **HALF) * -70000.0, -float("inf")),
    "0-dim half": (lambda: tensor(1.0, **HALF) + 100000, float("inf")),
    "half item": (lambda: assign(ones(1, **HALF), 0, 100000), float("inf")),
    "half where": (lambda: engine.where(tensor([False]), ones(1, **HALF), 1e6), float("inf")),
    "float": (lambda: ones(1) + 1e39, float("inf")),
    "float of a large int": (lambda: tensor([10**40], dtype=engine.float32), float("inf")),
    "uint8 + int": (lambda: ones(1, **UINT8) + 300, 45),
    "int - uint8": (lambda: 300 - ones(1, **UINT8), 43),
    "uint8 * -1": (lambda: ones(1, **UINT8) * -1, 255),
    "uint8 // int": (lambda: ones(1, **UINT8) // 300, 0),
    "uint8.add_": (lambda: ones(1, **UINT8).add_(-5), 252),
    "uint8.fill_": (lambda: ones(1, **UINT8).fill_(-1), 255),
    "uint8 item": (lambda: assign(ones(1, **UINT8), 0, -1), 255),
    "uint8 tensor": (lambda: tensor([-1], **UINT8), 255),
    "uint8 ==": (lambda: tensor([44], **UINT8) == 300, True),
    "uint8 >": (lambda: ones(1, **UINT8) > -1, False),
    "int8 + int": (lambda: ones(1, **INT8) + 300, 45),
    "int8.add_": (lambda: ones(1, **INT8).add_(300), 45),
    "int32 + int": (lambda: ones(1, dtype=engine.int32) + 2**40, 1),
    "int64 + int": (lambda: ones(1, dtype=engine.int64) + 2**63, 1 - 2**63),
    "2 ** -1": (lambda: tensor([2]) ** tensor([-1]), 0),
    "-1 ** -3": (lambda: tensor([-1]) ** tensor([-3]), -1),
}


@pytest.mark.parametrize("name", TAKEN)
def test_numbers_beyond_the_dtype_in_arithmetic(name: str) -> None:
    call, expected = TAKEN[name]
    assert call().item() == expected


def test_the_dtype_of_the_tensor_stays() -> None:
    for kind in (engine.uint8, engine.int8, engine.int32, engine.float16, engine.bfloat16):
        assert (ones(2, dtype=kind) + 100000).dtype is kind
        assert (ones(2, dtype=kind) * 3).numpy().dtype == kind.numpy
    product = ones(3, dtype=engine.bfloat16) * 0.1
    assert product.numpy().dtype == engine.bfloat16.numpy
    assert product.float().tolist() == [0.10009765625] * 3


# --- no elements, no axes ---------------------------------------------------------------------------------------------

EMPTY = [(0,), (2, 0), (0, 3), (2, 0, 3)]
FAMILIES: dict[str, Callable[[engine.Tensor], Any]] = {
    "pointwise": lambda x: x * 2 + x.exp() - x.maximum(x),
    "broadcast": lambda x: x + zeros(1, device=x.device),
    "comparison": lambda x: (x < 1) | x.isnan(),
    "where": lambda x: engine.where(x > 0, x, 0.0),
    "clamp": lambda x: x.clamp(0, 1),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(),
    "sum of last": lambda x: x.sum(-1, keepdim=True),
    "var": lambda x: x.var(),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "any": lambda x: x.any(),
    "cat": lambda x: engine.cat([x.reshape(-1), x.reshape(-1)]),
    "stack": lambda x: engine.stack([x, x]),
    "views": lambda x: x[None, ...].squeeze(0).transpose(0, -1).contiguous(),
    "flatten": lambda x: x.flatten(),
    "flip": lambda x: x.flip(-1).roll(1, -1) if x.ndim else x,
    "sort": lambda x: x.sort()[0],
    "matmul": lambda x: x.reshape(-1, 1) @ x.reshape(1, -1),
    "outer": lambda x: engine.outer(x.flatten(), x.flatten()),
    "linear": lambda x: F.linear(x.reshape(-1, 1), ones(4, 1, device=x.device)),
    "softmax": lambda x: x.softmax(-1),
    "mask": lambda x: x[x > 0],
    "index": lambda x: x.flatten()[engine.tensor([], dtype=engine.int64)],
    "repeat": lambda x: x.repeat(*(2,) * max(x.ndim, 1)),
    "tril": lambda x: x.reshape(-1, 1).tril(),
    "gelu": F.gelu,
    "dropout": lambda x: F.dropout(x, 0.5),
    "loss": lambda x: F.mse_loss(x, x, reduction="sum"),
    "conversion": lambda x: x.to(engine.float64).to(engine.float32),
    "layer norm": lambda x: F.layer_norm(x.reshape(-1, 1), (1,)),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", [(), *EMPTY], ids=str)
def test_every_family_without_elements_and_without_axes(name: str, shape: tuple[int, ...]) -> None:
    x = engine.full(shape, 3.0, requires_grad=True)
    out = FAMILIES[name](x)
    planned = FAMILIES[name](engine.empty(shape, device="meta")) if name not in ("mask", "index") else out
    assert (planned.shape, planned.stride(), planned.dtype) == (out.shape, out.stride(), out.dtype)
    if out.requires_grad:
        out.sum().backward()
        assert x.grad.shape == shape
        assert x.grad.stride() == x.stride()


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_extrema_need_elements(shape: tuple[int, ...]) -> None:
    x = zeros(*shape)
    for name in ("max", "min", "amax", "amin", "aminmax"):
        with pytest.raises(RuntimeError, match=re.escape(f"{list(shape)}")):
            getattr(engine, name)(x)
    with pytest.raises(IndexError, match=r"argmax.*dim"):
        x.argmax()
    dim = shape.index(0)
    for name in ("max", "amax", "argmin"):
        with pytest.raises(IndexError, match=f"reduction dim {dim} to have non-zero size"):
            getattr(engine, name)(x, dim)


def test_reductions_of_nothing() -> None:
    assert zeros(0).sum().item() == 0
    assert zeros(0).prod().item() == 1
    assert np.isnan(zeros(0).mean().item())
    assert zeros(2, 0).sum(1).tolist() == [0, 0]
    assert not zeros(0).any()
    assert zeros(0).all()
    assert zeros(0).logsumexp(0).item() == -float("inf")


# --- more elements than fit 32 bits, without memory -------------------------------------------------------------------

LARGE = 2**31 + 1


Strides = tuple[int, ...]
LAYOUTS: dict[str, tuple[Callable[[engine.Tensor], engine.Tensor], Strides, Strides]] = {
    "row-major": (lambda x: x, (3, LARGE), (LARGE, 1)),
    "t": (lambda x: x.t(), (LARGE, 3), (1, LARGE)),
    "number": (lambda x: x.t() + 1, (LARGE, 3), (1, LARGE)),
    "broadcast": (lambda x: x.t() * zeros(3, device="meta"), (LARGE, 3), (1, LARGE)),
    "contiguous": (lambda x: x.t().contiguous(), (LARGE, 3), (3, 1)),
    "slice": (lambda x: x[:, ::2].exp(), (3, LARGE // 2 + 1), (LARGE // 2 + 1, 1)),
    "view": (lambda x: x.view(-1), (3 * LARGE,), (1,)),
    "reshape": (lambda x: x.reshape(LARGE, 3), (LARGE, 3), (3, 1)),
    "sum": (lambda x: x.sum(0), (LARGE,), (1,)),
    "argmax": (lambda x: x.argmax(1), (3,), (1,)),
    "cat": (lambda x: engine.cat([x, x], 1), (3, 2 * LARGE), (2 * LARGE, 1)),
    "matmul": (lambda x: x @ x.t(), (3, 3), (3, 1)),
    "softmax": (lambda x: x.softmax(1), (3, LARGE), (LARGE, 1)),
    "where": (lambda x: engine.where(x > 0, x, 0.0), (3, LARGE), (LARGE, 1)),
    "clone": (lambda x: x.expand(5, -1, -1).clone(), (5, 3, LARGE), (3 * LARGE, LARGE, 1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_large_layouts(name: str) -> None:
    function, shape, stride = LAYOUTS[name]
    out = function(engine.empty(3, LARGE, device="meta"))
    assert out.shape == shape
    assert out.stride() == stride
    assert out.is_meta
    assert out.numel() == np.prod(shape, dtype=object)


def test_large_images_in_channels_last() -> None:
    images = engine.empty(2, 3, 40_000, 40_000, device="meta", memory_format=engine.channels_last)
    assert images.stride() == (4_800_000_000, 1, 120_000, 3)
    assert (images + engine.zeros(3, 1, 1, device="meta")).stride() == images.stride()
    assert images.is_contiguous(memory_format=engine.channels_last)
    with pytest.raises(RuntimeError, match="invalid for input of size 9600000000"):
        images.contiguous().view(7, -1)


def test_large_expanded_tensors_have_memory_for_one_element() -> None:
    large = zeros(1).expand(LARGE)
    assert large.stride() == (0,)
    assert large.untyped_storage().nbytes() == 4
    assert large[LARGE - 1].item() == 0
    assert large[-5:].sum().item() == 0
