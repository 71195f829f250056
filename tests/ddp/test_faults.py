"""A program that goes wrong on one rank ends on all of them, soon, and says why. Whole programs, real processes."""

import pytest

from tests.mpi_job import run_job

PROGRAM = """
import sys
import ddp, engine, engine.nn as nn
from engine.optim import SGD
from ddp import DistributedDataParallel

site = sys.argv[1]
ddp.init_process_group()
last = ddp.get_rank() == ddp.get_world_size() - 1

def fail(here, *_):
    if last and here == site:
        raise KeyError("lost at " + here)

if site == "model":
    width = 5 if last else 4
    DistributedDataParallel(nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)))

fail("before wrapping")
net = DistributedDataParallel(nn.Sequential(*[nn.Linear(50, 50) for _ in range(10)]), bucket_cap_mb=0.01)
net.module[4].weight.register_hook(lambda gradient: fail("a hook of backward"))
optimizer = SGD(net.parameters(), lr=0.1)

def batches():
    for step in range(1000):
        if step == 3:
            fail("the data")
        yield step, engine.ones(2, 50)

for step, inputs in batches():
    optimizer.zero_grad()
    loss = net(inputs).sum()
    if step == 2:
        fail("between forward and backward")
    loss.backward()
    if step == 2:
        fail("after backward")
    optimizer.step()
print("the end")
"""


@pytest.mark.parametrize(
    ("site", "ranks"),
    [
        ("before wrapping", 2),
        ("the data", 2),
        ("between forward and backward", 3),
        ("a hook of backward", 2),
        ("a hook of backward", 4),
        ("after backward", 3),
    ],
)
def test_an_exception_on_one_rank_ends_all_with_its_traceback(site: str, ranks: int) -> None:
    result = run_job(PROGRAM, ranks, timeout=40, args=[site], runner=())
    assert result.returncode != 0
    assert "the end" not in result.stdout
    # the first that is to be read, and the only one: the other ranks did nothing wrong
    assert result.stderr.startswith(f"rank {ranks - 1} of {ranks} raised:\nTraceback (most recent call last):\n")
    assert f"KeyError: 'lost at {site}'" in result.stderr
    assert result.stderr.count("Traceback") == 1


def test_models_that_differ_end_the_job_with_the_difference() -> None:
    result = run_job(PROGRAM, 3, timeout=40, args=["model"], runner=())
    assert result.returncode != 0
    assert (
        "ValueError: DistributedDataParallel: parameters differ between ranks: rank 2 has 0.weight (5, 3) float32 "
        "where rank 0 has (4, 3) float32; build the same model on every rank" in result.stderr
    )
