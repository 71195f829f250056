"""A gradient in the memory order of its parameter, as the kernels of optimizers walk over both; copies are counted."""

from time import perf_counter
from typing import Any

from engine.memory import backend
from engine.ops.copy import cuda as strided
from engine.reports import layout_report as report
from engine.rules import layout
from engine.rules.spec import Spec
from engine.tensor import Tensor
from engine.tensor.flat import flat_array

# Gradients that had to be copied because they were not laid out as their parameter, and their bytes. Tests and
# benchmarks read them.
layout_copies = 0
layout_bytes = 0


def in_layout_of(spec: Spec, gradient: Tensor, param: Tensor) -> Any:
    """The gradient as a 1-D array in the memory order of `spec`; a counted copy if it lies differently."""
    global layout_copies, layout_bytes
    stride = gradient._spec.stride
    if layout.same_layout_modulo_size_one(spec.shape, stride, spec.stride):
        return flat_array(gradient._array, spec)
    layout_copies += 1
    layout_bytes += gradient.nbytes
    began = perf_counter()
    copy = backend.empty(spec)
    if spec.device.type == "cuda":
        strided.copy(copy, gradient._array)
    else:
        copy[...] = gradient._array
    if report.is_breach(stride, param):
        report.note(param, stride, report.ASSIGNED, perf_counter() - began, "optimizer")
    return flat_array(copy, spec)
