"""`engine.optim.lr_scheduler`: learning-rate schedules under PyTorch's names. Read base, then decay."""

from engine.optim.lr_scheduler.base import LRScheduler
from engine.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from engine.optim.lr_scheduler.cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from engine.optim.lr_scheduler.cyclic import CyclicLR, OneCycleLR
from engine.optim.lr_scheduler.decay import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from engine.optim.lr_scheduler.plateau import ReduceLROnPlateau

_LRScheduler = LRScheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
