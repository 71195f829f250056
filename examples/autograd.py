"""What the autograd engine can be asked for, a function each: gradients, higher orders, own operators, hooks, memory.

    python examples/autograd.py

Names and arguments are PyTorch's, but for the last three functions, which show what is found here only.
"""

import engine
import engine.nn.functional as F
from engine import nn
from engine.autograd import Function, functional, grad, gradcheck, gradgradcheck
from engine.autograd.graph import save_on_cpu
from engine.optim import SGD
from engine.utils.checkpoint import checkpoint


def backward_and_grad() -> None:
    """backward() adds to .grad; autograd.grad returns the gradients and stores nothing."""
    x = engine.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x**2).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    (slope,) = grad((x**3).sum(), x)
    assert slope.tolist() == [3.0, 12.0, 27.0]
    with engine.no_grad():
        x -= 0.1 * x.grad  # not recorded
    x.grad = None


def higher_orders() -> None:
    """create_graph records the backward pass, too; `functional` makes whole matrices of derivatives."""
    x = engine.tensor(2.0, requires_grad=True)
    (first,) = grad(x**4, x, create_graph=True)
    (second,) = grad(first, x)
    assert (first.item(), second.item()) == (32.0, 48.0)
    point = engine.tensor([1.0, 2.0])
    assert functional.jacobian(lambda t: t * t.sum(), point).tolist() == [[4.0, 1.0], [2.0, 5.0]]
    assert functional.hessian(lambda t: (t**2).prod(), point).tolist() == [[8.0, 8.0], [8.0, 2.0]]


class Cube(Function):
    """An operator with a derivative of one's own; written with operators, the derivative has one, too."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


def own_operator() -> None:
    """gradcheck compares the derivative with differences, gradgradcheck the derivative's derivative."""
    x = engine.randn(3, dtype=engine.float64, requires_grad=True)
    assert gradcheck(Cube.apply, (x,))
    assert gradgradcheck(Cube.apply, (x,))


def hooks() -> None:
    """Look at gradients, or change them, on their way: on a tensor, on a module, when a leaf has its own."""
    seen = []
    x = engine.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: gradient * 10)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    y.sum().backward()
    assert seen == [[30.0, 30.0]]

    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    layer(engine.ones(5, 2))
    assert seen[-1] == (5, 2)


def less_memory() -> None:
    """A checkpoint computes its inside again in backward instead of keeping it; save_on_cpu keeps it elsewhere."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = engine.randn(4, 8)
    layer(x).sum().backward()
    kept = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert all((p.grad == other).all() for p, other in zip(layer.parameters(), kept, strict=True))
    layer.zero_grad()
    with save_on_cpu():
        loss = layer(x).sum()
    loss.backward()
    assert all((p.grad == other).all() for p, other in zip(layer.parameters(), kept, strict=True))


def layout_contract() -> None:
    """A gradient has the strides of its parameter, whatever order backward computed it in."""
    weight = nn.Parameter(engine.randn(8, 4, 3, 3).to(memory_format=engine.channels_last))
    (weight.permute(3, 2, 1, 0) ** 2).sum().backward()
    assert weight.grad.stride() == weight.stride() == (36, 1, 12, 4)


def trace_of_a_step() -> None:
    """Every call with shapes, strides and time; `save_chrome` writes it for Perfetto or chrome://tracing."""
    layer = nn.Linear(8, 4)
    with engine.trace() as trace:
        layer(engine.randn(2, 8)).sum().backward()
    assert [call.operator for call in trace.calls][-2:] == ["SumBackward0", "AddmmBackward0"]


def captured_step() -> None:
    """A step whose shapes repeat is recorded and then replayed, with the same bits; it says so where it cannot be."""
    model = nn.Linear(8, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    @engine.compile
    def step(x: engine.Tensor, y: engine.Tensor) -> engine.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = engine.randn(16, 8), engine.randn(16, 1)
    losses = [step(x, y).item() for _ in range(10)]
    assert losses == sorted(losses, reverse=True)


def main() -> None:
    engine.manual_seed(0)
    for example in (
        backward_and_grad,
        higher_orders,
        own_operator,
        hooks,
        less_memory,
        layout_contract,
        trace_of_a_step,
        captured_step,
    ):
        example()
        print(f"{example.__name__}: {example.__doc__}")


if __name__ == "__main__":
    main()
