"""`engine.optim`: optimizers and learning-rate schedulers under `torch.optim`'s names.

Read in this order: sgd, adam (formulas), optimizer (groups, state), flat (how memory is walked), device (the same on a
GPU); then lr_scheduler.
"""

import importlib
from types import ModuleType

from engine.errors.absent import absent
from engine.optim import lr_scheduler
from engine.optim.adadelta import Adadelta
from engine.optim.adafactor import Adafactor
from engine.optim.adagrad import Adagrad
from engine.optim.adam import Adam, AdamW
from engine.optim.adamax import Adamax
from engine.optim.asgd import ASGD
from engine.optim.lamb import LAMB
from engine.optim.lars import LARS
from engine.optim.lbfgs import LBFGS
from engine.optim.nadam import NAdam
from engine.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from engine.optim.radam import RAdam
from engine.optim.rmsprop import RMSprop
from engine.optim.rprop import Rprop
from engine.optim.sgd import SGD
from engine.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "lr_scheduler",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "swa_utils",
]


def __getattr__(name: str) -> ModuleType:
    if name == "swa_utils":  # which needs modules, and optimizers do not
        return importlib.import_module("engine.optim.swa_utils")
    raise absent("engine.optim", name)
