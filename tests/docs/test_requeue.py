"""The job of docs/checkpoints.md that requeues itself: a notice from the batch system, and the next run goes on."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launch.testing.process import ask_to_end_with_parent
from tests.docs.pages import DOCS, blocks, write_tools
from tests.examples.running import TIMEOUT, environment

PROGRAM = """
import os
import ddp, engine
from ddp import checkpoint

ddp.init_process_group()
engine.manual_seed(0)
model = engine.nn.Linear(8, 8)
net = ddp.DistributedDataParallel(model)
optimizer = engine.optim.AdamW(model.parameters(), lr=1e-2)
with checkpoint.Manager("states", {"model": model, "optimizer": optimizer}, every=10) as manager:
    first = manager.restore()
    for step in range(first, int(os.environ["STEPS"])):
        optimizer.zero_grad()
        net(engine.full((1, 8), step + 1.0)).sum().backward()
        optimizer.step()
        manager.step(step + 1)
if ddp.get_rank() == 0:
    print(first, ddp.digest(net, optimizer))
"""


@pytest.mark.full
def test_a_job_that_is_requeued_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    (script,) = [block.text for block in blocks(DOCS / "checkpoints.md") if block.file == "train.sbatch"]
    work, tools = tmp_path / "work", tmp_path / "tools"
    work.mkdir()
    (work / "train.sbatch").write_text(script)
    (work / "train.py").write_text(PROGRAM)
    write_tools(tools)
    (tools / "scontrol").write_text("#!/bin/bash\necho scontrol $*\n")
    (tools / "scontrol").chmod(0o755)
    host = os.uname().nodename
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    slurm |= {"SLURMD_NODENAME": host, "SLURM_JOB_NODELIST": host, "SLURM_NODELIST": host}

    def start(steps: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "train.sbatch"],
            cwd=work,
            env=environment(**slurm, PATH=f"{tools}:{os.environ['PATH']}", STEPS=str(steps)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=ask_to_end_with_parent,
        )

    with start(10**9) as job:
        deadline = time.monotonic() + TIMEOUT
        while not list(work.glob("states/*/manifest.json")) and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        out, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    assert out == "scontrol requeue 7\n", out + err
    last = max(int(path.parent.name.removeprefix("step-")) for path in work.glob("states/*/manifest.json"))
    with start(last + 3) as job:
        again, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    for path in work.glob("states/*"):
        path.rename(tmp_path / path.name)
    with start(last + 3) as job:
        whole, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    assert [words.split()[0] for words in (again, whole)] == [str(last), "0"]
    assert again.split()[1] == whole.split()[1]
