"""Permissions for reduced precision in matrix products on a GPU."""

from engine.cuda import is_available as is_built
from engine.rules.precision import matmul

__all__ = ["is_built", "matmul"]
