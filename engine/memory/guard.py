"""Operators run on the GPU of their tensors whichever is in use. There is nothing of this where there is one GPU."""

from typing import Any

import numpy as np

from engine.memory import backend
from engine.rules.device import device
from engine.rules.spec import Spec, spec_of


class GuardedPlan:
    """A plan whose `run` has the GPU of its tensors in use; everything else is the plan's own, kept here as it is asked
    for, since only `run` is ever exchanged: a look-up through `__getattr__` takes 0.4 µs, and a call has several.
    """

    def __init__(self, plan: Any, index: int) -> None:
        self.plan = plan
        runtime = backend.require_cupy().cuda.runtime
        in_use, use = runtime.getDevice, runtime.setDevice

        def run(*arrays: Any) -> Any:
            before = in_use()
            if before == index:
                return plan.run(*arrays)
            use(index)
            try:
                return plan.run(*arrays)
            finally:
                use(before)

        self.run = run

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self.plan, name)
        return found


def guarded(plan: Any) -> Any:
    """The plan as it is used: guarded where it runs on one of several GPUs."""
    if not backend.several_gpus:
        return plan
    for spec in (*plan.input_specs, *plan.outs):
        if spec is not None and spec.device.index is not None:
            return GuardedPlan(plan, spec.device.index)
    return plan


class on_gpu:
    """Context manager: a GPU is the one in use; nothing for a negative index."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        if self._index >= 0:
            runtime = backend.require_cupy().cuda.runtime
            self._before = runtime.getDevice()
            runtime.setDevice(self._index)

    def __exit__(self, *_: object) -> None:
        if self._index >= 0:
            backend.require_cupy().cuda.runtime.setDevice(self._before)


class on_gpu_of(on_gpu):
    """Context manager: the GPU of a raw array is the one in use; nothing for an array in host memory."""

    def __init__(self, array: Any) -> None:
        super().__init__(-1 if isinstance(array, np.ndarray) else int(array.device.id))


def fill(array: Any, value: Any) -> None:
    """Writes a number into all of a raw array, whichever GPU it is on."""
    if backend.several_gpus:
        with on_gpu_of(array):
            array.fill(value)
    else:
        array.fill(value)


def copy_to_peer(source: Any, spec: Spec) -> Any:
    """A copy of a raw array in the memory of another GPU, in the dense layout and of the dtype of `spec`.

    It runs on the source's current stream, between the target's: the memory may be used there at once.
    """
    cupy = backend.require_cupy()
    runtime, index, home = cupy.cuda.runtime, spec.device.index, int(source.device.id)
    before = runtime.getDevice()
    try:
        runtime.setDevice(home)
        laid = backend.empty(spec_of(spec.shape, spec.stride, spec.dtype, device("cuda", home)))
        laid[...] = source
        stream = cupy.cuda.get_current_stream()
        runtime.setDevice(index)
        target = backend.empty(spec)
        theirs = cupy.cuda.get_current_stream()
        free = cupy.cuda.Event(disable_timing=True)
        free.record(theirs)  # what used this memory before is over
        runtime.setDevice(home)
        stream.wait_event(free)
        # views from `empty` begin at the lowest address, as all dense layouts do
        target.data.copy_from_device_async(laid.data, spec.numel * spec.dtype.itemsize, stream)
        written = cupy.cuda.Event(disable_timing=True)
        written.record(stream)
        runtime.setDevice(index)
        theirs.wait_event(written)
    finally:
        runtime.setDevice(before)
    return target
