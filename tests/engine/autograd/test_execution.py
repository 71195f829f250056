"""How a backward runs: order, callbacks, runs inside runs, anomaly mode, long and deep graphs. Rows E34-E36, E38, E41,
E48, E49, E60.
"""

import contextlib
import gc
import inspect
import sys
import threading
import warnings
import weakref

import pytest

import engine
from engine import nn
from engine.autograd import Function, Variable
from engine.autograd.task import GraphTask, current_node, current_task, current_task_id
from tests.engine.autograd.leaves import leaf


def function(backward):
    forward = staticmethod(lambda ctx, x: x * 1)
    return type("Mine", (Function,), {"forward": forward, "backward": staticmethod(backward)})


queue_callback = Variable._execution_engine.queue_callback


def test_E34_callbacks_run_at_the_end_and_may_add_callbacks():
    log = []

    def first():
        log.append(("first", x.grad.item()))
        queue_callback(lambda: log.append("second"))

    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: queue_callback(first))
    y.register_hook(lambda g: log.append("hook"))
    y.backward()
    assert log == ["hook", ("first", 2.0), "second"]
    with pytest.raises(RuntimeError, match="Final callbacks can only be installed during backward pass"):
        queue_callback(first)


def test_E34_an_error_in_a_callback_is_the_error_of_backward():
    def fail():
        raise KeyError("in the callback")

    x = leaf(1.0)
    y = x * 2
    handle = y.register_hook(lambda g: queue_callback(fail))
    with pytest.raises(KeyError, match="in the callback"):
        y.backward(retain_graph=True)
    assert x.grad.item() == 2.0
    handle.remove()
    y.backward()
    assert x.grad.item() == 4.0


def test_E34_callbacks_run_in_the_grad_mode_of_the_backward():
    modes = []
    x = leaf(1.0)
    x.register_hook(lambda g: queue_callback(lambda: modes.append(engine.is_grad_enabled())))
    engine.autograd.grad(x * x, x)
    engine.autograd.grad(x * x, x, create_graph=True)
    assert modes == [False, True]
    assert engine.is_grad_enabled()


@pytest.mark.parametrize("queued_by", ["outer", "inner", "both"])
def test_E35_callbacks_belong_to_the_backward_that_queued_them(queued_by):
    log = []

    def backward(ctx, g):
        if queued_by != "inner":
            queue_callback(lambda: log.append("outer callback"))
        with engine.enable_grad():
            inner = leaf(1.0)
            y = inner * 2
            if queued_by != "outer":
                y.register_hook(lambda g: queue_callback(lambda: log.append("inner callback")))
            y.backward()
        log.append("inner returned")
        return g

    x = leaf(1.0)
    x.register_hook(lambda g: log.append("leaf"))
    function(backward).apply(x).backward()
    expected = ["inner callback"] if queued_by != "outer" else []
    expected += ["inner returned", "leaf"]
    assert log == expected + (["outer callback"] if queued_by != "inner" else [])


def test_E36_every_backward_has_an_id_of_its_own():
    ids = []
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: ids.append(current_task_id()))
    y.register_hook(lambda g: ids.append(current_task_id()))
    y.backward(retain_graph=True)
    y.backward()
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert current_task_id() == -1
    with pytest.raises(RuntimeError, match="during a backward pass only"):
        current_task()


def predicted_order(task):
    """The nodes in the order in which a run takes them: of those that wait for nothing, the one recorded last."""
    again = GraphTask(task.roots, True, False)
    again.count_dependencies(0)
    waits, order = again.dependencies, []
    ready = [node for node in task.roots if node not in waits]
    while ready:
        node = max(ready, key=lambda each: each.sequence)
        ready.remove(node)
        if task.needed is None or node in task.needed:
            order.append(node)
        for edge in node.next_edges:
            if edge is not None:
                waits[edge[0]] -= 1
                if not waits[edge[0]]:
                    ready.append(edge[0])
    return order


def test_E36_the_predicted_order_is_the_order():
    predicted, ran = [], []
    a, b = leaf(1.0), leaf(2.0)
    c = a * b
    d = c.exp()
    e = (c * d + a).sum()
    nodes = {tensor.gradient_edge()[0] for tensor in (a, b, c, d, e)} | {e.grad_fn.next_functions[0][0]}
    for node in list(nodes):
        nodes |= {following for following, _ in node.next_functions if following is not None}
    for node in nodes:
        node.register_prehook(lambda gs, node=node: ran.append(node))
    e.grad_fn.register_prehook(lambda gs: predicted.extend(predicted_order(current_task())))
    e.backward(retain_graph=True)
    assert predicted == ran
    predicted.clear(), ran.clear()
    e.backward(inputs=[b])
    assert predicted == ran


def test_E38_nan_is_found_and_the_forward_line_named():
    x = leaf(0.0, 1.0)
    with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"):
        anomaly = engine.autograd.detect_anomaly()
    with anomaly:
        y = (x * 0).sqrt()  # this line
        line = inspect.currentframe().f_lineno - 1
        z = (y * 0).sum()
        with pytest.raises(
            RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output"
        ) as caught:
            z.backward()
    notes = "\n".join(caught.value.__notes__)
    assert "Error detected in SqrtBackward0" in notes
    assert f'test_execution.py", line {line}' in notes
    assert "# this line" in notes


def test_E38_the_nan_check_can_be_left_out():
    x = leaf(0.0)
    with engine.autograd.set_detect_anomaly(True, check_nan=False):
        (((x * 0).sqrt()) * 0).sum().backward()
    assert x.grad.isnan().item()
    assert not engine.autograd.is_anomaly_enabled()


def test_E38_without_a_forward_stack_the_error_says_how_to_get_one():
    x = leaf(0.0)
    y = ((x * 0).sqrt() * 0).sum()
    with pytest.raises(RuntimeError, match="nan values") as caught, engine.autograd.set_detect_anomaly(True):
        y.backward()
    assert any("No forward pass information available" in note for note in caught.value.__notes__)


def test_E38_in_double_backward_the_parent_is_named_too():
    with engine.autograd.set_detect_anomaly(True):
        x = leaf(1.0)
        y = x**3  # forward
        (g,) = engine.autograd.grad(y, x, create_graph=True)

        def fail(gs):
            raise ValueError("in double backward")

        g.grad_fn.register_prehook(fail)
        with pytest.raises(ValueError, match="in double backward") as caught:
            g.backward()
    notes = "\n".join(caught.value.__notes__)
    assert "Previous calculation was induced by PowBackward0" in notes
    assert "# forward" in notes


def test_E38_parents_are_freed():
    class Something:
        pass

    gc.collect()
    gc.disable()
    try:
        with engine.autograd.set_detect_anomaly(True):
            x = leaf(1.0)
            y = x**3
            y.grad_fn.metadata["here"] = Something()
            dead = weakref.ref(y.grad_fn.metadata["here"])
            (g,) = engine.autograd.grad(y, x, create_graph=True)
            del x, y
            assert dead() is not None
            del g
            assert dead() is None
    finally:
        gc.enable()


def test_an_error_in_a_node_or_hook_leaves_the_engine_usable():
    def fail(*_):
        raise ValueError("on purpose")

    x = leaf(2.0)
    for place in ("function", "tensor hook", "pre-hook", "post-hook", "post-accumulate"):
        x.grad = None
        y = x * x
        z = function(fail).apply(y) if place == "function" else y * 1
        handles = {
            "function": lambda: None,
            "tensor hook": lambda: y.register_hook(fail),  # noqa: B023
            "pre-hook": lambda: y.grad_fn.register_prehook(fail),  # noqa: B023
            "post-hook": lambda: y.grad_fn.register_hook(fail),  # noqa: B023
            "post-accumulate": lambda: x.register_post_accumulate_grad_hook(fail),
        }
        handle = handles[place]()
        with pytest.raises(ValueError, match="on purpose") as caught:
            z.backward()
        node = {"function": "MineBackward", "post-accumulate": "AccumulateGrad"}.get(place, "MulBackward0")
        assert caught.value.__notes__[0] == f"Error detected in {node} during backward."
        assert current_node() is None
        assert current_task_id() == -1
        assert engine.is_grad_enabled()
        if handle is not None:
            handle.remove()
        x.grad = None
        (x * x).backward()
        assert x.grad.item() == 4.0


def test_what_was_accumulated_before_an_error_stays():
    def fail(ctx, g):
        raise ValueError("on purpose")

    early, late = leaf(1.0), leaf(2.0)
    first = function(fail).apply(late)
    y = first + early * 3  # recorded later, so it runs earlier
    with pytest.raises(ValueError, match="on purpose"):
        y.backward()
    assert early.grad.item() == 3.0
    assert late.grad is None


def test_E41_full_backward_hooks_with_create_graph_leave_nothing_behind():
    class Noop(nn.Module):
        def forward(self, x):
            return x.clone()

    def run():
        module = Noop()
        module.register_full_backward_hook(lambda *_: None)
        x = leaf(1.0, 2.0)
        y = module(x)
        (g,) = engine.autograd.grad(y.sum(), x, create_graph=True)
        dead.append(weakref.ref(x))
        dead.append(weakref.ref(module))
        return g

    dead = []
    run()
    gc.collect()
    assert [reference() for reference in dead] == [None, None]


@pytest.mark.full
@pytest.mark.parametrize("with_inputs", [False, True])
def test_E48_a_chain_of_100_000_nodes(with_inputs):
    depth = 100_000
    x = leaf(1.0)
    y = x
    for _ in range(depth):
        y = y * 1
    assert y.grad_fn.topological == depth
    y.backward(retain_graph=True, inputs=[x] if with_inputs else None)
    assert x.grad.item() == 1.0
    last = weakref.ref(y.grad_fn)
    del y
    assert last() is None


@pytest.mark.full
def test_E48_a_deep_graph_of_functions_and_views_is_freed():
    mine = function(lambda ctx, g: g)
    x = leaf(1.0, 2.0)
    y = x
    for _ in range(20_000):
        y = mine.apply(y).view(2).clone()
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    del y


def test_E49_backward_inside_backward_to_any_depth():
    depth = 2_000

    class Deep(Function):
        @staticmethod
        def forward(ctx, x, level):
            ctx.level = level
            return x * 1

        @staticmethod
        def backward(ctx, g):
            reached.append(ctx.level)
            if ctx.level:
                with engine.enable_grad():
                    inner = leaf(1.0)
                    Deep.apply(inner, ctx.level - 1).backward()
                    assert inner.grad.item() == 1.0
            return g, None

    reached = []
    x = leaf(1.0)
    limit = sys.getrecursionlimit()
    Deep.apply(x, depth).backward()
    assert reached == list(range(depth, -1, -1))
    assert x.grad.item() == 1.0
    assert sys.getrecursionlimit() == limit
    assert not [thread for thread in threading.enumerate() if thread.name == "engine-reentrant-backward"]


def test_E49_an_error_deep_inside_comes_out():
    class Deep(Function):
        @staticmethod
        def forward(ctx, x, level):
            ctx.level = level
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if not ctx.level:
                raise ValueError("at the bottom")
            with engine.enable_grad():
                Deep.apply(leaf(1.0), ctx.level - 1).backward()
            return g, None

    with pytest.raises(ValueError, match="at the bottom"):
        Deep.apply(leaf(1.0), 200).backward()
    assert current_task_id() == -1


def test_E49_a_backward_inside_runs_to_its_end_before_the_outer_goes_on():
    log = []

    def inner(ctx, g):
        with engine.enable_grad():
            a = leaf(1.0)
            b = a * 2
            b.register_hook(lambda g: log.append("inner"))
            b.backward()
        return g

    x = leaf(1.0)
    first = x * 2
    first.register_hook(lambda g: log.append("earlier outer node"))
    second = function(inner).apply(x)
    (first + second).backward()
    assert log == ["inner", "earlier outer node"]


def test_E49_backward_of_the_same_graph_from_a_hook():
    x = leaf(3.0)
    y = x * x
    calls = []

    def again(g):
        if not calls:
            calls.append(1)
            y.backward(retain_graph=True)

    y.register_hook(again)
    y.backward()
    assert x.grad.item() == 12.0


def test_E60_later_operations_first_and_leaves_at_once():
    log = []
    x, w1, w2 = leaf(1.0), leaf(1.0), leaf(1.0)
    a = x * w1
    b = x * w2
    c = a.exp()
    d = c + b
    for name, tensor in (("a", a), ("b", b), ("c", c), ("d", d), ("w1", w1), ("w2", w2)):
        tensor.register_hook(lambda g, name=name: log.append(name))
    w2.register_post_accumulate_grad_hook(lambda p: log.append("w2 accumulated"))
    d.backward()
    assert log == ["d", "c", "b", "w2", "w2 accumulated", "a", "w1"]


def test_modes_inside_backward():
    modes = []
    mine = function(lambda ctx, g: (modes.append(engine.is_grad_enabled()), g)[1])
    x = leaf(1.0)
    with engine.no_grad():
        pass
    mine.apply(x).backward()
    engine.autograd.grad(mine.apply(x), x, create_graph=True)
    assert modes == [False, True]


def test_variable_is_a_name_for_tensor():
    x = Variable(engine.ones(2), requires_grad=True)
    assert isinstance(x, engine.Tensor)
    assert isinstance(x, Variable)
    assert x.requires_grad
    with pytest.raises(TypeError, match="has to be a tensor"):
        Variable([1.0])


def test_detect_anomaly_restores_what_it_found():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anomaly = engine.autograd.detect_anomaly()
    with contextlib.suppress(ValueError), anomaly:
        assert engine.autograd.is_anomaly_enabled()
        raise ValueError("inside")
    assert not engine.autograd.is_anomaly_enabled()
    engine.autograd.set_detect_anomaly(True)
    assert engine.autograd.is_anomaly_enabled()
    engine.autograd.set_detect_anomaly(False)
    assert not engine.autograd.is_anomaly_enabled()
