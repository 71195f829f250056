"""An operator of one's own: a kernel in NumPy, its derivative, and a dtype under autocast; captured and traced like any
other.

    python examples/custom_operator.py
"""

from typing import Any

import numpy as np

import engine
from engine import Tensor


@engine.library.custom_op("mine::softclip")
def softclip(x: Tensor, limit: float = 2.0) -> Tensor:
    """limit * tanh(x / limit): the identity near 0, never beyond the limit."""
    return engine.from_numpy((np.tanh(x.numpy() / limit) * limit).astype(x.numpy().dtype))


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.limit = inputs[1]
    ctx.save_for_backward(output)


def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
    (out,) = ctx.saved_tensors
    return g * (1 - (out / ctx.limit) ** 2), None  # nothing for the limit, which is no tensor


softclip.register_autograd(backward, setup_context=setup_context)
softclip.register_autocast("cpu", engine.float32)


def main() -> None:
    engine.manual_seed(0)
    x = engine.randn(8, 4)
    weight = engine.randn(4, 4, requires_grad=True)
    optimizer = engine.optim.SGD([weight], lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (softclip(x @ weight) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert engine.autograd.gradcheck(softclip, (engine.randn(3, dtype=engine.float64, requires_grad=True),))
    with engine.trace() as calls:
        step(x)
    print(calls.listing())
    compiled = engine.compile(step, fullgraph=True)  # records two steps, then replays them
    losses = [compiled(x).item() for _ in range(100)]
    print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f}")
    assert losses[-1] < 0.5 * losses[0]


if __name__ == "__main__":
    main()
