"""Automatic differentiation: `backward`, `grad`, modes, hooks, `Function`.

Read in this order: node, saved (what is recorded), accumulate (the leaf), task, executor and walk with gradients and
hooks, api, function; then graph (the user's view of it all), functional, gradcheck. Where GPUs take part: places,
workers (on threads and streams), delivery.
"""

from typing import NoReturn

from engine.autograd import function as function
from engine.autograd import functional as functional
from engine.autograd import grad_mode as grad_mode
from engine.autograd import graph as graph
from engine.autograd.api import backward as backward
from engine.autograd.api import grad as grad
from engine.autograd.function import Function as Function
from engine.autograd.function import once_differentiable as once_differentiable
from engine.autograd.gradcheck import gradcheck as gradcheck
from engine.autograd.gradcheck import gradgradcheck as gradgradcheck
from engine.autograd.modes import detect_anomaly as detect_anomaly
from engine.autograd.modes import enable_grad as enable_grad
from engine.autograd.modes import inference_mode as inference_mode
from engine.autograd.modes import is_anomaly_enabled as is_anomaly_enabled
from engine.autograd.modes import is_grad_enabled as is_grad_enabled
from engine.autograd.modes import is_multithreading_enabled as is_multithreading_enabled
from engine.autograd.modes import no_grad as no_grad
from engine.autograd.modes import set_detect_anomaly as set_detect_anomaly
from engine.autograd.modes import set_grad_enabled as set_grad_enabled
from engine.autograd.modes import set_layout_contract as set_layout_contract
from engine.autograd.modes import set_multithreading_enabled as set_multithreading_enabled
from engine.autograd.task import is_checkpoint_valid as _is_checkpoint_valid  # noqa: F401 - PyTorch's private name
from engine.autograd.variable import Variable as Variable
from engine.errors.absent import absent as _absent


def __getattr__(name: str) -> NoReturn:
    raise _absent("engine.autograd", name)
