"""Have the replicas drifted apart? Data parallel training does not notice by itself: each rank goes on with its own."""

import zlib

import numpy as np

import engine
import engine.nn as nn
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.replicas.contents import Contents
from ddp.training.parallel import DistributedDataParallel

_AT_MOST = 5  # differences that an error lists


def verify_replicas(module: nn.Module, process_group: ProcessGroup | None = None, buffers: bool = False) -> None:
    """Collective: raises RuntimeError on every rank unless all ranks hold the same parameters, bit for bit.

    To be called now and then, once an epoch or every thousand steps: a rank that skipped a step, loaded another file,
    changed a parameter by itself or has a fault in its memory trains another model from then on, and the averages of
    gradients hide it. The error names the tensors and the ranks that differ from most others.

    module: wrapped or not; of a DistributedDataParallel, what is ignored there is not compared, and its group is the
    default. buffers: compare them as well (batch norm statistics are each rank's own between two forwards).
    """
    ignored = module.parameters_to_ignore if isinstance(module, DistributedDataParallel) else ()
    if process_group is None and isinstance(module, DistributedDataParallel):
        process_group = module.process_group
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    contents = Contents(inner, ignored)
    named = contents.parameters() + (contents.buffers() if buffers else [])
    sums = {name: _checksum(tensor) for name, tensor in named}
    everyones = resolve(process_group).exchange(sums)
    if problems := differences(everyones):
        more = f", and {len(problems) - _AT_MOST} more" if len(problems) > _AT_MOST else ""
        raise RuntimeError(
            f"verify_replicas: the ranks hold different models: {'; '.join(problems[:_AT_MOST])}{more}. Every rank "
            "must take the same steps with the same optimizer, and load the same file"
        )


def differences(everyones: list[dict[str, int]]) -> list[str]:
    """In words, for each name whose checksums differ: the ranks that are not with the majority (or with rank 0)."""
    problems = []
    for name in dict.fromkeys(name for sums in everyones for name in sums):
        found = [sums.get(name) for sums in everyones]
        expected = max(found, key=found.count)  # of equally frequent ones the first
        others = [rank for rank, checksum in enumerate(found) if checksum != expected]
        if others:
            who = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
            problems.append(f"{name} on {who}")
    return problems


def _checksum(tensor: engine.Tensor) -> int:
    """Of dtype, shape and values, in whatever order they lie in memory."""
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(f"{array.dtype} {array.shape}".encode()))
