"""Real ranks that are killed while they write: another job, of another size, goes on from the newest complete one."""

import re
from pathlib import Path

import pytest

from tests.examples.running import command, run
from tests.mpi_job import run_job

PROGRAM = """
import os, signal, sys
import ddp, engine
from ddp import checkpoint
from ddp.checkpoint import shard

folder, victim, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
ddp.init_process_group()
write = shard._write_all

def killing(file, content):
    if "step-00000003" in os.readlink(f"/proc/self/fd/{file.fileno()}") and victim in ("all", str(ddp.get_rank())):
        file.write(content[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, content)

shard._write_all = killing
state = {"weight": engine.zeros(1 << 19)}
with checkpoint.Manager(folder, state, every=1, keep=2) as manager:
    first = manager.restore()
    for step in range(first, steps):
        state["weight"] += step + 1
        manager.step(step + 1)
        manager.wait()
if ddp.get_rank() == 0:
    print("from", first, "to", state["weight"].unique().tolist())
"""


@pytest.mark.full
@pytest.mark.parametrize("victim", ["0", "1", "all"])
def test_the_next_job_goes_on(tmp_path, victim) -> None:
    struck = run_job(PROGRAM, 2, args=[str(tmp_path), victim, "4"])
    assert struck.returncode != 0
    assert "from" not in struck.stdout
    after = run_job(PROGRAM, 3, args=[str(tmp_path), "nobody", "5"])
    assert after.returncode == 0, after.stderr
    assert after.stdout.split() == ["from", "2", "to", "[15.0]"]
    assert "step-00000003 was not complete, and is removed" in after.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-00000004", "step-00000005"}


RESTARTED = """
import os, signal, sys
import ddp, engine
from ddp import checkpoint

folder, dies = sys.argv[1], sys.argv[2] == "dies" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
ddp.init_process_group()
engine.manual_seed(0)
model = engine.nn.Linear(300, 2000)
optimizer = ddp.ZeroRedundancyOptimizer(model.parameters(), engine.optim.AdamW, lr=1e-2)
state = {"model": model, "optimizer": optimizer}
with checkpoint.Manager(folder, state, every=5, memory_every=1) as manager:
    first = manager.restore()
    for step in range(first, 9):
        optimizer.zero_grad()
        model(engine.full((1, 300), step + 1.0)).sum().backward()
        optimizer.step()
        manager.step(step + 1)
        if dies and step == 6:
            manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    print("from", first, ddp.digest(model), manager._memory.place.folder)
"""


@pytest.mark.full
def test_a_job_that_is_started_again_goes_on_from_its_hosts_memory(tmp_path) -> None:
    """All its ranks are killed after step 7, and the disk's is of step 5; at the end the memory is given back."""
    program = tmp_path / "program.py"
    program.write_text(RESTARTED)
    lines, restarts = [], []
    for how in ("dies", "lives"):
        done = run(command(2, "--max-restarts", "1", program, tmp_path / how, how))
        assert done.returncode == 0, done.stderr
        lines.append([line.split() for line in done.stdout.splitlines() if line.startswith("from")])
        restarts.append(
            re.findall(r"rank \d on \S+ was lost at step 8 \(SIGKILL\); the job is started again", done.stderr)
        )
    assert [first for line in lines for _, first, _, _ in line] == ["7", "7", "0", "0"]
    assert [len(each) for each in restarts] == [1, 0]
    assert len({digest for line in lines for _, _, digest, _ in line}) == 1
    assert not [folder for line in lines for _, _, _, folder in line if Path(folder).exists()]
