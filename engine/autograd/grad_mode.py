"""The switches of recording under the name PyTorch has them by: `engine.autograd.grad_mode.no_grad`."""

from engine.autograd.modes import enable_grad as enable_grad
from engine.autograd.modes import inference_mode as inference_mode
from engine.autograd.modes import no_grad as no_grad
from engine.autograd.modes import set_grad_enabled as set_grad_enabled
from engine.autograd.modes import set_multithreading_enabled as set_multithreading_enabled
