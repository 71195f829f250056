"""Random tensors, draws and dropout."""
