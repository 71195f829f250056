"""`torch.utils.tensorboard`: SummaryWriter is that of tensorboardX, which writes the same files."""

from typing import Any

from engine.tensor import Tensor

try:
    from tensorboardX import FileWriter, SummaryWriter, summary
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'engine.utils.tensorboard: SummaryWriter is that of tensorboardX; pip install "allstride[tensorboard]"',
        name=error.name,
    ) from None

__all__ = ["FileWriter", "SummaryWriter"]

_make_array = summary.make_np


def _make_array_of_tensors(x: Any) -> Any:
    """What tensorboardX makes of arrays, numbers and PyTorch's tensors, which it knows by name; of these, too."""
    return _make_array(x.detach().cpu().numpy() if isinstance(x, Tensor) else x)


summary.make_np = _make_array_of_tensors
