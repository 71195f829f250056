"""examples/gpt_stdlib.py on settings small enough for a test: learning, interruption, resuming, bad checkpoints."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests.data.reference_models import example
from tests.examples.running import ROOT, TIMEOUT, command, environment, run, summary

SCRIPT = "examples/gpt_stdlib.py"
TINY = ["--layers", 1, "--width", 32, "--context", 16, "--batch-size", 12, "--sample", 20]


def tiny(ranks: int, out: Path, *arguments: object) -> list[str]:
    return command(ranks, SCRIPT, *TINY, "--out", out, *arguments)


def leaves(value: Any) -> Any:
    """A checkpoint with every tensor as its dtype, shape and bytes, so that == means bit for bit."""
    if isinstance(value, engine.Tensor):
        return (str(value.dtype), tuple(value.shape), np.ascontiguousarray(value.numpy()).tobytes())
    if isinstance(value, dict):
        return {key: leaves(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [leaves(item) for item in value]
    return value


@pytest.mark.full
def test_it_learns_and_speaks(tmp_path: Path) -> None:
    done = run(tiny(2, tmp_path, "--steps", 100, "--save-every", 50))
    last = summary(done)
    assert last["world_size"] == 2
    assert last["steps"] == 100
    assert last["tokens_per_second"] > 0
    # 8 bits are no knowledge, 5.5 are the frequencies of the bytes.
    assert 2.0 < last["val_bits_per_byte"] < 5.5
    assert done.stdout.count("bits per byte") == 2, "two evaluations, told by one rank"
    assert "\ndef " in done.stdout, "the sample begins with its prompt"


@pytest.mark.full
def test_every_world_size_takes_the_same_steps(tmp_path: Path) -> None:
    results = [summary(run(tiny(ranks, tmp_path, "--steps", 8)))["val_bits_per_byte"] for ranks in (1, 2, 3)]
    assert results == pytest.approx([results[0]] * 3, rel=1e-5)


@pytest.mark.full
def test_any_number_of_ranks_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Also one that goes on with another number of ranks."""
    arguments = ["--shards", 6, "--steps", 8, "--save-every", 4]
    found = [summary(run(tiny(ranks, tmp_path / str(ranks), *arguments))) for ranks in (1, 2, 5)]
    assert len({last["digest"] for last in found}) == 1
    assert found[0]["shards"] == 6


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_bit_for_bit(ranks: int, tmp_path: Path) -> None:
    arguments = ["--steps", 120, "--save-every", 10]
    whole = summary(run(tiny(ranks, tmp_path / "whole", *arguments)))

    killed = tmp_path / "killed"
    kill_after_first_checkpoint(tiny(ranks, killed, *arguments), killed)
    step = engine.load(killed / "gpt.ckpt")["step"]
    assert 0 < step < 120, "the run was over before it was killed"

    resumed = summary(run(tiny(ranks, killed, *arguments, "--resume")))
    assert resumed["first_step"] == step
    assert resumed["val_bits_per_byte"] == whole["val_bits_per_byte"]
    assert leaves(engine.load(killed / "gpt.ckpt")) == leaves(engine.load(tmp_path / "whole" / "gpt.ckpt"))


@pytest.mark.full
def test_a_job_that_lost_a_rank_is_started_again_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    arguments = ["--shards", 6, "--steps", 120, "--save-every", 10]
    whole = summary(run(tiny(1, tmp_path / "whole", *arguments)))

    argv = tiny(2, tmp_path / "killed", *arguments)
    argv[argv.index("-n") : argv.index("-n")] = ["--max-restarts", "3"]
    lines, told = [], []
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step ") and len(told) < 2:
                told.append(line)
                os.kill(ranks_of(tmp_path / "killed")[0], signal.SIGKILL)
        assert process.wait(TIMEOUT) == 0, lines
    text = "".join(lines)
    assert len(re.findall(r"rank \d on \S+ was lost at step \d+ \(SIGKILL\); the job is started again", text)) == 2
    last = summary(subprocess.CompletedProcess(argv, 0, text, ""))
    assert last["first_step"] > 0
    assert last["digest"] == whole["digest"]


def kill_after_first_checkpoint(argv: list[str], out: Path) -> None:
    """Start a run and end its Python ranks by SIGKILL once it has reported its first checkpoint."""
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                break
        for pid in ranks_of(out):
            os.kill(pid, signal.SIGKILL)
        process.stdout.read()
        assert process.wait(TIMEOUT) != 0


def ranks_of(out: Path) -> list[int]:
    """The Python processes that run the example itself with this --out, not their launcher."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if words[0] == sys.executable and str(out) in words and "launch" not in words:
            found.append(int(entry.parent.name))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run with its checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    summary(run(tiny(1, folder, "--steps", 2)))
    return folder


@pytest.mark.full
def test_a_finished_run_resumes_to_the_same_result(finished: Path) -> None:
    before = leaves(engine.load(finished / "gpt.ckpt"))
    last = summary(run(tiny(1, finished, "--steps", 2, "--resume")))
    assert last["first_step"] == 2
    assert leaves(engine.load(finished / "gpt.ckpt")) == before


def refuses(out: Path, reason: str, *arguments: object, ranks: int = 1) -> None:
    """A resumed run must fail before its first step and tell the reason, once a rank at most."""
    done = run(tiny(ranks, out, *arguments, "--resume"))
    assert done.returncode != 0
    assert "step " not in done.stdout, "it trained all the same"
    assert 1 <= done.stderr.count(reason) <= ranks, done.stderr


@pytest.mark.full
@pytest.mark.parametrize(("kept", "ranks"), [(0, 1), (7, 1), (0.5, 1), (-1, 1), (0.5, 2)])
def test_a_truncated_checkpoint_is_refused(kept: float, ranks: int, finished: Path, tmp_path: Path) -> None:
    whole = (finished / "gpt.ckpt").read_bytes()
    path = tmp_path / "gpt.ckpt"
    path.write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    refuses(tmp_path, f"{path} is no complete checkpoint: truncated", "--steps", 2, ranks=ranks)


@pytest.mark.full
@pytest.mark.parametrize("content", [b"not a checkpoint\n" * 100, b"\x89PNG\r\n\x1a\n" + bytes(500)])
def test_a_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gpt.ckpt"
    path.write_bytes(content)
    refuses(tmp_path, f"{path} is no complete checkpoint", "--steps", 2)


@pytest.mark.full
def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    engine.save({"head.weight": engine.zeros(10, 4)}, tmp_path / "gpt.ckpt")
    refuses(tmp_path, f"{tmp_path / 'gpt.ckpt'} is a checkpoint, but not one of examples/gpt_stdlib.py", "--steps", 2)


@pytest.mark.full
def test_a_checkpoint_of_another_run_is_refused(finished: Path) -> None:
    """Before anything is loaded, by the first setting that differs."""
    before = (finished / "gpt.ckpt").read_bytes()
    refuses(finished, "was written with steps = 2, this run has steps = 3", "--steps", 3)
    assert (finished / "gpt.ckpt").read_bytes() == before


@pytest.mark.full
def test_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    refuses(tmp_path, f"No such file or directory: '{tmp_path / 'gpt.ckpt'}'", "--steps", 2)


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    done = run(tiny(2, tmp_path, "--batch-size", 6, "--steps", 2))
    assert done.returncode != 0
    assert "--batch-size 6 does not divide over 2 shards x 2 backward passes" in done.stderr


def test_head_and_embedding_are_one_parameter() -> None:
    model = example("gpt_stdlib").GPT(layers=1, width=32, heads=1, context=8)
    assert model.head.weight is model.token.weight
    names = [name for name, _ in model.named_parameters()]
    assert "token.weight" in names
    assert "head.weight" not in names


def test_the_text_is_held_out_by_file() -> None:
    train, validation = example("gpt_stdlib").standard_library()
    assert train.dtype == validation.dtype == np.uint8
    assert 0.02 < len(validation) / len(train) < 0.3
    again, _ = example("gpt_stdlib").standard_library()
    assert np.array_equal(train, again)
