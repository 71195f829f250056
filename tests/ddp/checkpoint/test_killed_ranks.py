"""Real ranks that are killed while they write: another job, of another size, goes on from the newest complete one."""

import pytest

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
    assert "to" not in struck.stdout
    after = run_job(PROGRAM, 3, args=[str(tmp_path), "nobody", "5"])
    assert after.returncode == 0, after.stderr
    assert after.stdout.split() == ["from", "2", "to", "[15.0]"]
    assert "step-00000003 was not complete, and is removed" in after.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-00000004", "step-00000005"}
