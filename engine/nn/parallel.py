"""`torch.nn.parallel`: `DataParallel` and `data_parallel` on one device.

`DistributedDataParallel` is there once `ddp` is imported.
"""

from typing import Any

from engine import cuda
from engine.errors.absent import found
from engine.nn.module import Module


class DataParallel(Module):
    """Calls its module, on the one GPU there is or without one; state dicts have the prefix "module.".

    Raises: RuntimeError where several GPUs are wanted.
    """

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        wanted = list(device_ids) if device_ids is not None else list(range(cuda.device_count()))
        if len(wanted) > 1:
            raise RuntimeError(
                f"DataParallel: one process drives one device here, and {len(wanted)} were wanted; use "
                "ddp.DistributedDataParallel under ddprun, or device_ids=[0]"
            )
        self.dim = dim
        self.module = module
        self.device_ids = wanted
        if wanted:
            self.module.to(f"cuda:{wanted[0]}" if isinstance(wanted[0], int) else wanted[0])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """What the module computes of one input, or of a tuple of them, as `DataParallel` does."""
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*given, **(module_kwargs or {}))


def __getattr__(name: str) -> Any:
    return found("engine.nn.parallel", name)
