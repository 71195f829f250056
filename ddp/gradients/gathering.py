"""Gradients that are not where their bucket has them: what every parameter has for one is brought into its view."""

from time import perf_counter
from typing import TYPE_CHECKING

import engine
from engine.reports import layout_report as report
from engine.tensor import array_of

if TYPE_CHECKING:
    from ddp.gradients.bucket import Bucket


def gather(bucket: "Bucket") -> None:
    """Of all its parameters. Views without a fresh gradient are kept, to be put back where no rank had one."""
    for slot, (parameter, view) in enumerate(bucket.members):
        gradient = parameter.grad
        if gradient is None:
            bucket.fresh[slot] = 0  # one that came was dropped by a hook
            array_of(view)[...] = 0
        elif gradient is not view:
            _copy_in(bucket, slot, gradient)
        elif not bucket.fresh[slot]:
            bucket.kept[slot] = array_of(view).copy()


def _copy_in(bucket: "Bucket", slot: int, gradient: engine.Tensor) -> None:
    parameter, view = bucket.members[slot]
    if gradient.dtype is not view.dtype or gradient.shape != view.shape:
        raise RuntimeError(
            f"DistributedDataParallel: gradient of {bucket.names[slot]!r}: expected {list(view.shape)} "
            f"{view.dtype}, got {list(gradient.shape)} {gradient.dtype}; convert the model before wrapping it"
        )
    began = perf_counter()
    array_of(view)[...] = array_of(gradient)
    if report.is_breach(gradient.stride(), parameter):
        copies = 1 if bucket.as_view else 2  # the mean is copied back out
        bucket.layout_bytes += copies * gradient.nbytes
        report.note(parameter, gradient.stride(), report.ASSIGNED, perf_counter() - began, "bucket")
