"""examples/digits.py as a user runs it: by the launcher, alone and under mpirun."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

import engine
from launch.testing.process import mpirun_command
from tests.data.reference_models import example
from tests.examples.running import command, run, summary
from tests.launch.jobs import this_mpi
from tests.mpi_job import ROOT

SCRIPT = "examples/digits.py"

# Rank 1 is killed in the 13th step.
KILLED = f"""
import os, runpy, signal, sys
import ddp

def step(job, *arguments):
    if job.step == 12 and os.environ["PMIX_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return run(job, *arguments)

run, ddp.Job.run = ddp.Job.run, step
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""


def said(path: Path) -> dict[str, float]:
    """What a picture of the example says of the last epoch."""
    with Image.open(path) as picture:
        return json.loads(picture.text["Description"])


@pytest.mark.full
def test_two_ranks_learn_the_digits(tmp_path: Path) -> None:
    done = run(command(2, SCRIPT, "--out", tmp_path))
    last = summary(done)
    assert last["test_accuracy"] >= 0.985
    assert last["world_size"] == 2
    assert last["samples_per_second"] > 0

    lines = re.findall(r"^epoch +(\d+) +loss (\d\.\d+) +test accuracy (\d\.\d+)$", done.stdout, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in lines] == list(range(1, 16)), "one line an epoch, from one rank"
    assert float(lines[-1][1]) < float(lines[0][1])
    assert float(lines[-1][2]) == pytest.approx(last["test_accuracy"], abs=1e-4)

    # A bar starts with its empty state: one rank shows one, apart from the results.
    assert done.stderr.count("| 0/435 [") == 1
    assert "%|" not in done.stdout

    from matplotlib import image  # half a second, which every process that collects tests would take

    curves = image.imread(tmp_path / "curves.png")
    assert curves.shape[0] > 200
    assert curves[..., :3].std() > 0.01, "a blank picture"
    ours, shown = (said(path) for path in (tmp_path / "curves.png", ROOT / "docs" / "digits.png"))
    assert ours["accuracy"] == last["test_accuracy"]
    # Other kernels on another CPU end in other bits; python docs/pictures.py draws the picture of README anew.
    assert ours == pytest.approx(shown, abs=0.01)

    digits = example("digits")
    model = digits.DigitsNet().to(memory_format=engine.channels_last)
    model.load_state_dict(engine.load(tmp_path / "digits.ckpt"))
    _, test_set = digits.load_data()
    images, labels = test_set.tensors
    assert len(labels) == 360
    with engine.no_grad():
        correct = int((model(images).argmax(dim=1) == labels).sum())
    assert correct / 360 == last["test_accuracy"]


@pytest.mark.full
def test_every_world_size_takes_the_same_steps(tmp_path: Path) -> None:
    """After one epoch nothing has grown apart yet: the mean loss of the epoch shows that batches and averages agree."""
    losses = []
    for ranks in (1, 3):
        last = summary(run(command(ranks, SCRIPT, "--epochs", 1, "--lr", 1e-3, "--out", tmp_path)))
        assert last["world_size"] == ranks
        losses.append(last["train_loss"])
    assert losses == pytest.approx([losses[0]] * 2, rel=1e-5)


@pytest.mark.full
def test_four_ranks_under_plain_mpirun(tmp_path: Path) -> None:
    oversubscribed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    argv = [*mpirun_command(4), *command(1, SCRIPT, "--epochs", 1, "--out", tmp_path)]
    last = summary(run(argv, **oversubscribed, **as_root))
    assert last["world_size"] == 4


@pytest.mark.full
def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    done = run(command(2, SCRIPT, "--batch-size", 49, "--out", tmp_path))
    assert done.returncode != 0
    assert "--batch-size 49 does not divide over 2 shards" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.full
def test_any_number_of_ranks_ends_in_the_same_bits(tmp_path: Path) -> None:
    arguments = ["--shards", 12, "--steps", 8, "--out", tmp_path]
    found = [summary(run(command(ranks, SCRIPT, *arguments))) for ranks in (1, 3)]
    assert [last["world_size"] for last in found] == [1, 3]
    assert {last["steps"] for last in found} == {8}
    assert len({(last["digest"], last["train_loss"]) for last in found}) == 1


@pytest.mark.full
def test_a_lost_rank_is_replaced_in_the_midst_of_an_epoch(tmp_path: Path) -> None:
    """With and without --resume: how far the job is, the new process learns in its first step at the latest."""
    if not this_mpi().elastic:
        pytest.skip("this MPI ends the job when a rank is lost")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    arguments = ["--shards", 6, "--steps", 40, "--out", tmp_path]
    undisturbed = summary(run(command(2, SCRIPT, *arguments)))
    for resume in ([], ["--resume", "auto"]):
        states = ["--checkpoint", tmp_path / f"states{len(resume)}", *resume]
        done = run(command(2, str(script), *arguments, *states, options=["--elastic", "2:2"]))
        assert "ddp: rank 1 is replaced from step 13 on; the job goes on with 2 ranks" in done.stderr
        last = summary(done)
        assert [last["world_size"], last["steps"], last["epochs"]] == [2, 40, 2]
        assert [last["digest"], last["train_loss"]] == [undisturbed["digest"], undisturbed["train_loss"]]
