"""Data sets of noise that have the shapes of real ones."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class _Noise(Dataset):
    """As many pictures as the environment's STAND_IN_EXAMPLES, and a tenth of them where it is not for training."""

    shape: ClassVar[tuple[int, ...]] = (28, 28)
    classes: ClassVar[list[str]] = [str(each) for each in range(10)]

    def __init__(
        self,
        root: Any = None,
        train: bool = True,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[..., Any] | None = None,
        download: bool = False,
        **_: Any,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        count = int(os.environ["STAND_IN_EXAMPLES"]) // (1 if train else 10)
        numbers = np.random.default_rng(int(train))
        self.data: Any = numbers.integers(0, 256, (count, *self.shape), np.uint8)
        self.targets: Any = numbers.integers(0, len(self.classes), count).tolist()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        picture: Any = Image.fromarray(np.asarray(self.data[place]))
        target = int(self.targets[place])
        picture = picture if self.transform is None else self.transform(picture)
        return picture, target if self.target_transform is None else self.target_transform(target)


class MNIST(_Noise):
    """28 x 28, grey; pictures and targets are tensors."""

    def __init__(self, *words: Any, **keywords: Any) -> None:
        super().__init__(*words, **keywords)
        self.data, self.targets = torch.from_numpy(self.data), torch.tensor(self.targets)
        self.train_data = self.test_data = self.data
        self.train_labels = self.test_labels = self.targets


class FashionMNIST(MNIST):
    """As MNIST."""


class CIFAR10(_Noise):
    """32 x 32, red, green and blue."""

    shape: ClassVar[tuple[int, ...]] = (32, 32, 3)


class CIFAR100(CIFAR10):
    """As CIFAR10, with 100 classes."""

    classes: ClassVar[list[str]] = [str(each) for each in range(100)]
