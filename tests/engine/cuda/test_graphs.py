"""CUDA graphs: recorded once, replayed on the same memory; callables whose forward and backward are graphs."""

import gc

import pytest

import engine
import engine.nn as nn
from engine.memory import blocks
from tests import cuda_device


def record(function):
    recorded = engine.cuda.CUDAGraph()
    with engine.cuda.graph(recorded):
        result = function()
    return recorded, result


def test_a_replay_reads_what_is_in_memory_then(cuda):
    x, w = engine.zeros(4, device=cuda), engine.full((4,), 2.0, device=cuda)
    recorded, y = record(lambda: x * w + 1)
    x.copy_(engine.arange(4.0, device=cuda))
    recorded.replay()
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]
    x += 1
    recorded.replay()
    assert y.tolist() == [3.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("kind", [engine.float32, engine.float64])
@pytest.mark.parametrize("layer", ["lstm", "gru", "attention", "conv"])
def test_layers_that_multiply_matrices_are_recorded(layer, kind, cuda):
    """CuPy's own products refuse a stream that is captured."""
    x = engine.randn(4, 2, 8, device=cuda, dtype=kind, requires_grad=True)
    module = {"lstm": nn.LSTM, "gru": nn.GRU}.get(layer, lambda *_: nn.Conv1d(2, 3, 3))(8, 4).to(cuda).to(kind)

    def step():
        if layer == "attention":
            y = nn.functional.scaled_dot_product_attention(x, x, x)
        else:
            y = module(x)[0] if layer in ("lstm", "gru") else module(x)
        return engine.autograd.grad((y * y).sum(), [x, *(module.parameters() if layer != "attention" else ())])

    step()
    recorded, found = record(step)
    with engine.no_grad():
        x.add_(1)
    recorded.replay()
    for gradient, expected in zip(found, step(), strict=True):
        assert engine.equal(gradient, expected)


def test_nothing_runs_while_it_is_recorded(cuda):
    x = engine.zeros(4, device=cuda)
    recorded, _ = record(lambda: x.add_(1))
    assert x.tolist() == [0.0] * 4
    for _ in range(3):
        recorded.replay()
    assert x.tolist() == [3.0] * 4


def test_memory_of_a_graph_is_given_to_nobody(cuda):
    x = engine.ones(4, device=cuda)

    def work():
        for _ in range(3):
            y = x * 2  # freed again while the graph is recorded
        return y + 1

    recorded, y = record(work)
    gc.collect()
    others = [engine.zeros(4, device=cuda) for _ in range(20)]
    with engine.cuda.stream(engine.cuda.graphs.capture_stream()):
        others += [engine.zeros(4, device=cuda) for _ in range(20)]
    engine.cuda.current_stream().wait_stream(engine.cuda.graphs.capture_stream())
    recorded.replay()
    assert all(other.tolist() == [0.0] * 4 for other in others)
    assert y.tolist() == [3.0] * 4


def test_graphs_may_share_memory(cuda):
    x = engine.ones(4, device=cuda)
    first, y = record(lambda: x * 2)
    second = engine.cuda.CUDAGraph()
    with engine.cuda.graph(second, pool=first.pool()):
        z = y * 3
    first.replay()
    second.replay()
    assert z.tolist() == [6.0] * 4
    assert second.pool() is first.pool()
    handle = engine.cuda.graph_pool_handle()
    third = engine.cuda.CUDAGraph()
    with engine.cuda.graph(third, pool=handle):
        x + 1
    assert third.pool() is handle


def test_other_streams_are_drawn_into_the_recording(cuda):
    x = engine.ones(4, device=cuda)
    side = engine.cuda.Stream()

    def work():
        main = engine.cuda.current_stream()
        side.wait_stream(main)
        with engine.cuda.stream(side):
            y = x * 2
        main.wait_stream(side)
        y.record_stream(main)
        return y + 1

    recorded, y = record(work)
    recorded.replay()
    assert y.tolist() == [3.0] * 4


def test_random_numbers_go_on_from_replay_to_replay(cuda):
    engine.cuda.manual_seed(0)
    expected = [engine.rand(3, device=cuda).tolist() for _ in range(4)]
    engine.cuda.manual_seed(0)
    assert engine.rand(3, device=cuda).tolist() == expected[0]
    recorded, y = record(lambda: engine.rand(3, device=cuda))
    found = []
    for _ in range(2):
        recorded.replay()
        found.append(y.tolist())
    assert found == expected[1:3]
    assert engine.rand(3, device=cuda).tolist() == expected[3]


def test_backward_in_a_graph(cuda):
    w = engine.ones(3, device=cuda, requires_grad=True)
    x = engine.ones(3, device=cuda)
    (x * w).square().sum().backward()
    w.grad = None

    def step():
        (x * w).square().sum().backward()

    recorded, _ = record(step)
    for scale in (1.0, 2.0):
        x.fill_(scale)
        recorded.replay()
        assert w.grad.tolist() == [2 * scale * scale] * 3


def test_replaying_waits_for_nothing(on_driver):
    x = engine.ones(4, device=on_driver)
    recorded, _ = record(lambda: engine.rand(4, device=on_driver) + x)
    with cuda_device.counters() as count:
        recorded.replay()
    assert (count.synchronizations, count.graph_launches) == (0, 1)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(cuda):
    recorded = engine.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="replay\\(\\) of a graph that has not been recorded"):
        recorded.replay()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        recorded.capture_begin()
    with pytest.raises(RuntimeError, match="capture_end\\(\\) without capture_begin\\(\\)"):
        recorded.capture_end()
    with pytest.raises(RuntimeError, match="pool\\(\\) of a graph"):
        recorded.pool()
    with pytest.raises(ValueError, match="expected capture_error_mode 'relaxed', got 'global'"):
        recorded.capture_begin(capture_error_mode="global")
    with (
        pytest.raises(TypeError, match="expected a pool handle or None as pool, got int"),
        engine.cuda.graph(recorded, pool=3),
    ):
        pass
    with engine.cuda.graph(recorded):
        engine.ones(2, device=cuda)
    with pytest.raises(RuntimeError, match="has been recorded"), engine.cuda.graph(recorded):
        pass
    recorded.reset()
    with engine.cuda.graph(recorded):
        y = engine.ones(2, device=cuda)
    recorded.replay()
    assert y.tolist() == [1.0, 1.0]


def test_reading_a_value_invalidates_the_recording(cuda):
    recorded = engine.cuda.CUDAGraph()
    x = engine.ones(2, device=cuda)
    with pytest.raises(Exception, match=r"[Cc]aptur|waits for the GPU"), engine.cuda.graph(recorded):
        (x * 2).tolist()
    assert not engine.cuda.is_current_stream_capturing()
    assert not blocks.capturing
    assert (x + 1).tolist() == [2.0, 2.0]


def test_an_exception_inside_ends_the_recording(cuda):
    recorded = engine.cuda.CUDAGraph()
    seen = []

    def fail():
        seen.append(engine.cuda.is_current_stream_capturing())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), engine.cuda.graph(recorded):
        fail()
    assert seen == [True]
    assert not engine.cuda.is_current_stream_capturing()
    with engine.cuda.graph(recorded):
        y = engine.ones(2, device=cuda)
    recorded.replay()
    assert y.tolist() == [1.0, 1.0]


def test_debug_dump_writes_a_graph(cuda, tmp_path):
    recorded, _ = record(lambda: engine.ones(2, device=cuda))
    recorded.debug_dump(str(tmp_path / "graph.dot"))
    assert "digraph" in (tmp_path / "graph.dot").read_text()


# --- callables --------------------------------------------------------------------------------------------------------


def test_a_graphed_module_gives_the_same_numbers(cuda):
    engine.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(cuda)
    inputs = [engine.randn(3, 4, device=cuda) for _ in range(3)]
    expected = []
    for x in inputs:
        module.zero_grad()
        y = module(x)
        y.square().sum().backward()
        expected.append((y.tolist(), [parameter.grad.tolist() for parameter in module.parameters()]))
    module.zero_grad()
    graphed = engine.cuda.make_graphed_callables(module, (inputs[0].clone(),))
    assert graphed is module
    for x, (y, gradients) in zip(inputs, expected, strict=True):
        module.zero_grad()
        found = module(x)
        found.square().sum().backward()
        assert found.tolist() == y
        assert [parameter.grad.tolist() for parameter in module.parameters()] == gradients
    module.eval()
    assert module(engine.zeros(7, 4, device=cuda)).shape == (7, 2)  # eager in the other mode


def test_graphed_functions_in_a_row(cuda):
    def double(x):
        return x * 2

    def square(x):
        return x * x

    sample = engine.ones(3, device=cuda, requires_grad=True)
    first, second = engine.cuda.make_graphed_callables(
        (double, square), ((sample,), (sample.detach().requires_grad_(),))
    )
    x = engine.tensor([1.0, 2.0, 3.0], device=cuda, requires_grad=True)
    y = second(first(x))
    y.sum().backward()
    assert y.tolist() == [4.0, 16.0, 36.0]
    assert x.grad.tolist() == [8.0, 16.0, 24.0]


def test_a_graphed_callable_replays_instead_of_launching(on_driver):
    module = nn.Linear(4, 4).to(on_driver)
    x = engine.randn(2, 4, device=on_driver)
    engine.cuda.make_graphed_callables(module, (x.clone(),))
    module(x).sum().backward()
    with cuda_device.counters() as count:
        module(x)
    assert count.graph_launches == 1
    assert count.synchronizations == 0


def test_what_cannot_be_graphed_is_refused(cuda):
    with pytest.raises(TypeError, match="expected tensors as sample_args"):
        engine.cuda.make_graphed_callables(lambda x: x, (3,))
    module = nn.Linear(2, 2).to(cuda)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="the module has hooks"):
        engine.cuda.make_graphed_callables(module, (engine.ones(1, 2, device=cuda),))
