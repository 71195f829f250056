"""Both training examples go on where they were stopped, on another number of ranks, with the same bits."""

import signal
import subprocess
import time

import pytest

from tests.examples.running import ROOT, TIMEOUT, command, environment, run, summary

SETTINGS = {
    "digits": ("--shards", 4, "--steps", 40, "--epochs", 2),
    "gpt_stdlib": ("--shards", 4, "--steps", 8, "--batch-size", 8, "--layers", 1, "--width", 32, "--context", 16),
}


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_it_goes_on_with_the_same_bits(tmp_path, name) -> None:
    """Stopped by SIGTERM on 2 ranks, after a checkpoint, it goes on on 3, and ends as a run on one rank."""
    more = ("--sample", 0) if name == "gpt_stdlib" else ()
    words = [f"examples/{name}.py", *SETTINGS[name], *more, "--out", tmp_path / "out"]
    whole = summary(run(command(1, *words)))["digest"]
    folder = tmp_path / "states"
    words += ["--checkpoint", folder, "--checkpoint-every", 1, "--resume", "auto"]
    with subprocess.Popen(
        command(2, *words), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as stopped:
        deadline = time.monotonic() + TIMEOUT
        while not list(folder.glob("*/manifest.json")) and stopped.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped.send_signal(signal.SIGTERM)
        _, errors = stopped.communicate(timeout=TIMEOUT)
    assert stopped.returncode == 128 + signal.SIGTERM, errors.decode()
    steps = sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("*/manifest.json"))
    assert 0 < steps[-1] < SETTINGS[name][3], "it was stopped too late to tell"
    done = run(command(3, *words))
    assert summary(done)["digest"] == whole, done.stderr
