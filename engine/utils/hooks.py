"""The handle that registering a hook returns, under PyTorch's name for the place."""

from engine.autograd.graph import RemovableHandle as RemovableHandle
