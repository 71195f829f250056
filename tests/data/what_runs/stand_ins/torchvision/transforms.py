"""The transforms that the programs of the list use, on pictures of Pillow."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps


class Compose:
    """One after another."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Bytes to numbers from 0 to 1 of the default dtype, channels first."""

    def __call__(self, picture: Any) -> Any:
        values = np.asarray(picture, np.float32) / np.float32(255)
        values = values[:, :, None] if values.ndim == 2 else values
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))).to(torch.get_default_dtype())


class Normalize:
    """Less the mean, over the standard deviation, by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(each).reshape(-1, 1, 1) for each in (mean, std))

    def __call__(self, picture: Any) -> Any:
        return (picture - self.mean) / self.std


class Resize:
    """To a size, bilinear; one number is that of the shorter edge."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def __call__(self, picture: Any) -> Any:
        size = self.size
        if isinstance(size, int):
            ratio = size / min(picture.size)
            return picture.resize([round(each * ratio) for each in picture.size], Image.Resampling.BILINEAR)
        return picture.resize(tuple(reversed(size)), Image.Resampling.BILINEAR)


class Pad:
    """A black frame."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, picture: Any) -> Any:
        return ImageOps.expand(picture, self.padding)


class RandomCrop:
    """A square of `size` from the picture with a black frame of `padding`."""

    def __init__(self, size: int, padding: int = 0) -> None:
        self.size, self.padding = size, padding

    def __call__(self, picture: Any) -> Any:
        picture = ImageOps.expand(picture, self.padding)
        left, upper = (random.randrange(edge - self.size + 1) for edge in picture.size)
        return picture.crop((left, upper, left + self.size, upper + self.size))


class RandomHorizontalFlip:
    """Mirrored, in half of the cases."""

    def __call__(self, picture: Any) -> Any:
        return ImageOps.mirror(picture) if random.random() < 0.5 else picture


class Lambda:
    """A function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, picture: Any) -> Any:
        return self.function(picture)
