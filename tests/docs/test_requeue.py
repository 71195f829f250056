"""The job of docs/checkpoints.md that requeues itself: a notice from the batch system, and the next run goes on."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launch.testing.process import ask_to_end_with_parent
from tests.docs.pages import DOCS, blocks, write_tools
from tests.examples.running import ROOT, TIMEOUT, command, environment, run, summary

ARGUMENTS = ("--shards", "4", "--steps")


@pytest.mark.full
def test_a_job_that_is_requeued_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    (script,) = [block.text for block in blocks(DOCS / "checkpoints.md") if block.file == "train.sbatch"]
    work, tools = tmp_path / "work", tmp_path / "tools"
    work.mkdir()
    (work / "train.sbatch").write_text(script)
    saving = ("--out", "out", "--checkpoint", "states", "--checkpoint-every", "1", "--resume", "auto")
    (work / "train.py").write_text(
        f"import os, runpy, sys\nsys.argv[1:] = {[*saving, *ARGUMENTS]} + [os.environ['STEPS']]\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'digits.py')!r}, run_name='__main__')\n"
    )
    write_tools(tools)
    (tools / "scontrol").write_text("#!/bin/bash\necho scontrol $*\n")
    (tools / "scontrol").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    host = os.uname().nodename
    slurm |= {"SLURMD_NODENAME": host, "SLURM_JOB_NODELIST": host, "SLURM_NODELIST": host}

    def start(steps: int) -> subprocess.Popen[str]:
        env = environment(**slurm, PATH=f"{tools}:{os.environ['PATH']}", STEPS=str(steps))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(["bash", "train.sbatch"], cwd=work, env=env, preexec_fn=ask_to_end_with_parent, **pipes)

    with start(10**9) as job:
        deadline = time.monotonic() + TIMEOUT
        while not list(work.glob("states/*/manifest.json")) and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        out, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    assert out.splitlines()[-1] == "scontrol requeue 7", out + err
    steps = 3 + max(int(path.parent.name.removeprefix("step-")) for path in work.glob("states/*/manifest.json"))
    with start(steps) as job:
        out, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    whole = run(command(1, "examples/digits.py", "--out", tmp_path / "whole", *ARGUMENTS, steps))
    assert json.loads(out.splitlines()[-1])["digest"] == summary(whole)["digest"]
