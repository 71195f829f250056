"""A tensor of PyTorch as one of engine, on the same memory."""

import ml_dtypes
import numpy as np
import torch

import engine


def shared(tensor: torch.Tensor) -> engine.Tensor:
    """What is written to either is in the other.

    Raises: TypeError for a dtype that engine has not, a sparse tensor, and one that is not in host memory.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise TypeError(
            f"allstride: expected a dense tensor in host memory, got one of layout {tensor.layout} on {tensor.device}; "
            "use to_dense() or cpu(), or another backend for it"
        )
    # Not by `numpy()`, after which PyTorch cannot resize the memory any more, as FSDP does.
    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:  # which NumPy has not by itself
        return engine.from_numpy(np.from_dlpack(plain.view(torch.int16)).view(ml_dtypes.bfloat16))
    return engine.from_numpy(np.from_dlpack(plain))
