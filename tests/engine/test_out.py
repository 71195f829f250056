"""`out=`: whose memory, which strides, which dtype; what is refused; and factories that copy a layout."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine

X = engine.arange(6.0).reshape(2, 3)
I64, BOOL = engine.int64, engine.bool

# name -> (call, whether a result is cast to the dtype of `out`, how overlap with an input is treated)
CALLS: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "add": (lambda x, **o: engine.add(x, x, alpha=2, **o), True, "partial"),
    "sub": (lambda x, **o: engine.sub(x, 1, **o), True, "partial"),
    "exp": (lambda x, **o: engine.exp(x, **o), True, "partial"),
    "div": (lambda x, **o: engine.div(x, 2, **o), True, "partial"),
    "lerp": (lambda x, **o: engine.lerp(x, x, 0.5, **o), True, "partial"),
    "addcmul": (lambda x, **o: engine.addcmul(x, x, x, value=2, **o), True, "partial"),
    "where": (lambda x, **o: engine.where(x > 2, x, x, **o), False, "partial"),
    "clamp": (lambda x, **o: engine.clamp(x, 1, 3, **o), True, "partial"),
    "sum": (lambda x, **o: engine.sum(x, 1, **o), True, "none"),
    "mean": (lambda x, **o: engine.mean(x, 1, **o), True, "none"),
    "prod": (lambda x, **o: engine.prod(x, 1, **o), True, "none"),
    "var": (lambda x, **o: engine.var(x, 1, **o), True, "none"),
    "std": (lambda x, **o: engine.std(x, 1, **o), True, "none"),
    "amax": (lambda x, **o: engine.amax(x, 1, **o), False, "none"),
    "logsumexp": (lambda x, **o: engine.logsumexp(x, 1, **o), True, "none"),
    "norm": (lambda x, **o: engine.norm(x, 2, 1, **o), False, "none"),
    "cumsum": (lambda x, **o: engine.cumsum(x, 1, **o), True, "none"),
    "cumprod": (lambda x, **o: engine.cumprod(x, 1, **o), True, "none"),
    "matmul": (lambda x, **o: engine.matmul(x, x.t(), **o), False, "none"),
    "mm": (lambda x, **o: engine.mm(x, x.t(), **o), False, "none"),
    "bmm": (lambda x, **o: engine.bmm(x[None], x[None].mT, **o), False, "none"),
    "mv": (lambda x, **o: engine.mv(x, x[0], **o), False, "none"),
    "dot": (lambda x, **o: engine.dot(x[0], x[1], **o), False, "none"),
    "addmm": (lambda x, **o: engine.addmm(x[:, :1], x, x.t(), beta=2, **o), False, "none"),
    "outer": (lambda x, **o: engine.outer(x[0], x[1], **o), True, "any"),
    "softmax": (lambda x, **o: engine.softmax(x, 1, **o), False, "none"),
    "tril": (lambda x, **o: engine.tril(x, **o), False, "none"),
    "cat": (lambda x, **o: engine.cat([x, x], 1, **o), True, "any"),
    "stack": (lambda x, **o: engine.stack([x, x], 1, **o), True, "any"),
    "hstack": (lambda x, **o: engine.hstack([x, x], **o), True, "any"),
    "vstack": (lambda x, **o: engine.vstack([x, x], **o), True, "any"),
    "index_select": (lambda x, **o: engine.index_select(x, 1, engine.tensor([2, 0]), **o), False, "any"),
    "gather": (lambda x, **o: engine.gather(x, 1, engine.tensor([[1], [2]]), **o), False, "any"),
    "take": (lambda x, **o: engine.take(x, engine.tensor([5, 0]), **o), False, "any"),
    "masked_select": (lambda x, **o: engine.masked_select(x, x > 2, **o), False, "any"),
}
INDICES: dict[str, Callable[..., Any]] = {
    "argmax": lambda x, **o: engine.argmax(x, 1, **o),
    "argmin": lambda x, **o: engine.argmin(x, 1, **o),
    "all": lambda x, **o: engine.all(x, 1, **o),
    "any": lambda x, **o: engine.any(x, 1, **o),
    "lt": lambda x, **o: engine.lt(x, 3, **o),
    "logical_not": lambda x, **o: engine.logical_not(x, **o),
    "nonzero": lambda x, **o: engine.nonzero(x, **o),
}
PAIRS: dict[str, Callable[..., Any]] = {
    "max": lambda x, **o: engine.max(x, 1, **o),
    "min": lambda x, **o: engine.min(x, 1, **o),
    "sort": lambda x, **o: engine.sort(x, 1, True, **o),
    "topk": lambda x, **o: engine.topk(x, 2, **o),
}
FACTORIES: dict[str, Callable[..., Any]] = {
    "zeros": lambda **o: engine.zeros(2, 3, **o),
    "ones": lambda **o: engine.ones((2, 3), **o),
    "full": lambda **o: engine.full((2, 3), 2.0, **o),
    "arange": lambda **o: engine.arange(0, 3, **o),
    "linspace": lambda **o: engine.linspace(0, 1, 4, **o),
    "eye": lambda **o: engine.eye(3, **o),
}
ALL = {name: call for name, (call, _, _) in CALLS.items()} | INDICES


def reversed_memory(shape: tuple[int, ...], dtype: engine.dtype) -> engine.Tensor:
    """Zeros of a shape, column-major."""
    return engine.zeros(shape[::-1], dtype=dtype).permute(*range(len(shape) - 1, -1, -1))


@pytest.mark.parametrize("name", ALL)
def test_empty_out_becomes_the_result(name: str) -> None:
    expected = ALL[name](X)
    out = engine.empty(0, dtype=expected.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ALL[name](X, out=out) is out
    assert (out.shape, out.stride(), out.dtype) == (expected.shape, expected.stride(), expected.dtype)
    np.testing.assert_array_equal(out.numpy(), expected.numpy())
    assert out._version == 1


@pytest.mark.parametrize("name", ALL)
def test_out_of_the_right_shape_keeps_memory_and_strides(name: str) -> None:
    expected = ALL[name](X)
    out = reversed_memory(tuple(expected.shape), expected.dtype)
    stride, address = out.stride(), out.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ALL[name](X, out=out) is out
    assert (out.stride(), out.data_ptr()) == (stride, address)
    np.testing.assert_array_equal(out.numpy(), expected.numpy())


@pytest.mark.parametrize("name", ALL)
def test_out_of_another_shape_is_resized_with_a_warning(name: str) -> None:
    expected = ALL[name](X)
    out = engine.zeros(17, dtype=expected.dtype)
    with pytest.warns(
        UserWarning, match=r"resized since it had shape \[17\].*Pass an out tensor of that shape"
    ) as told:
        ALL[name](X, out=out)
    assert told[0].filename == __file__
    assert (out.shape, out.stride()) == (expected.shape, expected.stride())
    np.testing.assert_array_equal(out.numpy(), expected.numpy())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_out_of_another_dtype(name: str, dtype: str) -> None:
    call, casts, _ = CALLS[name]
    out = engine.empty(0, dtype=getattr(engine, dtype))
    converts = casts and (dtype != "int64" or name in ("sum", "prod", "cumsum", "cumprod"))  # these compute in it
    if converts:
        call(X, out=out)
        np.testing.assert_allclose(out.numpy(), call(X).numpy().astype(dtype), rtol=1e-6)
    else:
        error = TypeError if name in ("cat", "stack", "hstack", "vstack") else RuntimeError
        with pytest.raises(error, match=rf"(?s)out=.*(dtype|type) engine\.float32.*engine\.{dtype}"):
            call(X, out=out)


@pytest.mark.parametrize("name", ["argmax", "all", "nonzero"])
def test_indices_need_an_out_of_their_dtype(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"have dtype engine\.(int64|bool), but got engine\.float32"):
        INDICES[name](X, out=engine.empty(0))


@pytest.mark.parametrize("name", PAIRS)
def test_two_results(name: str) -> None:
    values, indices = engine.empty(0), engine.empty(0, dtype=I64)
    result = PAIRS[name](X, out=(values, indices))
    expected = PAIRS[name](X)
    assert result.values is values
    assert result.indices is indices
    assert values.tolist() == expected.values.tolist()
    assert indices.tolist() == expected.indices.tolist()
    with pytest.raises(TypeError, match="tuple of 2 Tensors, got 1"):
        PAIRS[name](X, out=values)


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    expected = FACTORIES[name]()
    for dtype in (engine.float32, engine.float64, engine.int64):
        out = reversed_memory(tuple(expected.shape), dtype)
        address = out.data_ptr()
        assert FACTORIES[name](out=out) is out
        assert out.data_ptr() == address
        np.testing.assert_allclose(out.numpy(), expected.numpy().astype(dtype.numpy), rtol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_out_must_be_a_tensor(name: str) -> None:
    with pytest.raises(TypeError, match="argument 'out' must be Tensor, not str"):
        ALL[name](X, out="a")


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_recorded_through_out(name: str) -> None:
    call = CALLS[name][0]
    leaf = X.clone().requires_grad_()
    for x, out in ((leaf, engine.empty(0)), (X, engine.empty(0).requires_grad_())):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            call(x, out=out)
    with engine.no_grad():
        out = call(leaf, out=engine.empty(0))
    assert not out.requires_grad


@pytest.mark.parametrize("name", ALL)
def test_expanded_out(name: str) -> None:
    expected = ALL[name](X)
    if expected.numel() < 2:
        return
    out = engine.zeros(1, dtype=expected.dtype).expand(expected.shape)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        ALL[name](X, out=out)


@pytest.mark.parametrize("name", CALLS)
def test_out_that_overlaps_an_input(name: str) -> None:
    """Partly: elementwise operators refuse. At all: cat, stack, index_select and the like. Others compute first."""
    call, _, overlap = CALLS[name]
    expected = call(X)
    line = engine.arange(-1.0, 40.0)
    x = line[1:7].view(2, 3)
    size = expected.numel()
    out = line[2 : 2 + size].view(expected.shape)
    if overlap == "none":
        call(x, out=out)
        np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-6)
    else:
        with pytest.raises(RuntimeError, match=r"single memory location\. Please clone\(\)"):
            call(x, out=out)


@pytest.mark.parametrize("name", [name for name, (_, _, overlap) in CALLS.items() if overlap == "partial"])
def test_out_may_be_an_input(name: str) -> None:
    x = X.clone()
    assert CALLS[name][0](x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), CALLS[name][0](X).numpy())


def test_out_uses_the_memory_it_has() -> None:
    buffer = engine.zeros(10)
    out = buffer[2:2]
    engine.add(X, X, out=out)
    assert out.shape == (2, 3)
    assert buffer.tolist() == [0, 0, 0, 2, 4, 6, 8, 10, 0, 0]
    small = buffer[8:8]
    engine.add(X, X, out=small)
    assert buffer[8:].tolist() == [0, 0]
    assert small.tolist() == (X * 2).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_signbit_into_every_second_element(dtype: str) -> None:
    numbers = (np.random.RandomState(0).standard_normal((20, 20)) * 10).astype(dtype)
    for _ in range(2):  # the second call finds a plan that writes without a copy
        out = engine.zeros(20, 20, 2, dtype=BOOL)
        engine.signbit(engine.from_numpy(numbers), out=out[..., 1])
        np.testing.assert_array_equal(out[..., 1].numpy(), numbers < 0)
        assert not out[..., 0].any()


def test_a_write_through_out_is_noticed_by_backward() -> None:
    x = engine.ones(3, requires_grad=True)
    weights = engine.ones(3)
    loss = (x * weights).sum()
    engine.add(weights, 1, out=weights)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- layouts that are copied ------------------------------------------------------------------------------------------

LAST = engine.channels_last
SOURCES = {
    "contiguous": engine.zeros(2, 3, 4, 5),
    "channels-last": engine.zeros(2, 3, 4, 5).to(memory_format=LAST),
    "permuted": engine.zeros(5, 4, 3, 2).permute(3, 2, 1, 0),
    "sliced": engine.zeros(2, 3, 4, 10)[..., ::2],
    "sliced channels-last": engine.zeros(2, 6, 4, 5).to(memory_format=LAST)[:, ::2],
    "expanded": engine.zeros(2, 1, 4, 5).expand(2, 3, 4, 5),
}
PRESERVED = {
    "contiguous": (60, 20, 5, 1),
    "channels-last": (60, 1, 15, 3),
    "permuted": (1, 2, 6, 24),
    "sliced": (60, 20, 5, 1),
    "sliced channels-last": (60, 1, 15, 3),
    "expanded": (60, 20, 5, 1),
}
LIKE: dict[str, Callable[..., engine.Tensor]] = {
    "empty_like": engine.empty_like,
    "zeros_like": engine.zeros_like,
    "ones_like": engine.ones_like,
    "full_like": lambda x, **options: engine.full_like(x, 7, **options),
    "rand_like": engine.rand_like,
    "randn_like": engine.randn_like,
    "clone": lambda x, **options: x.clone(**options),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", LIKE)
def test_memory_formats_of_likes(name: str, source: str) -> None:
    x = SOURCES[source]
    for memory_format, stride in (
        (None, PRESERVED[source]),
        (engine.preserve_format, PRESERVED[source]),
        (engine.contiguous_format, (60, 20, 5, 1)),
        (LAST, (60, 1, 15, 3)),
    ):
        made = LIKE[name](x) if memory_format is None else LIKE[name](x, memory_format=memory_format)
        assert made.shape == x.shape
        assert made.stride() == stride, memory_format
        assert made.data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="rank 5"):
        LIKE[name](x, memory_format=engine.channels_last_3d)


def test_likes_of_another_dtype_and_device() -> None:
    x = SOURCES["channels-last"]
    made = engine.zeros_like(x, dtype=I64, requires_grad=False)
    assert (made.dtype, made.stride()) == (I64, x.stride())
    meta = engine.empty_like(x, device="meta", memory_format=engine.contiguous_format)
    assert (meta.is_meta, meta.stride()) == (True, (60, 20, 5, 1))
    assert engine.ones_like(x, dtype=BOOL).all()
    assert engine.zeros_like(x, requires_grad=True).requires_grad


@pytest.mark.parametrize("make", [engine.rand_like, engine.randn_like], ids=["rand_like", "randn_like"])
def test_a_random_tensor_like_another_may_require_grad(make):
    made = make(engine.ones(2, 3), requires_grad=True)
    assert made.requires_grad
    assert made.is_leaf
    assert made.shape == (2, 3)
