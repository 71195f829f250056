"""Leaves of graphs."""

import engine


def leaf(*values: float) -> engine.Tensor:
    """A vector that requires a gradient."""
    return engine.tensor(values, requires_grad=True)
