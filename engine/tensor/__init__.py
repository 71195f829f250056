"""Tensor: memory with a layout, and its place in the graph."""

from engine.tensor.meta import AutogradMeta as AutogradMeta
from engine.tensor.tensor import Tensor as Tensor
from engine.tensor.tensor import _rebuild as _rebuild
from engine.tensor.tensor import array_of as array_of
