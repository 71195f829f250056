"""Writing in place: histories of views and bases, what is refused, version counters, flags. Rows E42, E50, E51 of the
specification's checklist.
"""

import numpy as np
import pytest

import engine
from tests.engine.autograd.leaves import leaf


def non_leaf(count=4):
    x = engine.ones(count, requires_grad=True)
    return x, x * 1


# --- E42: histories ---------------------------------------------------------------------------------------------------


def test_E42_a_write_through_a_view_rewrites_the_base():
    x, base = non_leaf()
    view = base[:2]
    view.mul_(3)
    assert base.grad_fn.name() == "CopySlices"
    assert view.grad_fn.name() == "AsStridedBackward0"
    base.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [3.0, 3.0, 1.0, 1.0]
    (g,) = engine.autograd.grad(view.sum(), x)
    assert g.tolist() == [3.0, 3.0, 0.0, 0.0]


def test_E42_other_views_of_the_base_follow():
    x = engine.ones(4, requires_grad=True)
    base = x * 2
    view, other = base[:2], base[1:3]
    view.mul_(3)
    (other * other).sum().backward()
    assert x.grad.tolist() == [0.0, 72.0, 8.0, 0.0]


def test_E42_views_follow_a_written_base():
    x = engine.ones(4, requires_grad=True)
    base = x * 2
    view = base[:2]
    base.mul_(3)
    (view * view).sum().backward()
    assert x.grad.tolist() == [72.0, 72.0, 0.0, 0.0]


def test_E42_a_view_follows_under_no_grad_too():
    _, base = non_leaf()
    view = base[:2]
    base.mul_(2)
    with engine.no_grad():
        fn = view.grad_fn
    assert fn.name() == "AsStridedBackward0"
    assert view.requires_grad


def test_E42_a_base_without_history_gets_one():
    base, w = engine.zeros(4), leaf(2.0, 3.0)
    view = base[:2]
    view.add_(w)
    assert base.requires_grad
    assert base.grad_fn.name() == "CopySlices"
    (base.sum() + view.sum()).backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_E42_setitem_builds_a_tensor_differentiably():
    made, w = engine.zeros(4), leaf(1.0, 2.0)
    made[:2] = w
    made[2:] = w * 3
    (made * engine.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert w.grad.tolist() == [10.0, 14.0]


def test_E42_many_writes_through_many_views():
    x = engine.ones(3, 4, requires_grad=True)
    base = x * 1
    base[0].add_(1)
    base.t()[0].mul_(2)
    base[1, 2] = 5.0
    base.view(12)[3:5].mul_(4)
    (base * base).sum().backward()
    assert x.grad.tolist() == [[16.0, 4.0, 4.0, 64.0], [128.0, 2.0, 0.0, 2.0], [8.0, 2.0, 2.0, 2.0]]


VIEWS = {
    "slice": lambda t: t[1:, ::2],
    "select": lambda t: t[1],
    "transposed": lambda t: t.t(),
    "a run of memory": lambda t: t.as_strided((5,), (1,), 2),
    "diagonal": lambda t: t.diagonal(),
    "permuted select": lambda t: t.t()[1],
    "as_strided": lambda t: t.as_strided((2, 2), (5, 1), 1),
    "unsqueezed": lambda t: t[:, 1:].unsqueeze(0),
    "whole": lambda t: t[:],
}
WRITES = {
    "mul_": lambda v: v.mul_(3),
    "mul_ itself": lambda v: v.mul_(v),
    "exp": lambda v: v.copy_(v.exp()),
    "tanh_": lambda v: v.tanh_(),
    "zero_": lambda v: v.zero_(),
    "sqrt_": lambda v: v.sqrt_(),
    "add_": lambda v: v.add_(v, alpha=2),
    "masked_fill_": lambda v: v.masked_fill_(v.detach() > 1.55, 0.5),
    "pow_": lambda v: v.pow_(2),
}


@pytest.mark.full
@pytest.mark.parametrize("layout", ["row-major", "column-major"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_E42_gradients_of_writes_through_views(view, write, layout):
    """First and second derivative against finite differences, of the base, the written view and another view."""

    def write_and_look(x):
        base = x * 1
        if layout == "column-major":
            base = base.t().contiguous().t()
        other = base[:, 1]
        written = VIEWS[view](base)
        WRITES[write](written)
        return (base * base).sum() + (other**3).sum(), written * 2

    x = (engine.arange(12, dtype=engine.float64).reshape(3, 4) * 0.1 + 1).requires_grad_()
    assert engine.autograd.gradcheck(write_and_look, x, fast_mode=True)
    assert engine.autograd.gradgradcheck(write_and_look, x, fast_mode=True)


def test_E42_a_base_with_gaps_in_memory():
    def write_and_look(x):
        memory = engine.zeros(20, dtype=engine.float64)
        base = memory.as_strided((3, 2), (6, 2), 1).copy_(x)
        base[1].mul_(x[0])
        return base * base, memory[3:9]

    x = engine.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=engine.float64, requires_grad=True)
    assert engine.autograd.gradcheck(write_and_look, x)
    assert engine.autograd.gradgradcheck(write_and_look, x)


def test_E42_shape_changes_in_place():
    x = engine.ones(2, 3, requires_grad=True)
    y = x * 1
    assert y.t_() is y
    assert y.shape == (3, 2)
    assert not y._is_view()
    y.mul_(engine.arange(6.0).reshape(3, 2))
    y.unsqueeze_(0).sum().backward()
    assert x.grad.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    x = engine.ones(2, 3, requires_grad=True)
    y = x * 1
    row = y[0]
    row.unsqueeze_(0)
    row.mul_(3)
    y.sum().backward()
    assert row.shape == (1, 3)
    assert x.grad.tolist() == [[3.0] * 3, [1.0] * 3]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.t_()
    with engine.no_grad():
        x.t_()
    assert x.shape == (3, 2)


def test_E42_a_shape_change_counts_as_a_write():
    _, y = non_leaf()
    y = y.view(2, 2) * 1
    z = (y * y).sum()
    y.t_()
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*t_"):
        z.backward()


def test_E42_across_dtypes():
    x = engine.ones(4, requires_grad=True)
    wide = engine.zeros(4, dtype=engine.float64)
    wide[1:3] = x[:2]
    wide.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert x.grad.dtype is engine.float32
    narrow, source = engine.zeros(2, 2), engine.ones(4, dtype=engine.float64, requires_grad=True)
    narrow.copy_(source.view(2, 2))
    (narrow * 3).sum().backward()
    assert source.grad.dtype is engine.float64
    assert source.grad.tolist() == [3.0] * 4


def test_E42_indexed_writes():
    x, base = non_leaf()
    base[engine.tensor([0, 2])] = x[:2] * 5
    base.masked_fill_(engine.tensor([False, True, False, False]), 7.0)
    base.sum().backward()
    assert x.grad.tolist() == [5.0, 5.0, 0.0, 1.0]
    x, base = non_leaf()
    base[:3].index_put_((engine.tensor([0, 0]),), x[2:] * 2, accumulate=True)
    base.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 3.0, 3.0]


@pytest.mark.parametrize("fill", ["zero_", "fill_", "uniform_", "normal_"])
def test_E42_constants_and_random_values_end_the_history(fill):
    x, base = non_leaf()
    view = base[:2]
    view.fill_(3.0) if fill == "fill_" else getattr(view, fill)()
    (base * base).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_E42_zeroing_does_not_turn_infinite_gradients_into_nan():
    x, base = non_leaf(2)
    base.zero_()
    base.backward(engine.tensor([float("inf"), 1.0]))
    assert x.grad.tolist() == [0.0, 0.0]


def test_E42_a_second_gradient_of_a_value_written_by_itself():
    x = engine.tensor([1.0, 2.0], dtype=engine.float64, requires_grad=True)

    def f(x):
        y = x * 1
        y.mul_(y)
        return y

    assert engine.autograd.gradcheck(f, x)
    assert engine.autograd.gradgradcheck(f, x)


# --- E42: what is refused ---------------------------------------------------------------------------------------------


def test_E42_a_leaf_and_a_view_of_a_leaf():
    x = engine.ones(4, requires_grad=True)
    with pytest.raises(
        RuntimeError, match="mul_: a leaf Variable that requires grad is being used in an in-place operation"
    ):
        x.mul_(2)
    with pytest.raises(RuntimeError, match="mul_: a view of a leaf Variable that requires grad"):
        x[:2].mul_(2)
    with pytest.raises(RuntimeError, match="copy_: a view of a leaf"):
        x[0] = 1.0
    with engine.no_grad():
        x.mul_(2)
        x[:2].mul_(2)
    assert x.tolist() == [4.0, 4.0, 2.0, 2.0]
    assert x._version == 2


@pytest.mark.parametrize("split", ["unbind", "split", "chunk"])
def test_E42_one_of_several_views_made_at_once(split):
    make = {"unbind": lambda t: t.unbind(), "split": lambda t: t.split(2), "chunk": lambda t: t.chunk(2)}[split]
    _, base = non_leaf()
    piece = make(base)[0]
    with pytest.raises(
        RuntimeError, match=r"Output 0 of .* is a view and is being modified inplace. .*returns multiple views"
    ):
        piece.mul_(2)
    inner = piece.view(1, -1)
    with pytest.raises(RuntimeError, match="returns multiple views"):
        inner.mul_(2)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="its base or another view of its base has been modified inplace"):
        _ = piece.grad_fn
    constant, w = engine.ones(4), leaf(1.0)
    with pytest.raises(RuntimeError, match="returns multiple views"):
        make(constant)[0].mul_(w)
    make(constant)[0].mul_(2)  # nothing to record: allowed
    with engine.no_grad():
        make(base)[0].mul_(2)


def test_E42_views_one_after_the_other_are_free():
    x, base = non_leaf()
    for piece in base.tensor_split(2):
        piece.mul_(2)
    base.sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def test_E42_a_view_made_in_no_grad():
    _, base = non_leaf()
    with engine.no_grad():
        view = base[:2]
    assert view.requires_grad  # as its base does
    assert view.is_leaf
    with pytest.raises(
        RuntimeError, match="A view was created in no_grad mode and is being modified inplace with grad mode enabled"
    ):
        view.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.view(2, 1).mul_(2)
    base.mul_(2)
    with pytest.raises(
        RuntimeError, match="its base or another view of its base has been modified inplace with grad mode enabled"
    ):
        _ = view.grad_fn


def test_E42_a_view_made_in_inference_mode():
    _, base = non_leaf()
    with engine.inference_mode():
        view = base[:2]
    assert not view.is_inference()
    with pytest.raises(
        RuntimeError, match="A view was created in inference mode and is being modified inplace in normal mode"
    ):
        view.mul_(2)


def test_E42_inference_tensors():
    with engine.inference_mode():
        t = engine.ones(3)
        view = t[:2]
        t.add_(1)
    assert t.is_inference()
    assert view.is_inference()
    assert t[:1].is_inference()
    assert not t.clone().is_inference()
    for write in (lambda: t.add_(1), lambda: t.copy_(engine.ones(3)), lambda: view.zero_()):
        with pytest.raises(
            RuntimeError, match="Inplace update to inference tensor outside InferenceMode is not allowed"
        ):
            write()
    with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor outside InferenceMode"):
        t.requires_grad_()
    w = leaf(1.0, 2.0, 3.0)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        _ = t * w
    (t + w).sum().backward()
    assert w.grad.tolist() == [1.0] * 3


def test_E42_expanded_memory():
    _, base = non_leaf()
    with pytest.raises(
        RuntimeError, match="more than one element of the written-to tensor refers to a single memory location"
    ):
        base.expand(3, 4).mul_(2)


def test_E42_out_is_never_recorded():
    x = leaf(1.0)
    with pytest.raises(
        RuntimeError, match=r"add\(\): functions with out=... arguments don't support automatic differentiation"
    ):
        engine.add(x, 1, out=engine.zeros(1))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        engine.add(engine.ones(1), 1, out=x)
    with engine.no_grad():
        assert engine.add(x, 1, out=engine.zeros(1)).item() == 2.0


def test_E42_saved_values_that_were_written_are_noticed():
    x = leaf(1.0, 2.0)
    y = x.exp()
    y.add_(1)
    with pytest.raises(
        RuntimeError,
        match=r"modified by an inplace operation: \[engine.float32 \[2\]\], which is output 0 of ExpBackward0, is at "
        r"version 1; "
        r"expected version 0 instead. The last in-place operation on it was add_",
    ):
        y.sum().backward()
    y = x * 1
    z = y * y
    y[0] = 5.0
    with pytest.raises(RuntimeError, match=r"saved as an input of MulBackward0.*is at version 1; expected version 0"):
        z.sum().backward()
    y = x + 1
    y.add_(1)  # add saved nothing
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_E42_a_saved_tensor_that_was_detached_in_place():
    x = leaf(2.0)
    y = x * 2
    z = y * y
    y.detach_()
    assert y.is_leaf
    with pytest.raises(RuntimeError, match="detached in-place"):
        engine.autograd.grad(z, x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't detach views in-place"):
        (x * 1)[:1].detach_()


# --- E50: version counters --------------------------------------------------------------------------------------------


def test_E50_every_write_counts_and_reads_do_not():
    x = engine.ones(4)
    assert x._version == 0
    _ = x + 1, x.clone(), x[:2], x.numpy()
    assert x._version == 0
    for number, write in enumerate(
        (
            lambda: x.add_(1),
            lambda: x.zero_(),
            lambda: x.copy_(engine.ones(4)),
            lambda: x.uniform_(),
            lambda: x.fill_(2),
        ),
        1,
    ):
        write()
        assert x._version == number
    x[0] = 3.0
    assert x._version == 6
    engine.add(x, 1, out=x)
    assert x._version == 7


def test_E50_views_and_detached_aliases_share_the_counter_and_data_does_not():
    x = engine.ones(4)
    view, detached, data = x[:2], x.detach(), x.data
    view.add_(1)
    detached.add_(1)
    assert x._version == view._version == detached._version == 2
    data.add_(1)
    assert (x._version, data._version) == (2, 1)
    assert np.shares_memory(x.numpy(), data.numpy())
    nested = view.view(1, 2)
    nested.zero_()
    assert x._version == 3


def test_E50_detach_is_noticed_and_data_is_not():
    x = leaf(1.0)
    y = x * x
    x.data.add_(1)
    y.backward()
    assert x.grad.item() == 4.0
    y = x * x
    x.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_E50_increment_version_for_writes_the_engine_does_not_see():
    x = leaf(1.0)
    y = x * x
    x.detach().numpy()[0] = 5.0
    engine.autograd.graph.increment_version(x)
    with pytest.raises(RuntimeError, match="last in-place operation on it was increment_version"):
        y.backward()
    engine.autograd.graph.increment_version([x, x])
    assert x._version == 3


def test_E50_accumulation_counts_on_the_grad_and_not_on_the_leaf():
    x = leaf(1.0)
    for expected in (0, 1, 2):
        (x * 2).backward()
        assert x.grad._version == expected
    assert x._version == 0


# --- E51: flags -------------------------------------------------------------------------------------------------------


def test_E51_requires_grad_changes_on_leaves_only():
    x = engine.ones(2)
    assert x.requires_grad_() is x
    x.requires_grad = False
    assert not x.requires_grad
    y = x.requires_grad_() * 1
    assert y.requires_grad_() is y
    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
        y.requires_grad = False


@pytest.mark.parametrize("dtype", [engine.int64, engine.bool, engine.uint8], ids=str)
def test_E51_only_floating_and_complex_tensors_can_require_grad(dtype):
    with pytest.raises(RuntimeError, match="floating point"):
        engine.ones(2, dtype=dtype).requires_grad_()
    engine.ones(2, dtype=engine.complex64).requires_grad_()


def test_E51_a_view_requires_grad_as_its_base_does():
    x = engine.ones(4)
    view = x[:2]
    x.requires_grad_()
    assert view.requires_grad
    assert view.is_leaf
    other = engine.ones(4)
    own = other[:2].requires_grad_()
    assert not other.requires_grad
    with engine.no_grad():
        own.mul_(2)
    (own * own).sum().backward()
    assert own.grad.tolist() == [4.0, 4.0]


def test_E51_data_can_be_swapped():
    x = leaf(1.0, 2.0)
    x.data = engine.zeros(3)
    assert x.shape == (3,)
    assert x.requires_grad
    assert x.is_leaf
    with pytest.raises(TypeError, match="expected a Tensor"):
        x.data = 3


def test_no_grad_inside_an_operation_that_requires_grad_by_another_operand():
    x, w = engine.ones(2), leaf(2.0, 3.0)
    x.mul_(w)
    assert x.requires_grad
    x.sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "geometry", [((3, 2), (1, 1), 0), ((2, 2), (3, 1), 1), ((4,), (0,), 2), ((2,), (2,), 0)], ids=str
)
def test_as_strided_has_derivatives_of_any_order(geometry):
    size, stride, offset = geometry

    def f(x):
        return (x * 1).as_strided(size, stride, offset) ** 3

    x = (engine.arange(6, dtype=engine.float64) + 1).requires_grad_()
    assert engine.autograd.gradcheck(f, x)
    assert engine.autograd.gradgradcheck(f, x)
    (first,) = engine.autograd.grad(f(x).sum(), x, create_graph=True)
    (second,) = engine.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = engine.autograd.grad(second.sum(), x)
    counts = engine.zeros(6, dtype=engine.float64)
    for index in np.ndindex(size):
        counts[offset + sum(i * step for i, step in zip(index, stride, strict=True))] += 6
    assert third.tolist() == counts.tolist()


def test_as_strided_beyond_its_input_has_no_gradient_there():
    """As in PyTorch: what lies in the storage, but not in the input, is no part of the function."""
    x = engine.arange(6.0).requires_grad_()
    part = (x * 1)[2:]
    for offset, expected in ((0, [0.0] * 6), (1, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0])):
        (g,) = engine.autograd.grad(part.as_strided((2,), (1,), offset).sum(), x, retain_graph=True)
        assert g.tolist() == expected


PICKED = {
    "topk": lambda x: x.topk(2, -1)[0],
    "sort": lambda x: x.sort(-1)[0],
    "max": lambda x: x.max(-1)[0],
    "min": lambda x: x.min(-1)[0],
    "kthvalue": lambda x: x.kthvalue(2)[0],
    "median": lambda x: x.median(-1)[0],
    "mode": lambda x: x.mode(-1)[0],
    "cummax": lambda x: x.cummax(-1)[0],
    "cummin": lambda x: x.cummin(-1)[0],
    "max_pool": lambda x: engine.nn.functional.max_pool2d(x[None], 2, return_indices=True)[0],
    "adaptive_max_pool": lambda x: engine.nn.functional.adaptive_max_pool2d(x[None], 2),
    "quotient": lambda x: 2 / x,
    "normalize": lambda x: engine.nn.functional.normalize(x),
}


@pytest.mark.parametrize("pick", PICKED.values(), ids=PICKED)
def test_results_that_derivatives_do_not_need_may_be_written(pick):
    """Routers of experts divide what topk gives them by its sum, in place. As in PyTorch: indices are saved alone."""
    x = engine.rand(4, 6) + 0.5
    slopes = []
    for double in (lambda y: y.mul_(2.0), lambda y: y * 2.0):
        leaf = x.clone().requires_grad_()
        double(pick(leaf)).sum().backward()
        slopes.append(leaf.grad.tolist())
    assert slopes[0] == slopes[1]


def test_a_quotient_in_place_keeps_what_its_derivative_needs():
    x, y = engine.tensor([6.0], requires_grad=True), engine.tensor([2.0], requires_grad=True)
    z = x * 1
    z /= y
    z *= 5
    z.backward()
    assert (x.grad.item(), y.grad.item()) == (2.5, -7.5)


def test_data_of_a_dtype_without_gradients_is_refused_where_one_is_required():
    x = engine.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"must be floating point or complex dtype, got engine\.int64"):
        x.data = engine.ones(2, dtype=engine.int64)
    x.requires_grad_(False).data = engine.ones(2, dtype=engine.int64)
    assert x.dtype is engine.int64


def test_another_size_counts_as_a_write():
    x = engine.ones(1)
    x.resize_((1, 2))
    assert x._version == 1
    x.resize_as_(engine.ones(3))
    assert x._version == 2
    x.resize_(3)
    assert x._version == 2
    a = engine.ones(2, requires_grad=True)
    b = engine.ones(2)
    product = a * b
    b.resize_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_pieces_made_to_be_written():
    for pieces in ("unsafe_split", "unsafe_chunk"):
        x, a = non_leaf()
        first, _ = getattr(a, pieces)(2)
        first.mul_(3)
        a.sum().backward()
        assert x.grad.tolist() == [3.0, 3.0, 1.0, 1.0]


def test_the_memory_of_another_tensor():
    source = engine.arange(6.0).reshape(2, 3)
    x = engine.zeros(1)
    assert x.set_(source) is x
    assert x.data_ptr() == source.data_ptr()
    assert (x.shape, x.stride()) == ((2, 3), (3, 1))
    x.set_(source, 1, (2, 2), (3, 1))
    assert x.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert x._version == 2
    assert x.set_().shape == (0,)
    with pytest.raises(RuntimeError, match=r"expected a source of engine\.float32 on cpu, got engine\.int64"):
        x.set_(engine.ones(2, dtype=engine.int64))
    with pytest.raises(RuntimeError, match="is a view"):
        source[0].set_(engine.ones(2))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        engine.ones(2, requires_grad=True).set_(engine.ones(2))


def test_strides_in_place():
    x, a = non_leaf(6)
    assert a.as_strided_((2, 2), (3, 1), 1) is a
    (a * engine.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 2.0, 0.0, 3.0, 4.0]


def test_a_gradient_can_be_deleted():
    x = engine.ones(2, requires_grad=True)
    x.sum().backward()
    del x.grad
    assert x.grad is None
