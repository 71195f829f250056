"""Training over two hosts, 2 + 2 ranks, gives the bits of training on one host, with a transport chosen for it."""

import json
from pathlib import Path

import pytest

from tests.ddp.two_hosts import NotPossibleError, two_hosts
from tests.launch.jobs import this_mpi
from tests.mpi_job import run_job

PROGRAM = """
import hashlib, json, sys
import ddp, engine
import engine.nn as nn
from engine.optim import AdamW

ddp.init_process_group()
rank = ddp.get_rank()
engine.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 700), nn.Tanh(), nn.Linear(700, 3))
net = ddp.DistributedDataParallel(model, bucket_cap_mb=0.3)
optimizer = AdamW(net.parameters(), lr=1e-2)
batches = engine.Generator().manual_seed(rank)
losses = []
for step in range(5):
    x = engine.randn(4 + step, 1, 8, 8, generator=batches)
    y = engine.randint(0, 3, (4 + step,), generator=batches)
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
everyones = ddp.groups.group.resolve(None).exchange(digest)
if rank == 0:
    transport = ddp.groups.group.describe()["transport"]
    print(json.dumps({"transport": transport, "world": ddp.get_world_size(), "digests": everyones}))
ddp.destroy_process_group()
"""


def test_training_over_two_hosts_has_the_bits_of_one_host(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    try:
        with two_hosts() as hosts:
            there = hosts.run(["-m", "mpi4py", str(program)], ranks=4, timeout=60)
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")
    assert there.returncode == 0, there.stderr
    here = run_job(PROGRAM, 4)
    assert here.returncode == 0, here.stderr
    two, one = json.loads(there.stdout), json.loads(here.stdout)
    # MPICH has been told that each rank is a node, by NETWORK.
    assert (two["transport"], two["world"]) == ("mpi" if this_mpi().name == "MPICH" else "hierarchical", 4)
    assert (one["transport"], one["world"]) == ("shared", 4)
    assert len(set(two["digests"])) == 1
    assert two["digests"] == one["digests"]
