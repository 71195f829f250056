"""Checkpoints over two hosts, 2 + 2 ranks: continued on one, and a directory that one host does not see."""

from pathlib import Path

import pytest

from tests.ddp.two_hosts import NotPossibleError, two_hosts
from tests.mpi_job import run_job

PROGRAM = """
import subprocess, sys
import ddp, engine
from ddp import checkpoint

folder, steps, blind = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "blind"
ddp.init_process_group()
rank = ddp.get_rank()
if blind and rank == 2:  # the second host, whose mounts are its own, has another directory there
    subprocess.run(["mount", "-t", "tmpfs", "none", folder.rpartition("/")[0]], check=True)
ddp.barrier()
model = engine.nn.Linear(300, 2000)
net = ddp.DistributedDataParallel(model)
optimizer = ddp.ZeroRedundancyOptimizer(model.parameters(), engine.optim.AdamW, lr=1e-2)
state = {"model": model, "optimizer": optimizer}
try:
    with checkpoint.Manager(folder, state, every=2) as manager:
        first = manager.restore()
        for step in range(first, steps):
            optimizer.zero_grad()
            net(engine.full((1, 300), step + 1.0)).sum().backward()
            optimizer.step()
            manager.step(step + 1)
except RuntimeError as error:
    if not blind:
        raise
    # All end well: where all ranks abort over two hosts, mpirun and its daemons now and then stay for ever.
    print(f"refused: {error}", flush=True)
else:
    if rank == 0:
        print("from", first, ddp.digest(model))
"""


@pytest.mark.full
def test_two_hosts_and_one_continue_each_other(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    try:
        with two_hosts() as hosts:

            def there(name: str, steps: int, how: str = "sees") -> tuple[int, str, str]:
                arguments = ["-m", "mpi4py", str(program), str(tmp_path / name), str(steps), how]
                ended = hosts.run(arguments, ranks=4, timeout=120)
                return ended.returncode, ended.stdout, ended.stderr

            first = there("a", 4)
            here = run_job(PROGRAM, 3, args=[str(tmp_path / "a"), "6", "sees"])
            last = there("a", 8)
            (tmp_path / "c").mkdir()
            blind = there("c/runs", 4, "blind")
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")
    whole = run_job(PROGRAM, 1, args=[str(tmp_path / "b"), "8", "sees"])
    assert first[1].startswith("from 0"), first[2]
    assert here.stdout.startswith("from 4"), here.stderr
    assert last[1].startswith("from 6"), last[2]
    assert last[1].split()[2] == whole.stdout.split()[2]
    assert blind[0] == 0, blind[2]
    refused = blind[1].split("refused: ")[1:]  # Hydra mixes the lines of its agents
    assert len(refused) == 4, blind
    assert all("ranks 2, 3 on " in line and "cannot see" in line for line in refused), refused
    assert not [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
