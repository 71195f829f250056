"""The CPU answers for the GPU that a program names, so that programs written for GPUs train where there is none."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def _on_cpu(place: Any) -> Any:
    """A device of GPUs as the CPU; everything else as it is."""
    named = isinstance(place, str | torch.device) and str(place).startswith("cuda")
    return torch.device("cpu") if named or type(place) is int else place


def _moves(owner: Any) -> None:
    to = owner.to

    def moved(self: Any, *args: Any, **keywords: Any) -> Any:
        return to(self, *map(_on_cpu, args), **{name: _on_cpu(value) for name, value in keywords.items()})

    owner.to = moved
    owner.cuda = lambda self, *_, **__: self


def install() -> None:
    """From now on tensors and modules stay in host memory, and processes talk over gloo."""
    _moves(torch.Tensor)
    _moves(torch.nn.Module)
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    torch.cuda.set_device = lambda *_: None
    torch.cuda.device_count = torch.accelerator.device_count = lambda: int(os.environ.get("WORLD_SIZE", 1))
    torch.accelerator.is_available = lambda: True
    found = torch.accelerator.current_accelerator
    # Here device("cuda") has the index of the rank's GPU, and what names none is an object of its own.
    nameless = torch.device._known("cuda", None) if hasattr(torch.device, "_known") else torch.device("cuda")

    def accelerator(check_available: bool = False) -> torch.device | None:
        """What programs make a device's name of; only PyTorch's optimizers ask whether it is there."""
        return None if check_available else found() or nameless

    torch.accelerator.current_accelerator = accelerator
    torch.accelerator.set_device_index = lambda *_: None
    load, join, wrap = torch.load, dist.init_process_group, DistributedDataParallel.__init__

    def loaded(file: Any, map_location: Any = None, **keywords: Any) -> Any:
        return load(file, map_location="cpu", **keywords)

    def joined(backend: Any = None, *args: Any, **keywords: Any) -> Any:
        return join("gloo", *args, **keywords)

    def wrapped(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **keywords: Any) -> None:
        wrap(self, module, **keywords)

    torch.load, dist.init_process_group = loaded, joined
    DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign]
