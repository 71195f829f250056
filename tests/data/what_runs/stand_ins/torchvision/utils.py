"""Pictures of tensors, written to files."""

from typing import Any

import numpy as np
from PIL import Image


def save_image(tensor: Any, path: Any, **_: Any) -> None:
    """Writes (..., channels, height, width), from 0 to 1, the first channel of each, side by side."""
    values = np.asarray(tensor.detach())
    rows = values.reshape(-1, *values.shape[-2:])[:: values.shape[-3]]
    Image.fromarray((np.concatenate(rows, 1).clip(0, 1) * 255).astype(np.uint8)).save(path)
