"""A rank on a GPU that goes wrong ends all of them, soon, and says why. Whole programs, real processes."""

import pytest

from tests import cuda_device
from tests.mpi_job import run_job

PROGRAM = """
import os, signal, sys
import ddp, engine, engine.nn as nn
from ddp import DistributedDataParallel
from ddp.transport.cuda.summing import SliceSum
from engine.memory.backend import require_cupy

site, transport = sys.argv[1:]
ddp.init_process_group(transport=transport)
model = nn.Sequential(*[nn.Linear(8, 8, device="cuda") for _ in range(4)])
net = DistributedDataParallel(model, bucket_cap_mb=1e-4)

def fail(*_):
    if site == "a hook":
        raise KeyError("lost in a hook")
    if site == "the sum":
        raise engine.cuda.OutOfMemoryError("CUDA out of memory in a sum")
    os.kill(os.getpid(), signal.SIGKILL)

for step in range(20):
    if step == 2 and ddp.get_rank() == 1:
        if site == "the sum":
            SliceSum.average = fail
        elif site == "the GPU":
            require_cupy().cuda.runtime.eventQuery = lambda event: 700
        else:
            model[1].weight.register_hook(fail)
    net(engine.ones(2, 8, device="cuda")).sum().backward()
print("the end")
"""


@pytest.mark.parametrize(
    ("site", "transport", "words"),
    [
        ("a hook", "cuda_ipc", "KeyError: 'lost in a hook'"),
        ("a hook", "staged", "KeyError: 'lost in a hook'"),
        ("the sum", "cuda_ipc", "OutOfMemoryError: CUDA out of memory in a sum"),
        ("the GPU", "staged", "an illegal memory access was encountered"),
        ("its end", "cuda_ipc", "signal 9"),
    ],
)
def test_one_rank_ends_all(site: str, transport: str, words: str) -> None:
    runner = cuda_device.runner()
    result = run_job(
        PROGRAM, 2, timeout=200, args=[site, transport], runner=runner, environment={"CUDA_VISIBLE_DEVICES": "0"}
    )
    assert result.returncode != 0
    assert "the end" not in result.stdout
    assert words in result.stderr + result.stdout
    if site != "its end":
        assert "rank 1 of 2 raised:\nTraceback (most recent call last):\n" in result.stderr
        assert "rank 0 of 2 raised" not in result.stderr
