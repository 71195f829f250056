"""The page of public programs and models is the one that its script makes, and what it runs them by trains on ranks."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data import what_runs


def test_the_page_has_every_row_of_the_list_and_no_other() -> None:
    names = [row["name"] for row in json.loads(what_runs.LIST.read_text())["programs"]]
    assert len(names) == len(set(names))
    assert set(names) == json.loads(what_runs.RESULTS.read_text())["rows"].keys()
    rows = re.findall(r"^\| ([^|]+) \| [\w-]+/[\w.-]+ \| [^|]+ \|", what_runs.PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(names)
    assert what_runs.PAGE.read_text() == what_runs.page(), "python tests/data/what_runs.py writes it anew"


def test_outcome_compares_every_step_of_every_rank() -> None:
    theirs = [{"losses": [2.0, 4.0], "seconds": 1.0}, {"losses": [1.0, 1.0], "seconds": 3.0}]
    ours = [{"losses": [2.0, 4.0], "seconds": 1.0}, {"losses": [1.0, 1.5], "seconds": 1.0}]
    result = what_runs.outcome(ours, theirs)
    assert (result["loss"], result["cpu"]) == (0.5, 0.5)
    assert what_runs.outcome([{"raises": "KeyError: 'x'"}, ours[1]], theirs)["raises"] == "KeyError: 'x'"


def test_large_differences_are_looked_at_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1e-2, 1e-13, 1e-7])
    asked = []

    def run_on_both(sources: Path, row: dict[str, Any], torch_python: str) -> dict[str, Any]:
        asked.append(row.get("float64", False))
        return {"loss": next(losses)}

    monkeypatch.setattr(what_runs, "run_on_both", run_on_both)
    assert what_runs.compare_program(Path(), {}, "") == {"loss": 1e-2, "float64": 1e-13}
    assert what_runs.compare_program(Path(), {}, "") == {"loss": 1e-7}
    assert asked == [False, True, False]


PROGRAM = """
import torch
from torchvision import datasets, transforms

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(torch.distributed.get_rank())
data = datasets.MNIST(".", transform=transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1,), (0.3,))]))
sampler = torch.utils.data.DistributedSampler(data)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(784, 10).to(0), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for pictures, digits in torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler):
        noise = torch.randn(len(pictures), 784)
        outputs = torch.nn.functional.dropout(model(pictures.to(0).flatten(1) + noise))
        loss = torch.nn.functional.cross_entropy(outputs, digits.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.full
def test_a_program_is_run_from_the_same_weights_until_its_last_pass(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    (sources / "tiny").mkdir(parents=True)
    (sources / "tiny" / "main.py").write_text(PROGRAM)
    row = {"name": "tiny", "repository": "own/tiny", "program": "main.py", "ranks": 2, "gpu": True, "passes": 5}
    here = [sys.executable, "-P", "-m", "launch", "--torch"]
    first, second = (
        what_runs.run_program(here, side, sources, row | {"examples": 32}, tmp_path) for side in ("first", "second")
    )
    assert [rank["losses"] for rank in first] == [rank["losses"] for rank in second]
    assert all(len(rank["losses"]) == 5 and all(map(math.isfinite, rank["losses"])) for rank in first)
    assert first[0]["losses"] != first[1]["losses"]  # each rank has pictures of its own
    for rank in range(2):  # other weights are seen
        weights = tmp_path / f"weights.{rank}.0.npz"
        with np.load(weights) as parameters:
            changed = {name: values * 2 for name, values in parameters.items()}
        np.savez(weights, **changed)
    third = what_runs.run_program(here, "third", sources, row | {"examples": 32}, tmp_path)
    assert third[0]["losses"] != first[0]["losses"]


def test_files_are_made_of_words_and_numbers(tmp_path: Path) -> None:
    what_runs.write(tmp_path / "a" / "text", "lines", 3)
    assert [len(line.split()) for line in (tmp_path / "a" / "text").read_text().splitlines()] == [12, 12, 12]
    what_runs.write(tmp_path / "numbers", "uint16", 7)
    assert (tmp_path / "numbers").stat().st_size == 14


@pytest.mark.full
def test_the_driver_trains_from_the_same_weights_on_two_ranks(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    (sources / "tiny").mkdir(parents=True)
    (sources / "tiny" / "net.py").write_text("import torch\n\n\ndef made():\n    return torch.nn.Linear(4, 3)\n")
    row = {"name": "tiny", "repository": "own/tiny", "import": "from net import made", "build": "made()"}
    rows = [row | {"input": [5, 4], "ranks": 2}, row | {"name": "none", "build": "absent()", "ranks": 2}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = [str(what_runs.FOLDER / "driver.py"), str(sources), str(tmp_path / "rows.json"), str(tmp_path)]
    environ = os.environ | {"PYTHONPATH": str(what_runs.ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for side in ("first", "second"):
        command = [sys.executable, "-P", "-m", "launch", "--torch", "-n", "2", *words, side]
        ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    first, second = (
        [json.loads((tmp_path / f"{side}.{rank}.json").read_text()) for rank in range(2)]
        for side in ("first", "second")
    )
    assert [rank["tiny"]["losses"] for rank in first] == [rank["tiny"]["losses"] for rank in second]
    assert all(len(rank["tiny"]["losses"]) == 20 and all(map(math.isfinite, rank["tiny"]["losses"])) for rank in first)
    assert first[0]["tiny"]["losses"] != first[1]["tiny"]["losses"]  # each rank has batches of its own
    assert first[0]["none"] == {"raises": "NameError: name 'absent' is not defined"}
