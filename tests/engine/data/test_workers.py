"""Worker processes: batches in order, seeds, errors, deaths, timeouts, and no fork once MPI is there."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import engine
from engine import data

CONTEXTS = ["fork", "forkserver", "spawn"]
SLOWER_TO_START = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)]


class Numbers(data.Dataset):
    """(i, who fetched it)."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = data.get_worker_info()
        return index, -1 if info is None else info.id


class Shards(data.IterableDataset):
    """The numbers below `size`, every worker its share."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.size, step))


class Draws(data.Dataset):
    """Random numbers of all three sources, and the seed."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[float, float, float, int]:
        info = data.get_worker_info()
        assert info is not None
        return random.random(), float(np.random.rand()), float(engine.rand(())), info.seed


class Failing(Numbers):
    """Raises for one index."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise self.kind("index five is broken")
        return index


class Dying(Numbers):
    """The process that fetches index 5 is gone."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Slow(Numbers):
    """Index 2 takes long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            time.sleep(self.seconds)
        return index


class Arrays(data.Dataset):
    """Big arrays in dictionaries."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.full((64, 64), index, np.float32), "empty": np.zeros((0, 3)), "name": str(index)}


def refuse_worker(worker: int) -> None:
    """A `worker_init_fn` that fails."""
    raise OSError(f"worker {worker} cannot start")


def wider(batch: list[Any]) -> Any:
    """A collate function that can be pickled."""
    return [each * 10 for each in batch]


@pytest.mark.parametrize("context", CONTEXTS)
def test_batches_are_those_of_one_process(context: str) -> None:
    loader = data.DataLoader(Numbers(), batch_size=5, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    assert [batch[0].tolist() for batch in batches] == [
        batch[0].tolist() for batch in data.DataLoader(Numbers(), batch_size=5)
    ]
    assert [set(batch[1].tolist()) for batch in batches] == [{0}, {1}, {0}, {1}, {0}]
    assert data.get_worker_info() is None


@pytest.mark.full
def test_shuffled_order_does_not_depend_on_workers() -> None:
    def order(workers: int) -> list[Any]:
        generator = engine.Generator().manual_seed(4)
        loader = data.DataLoader(Numbers(), 4, shuffle=True, generator=generator, num_workers=workers)
        return [batch[0].tolist() for _ in range(2) for batch in loader]

    assert order(0) == order(1) == order(3)


def test_arrays_arrive_whole_and_writable() -> None:
    for number, batch in enumerate(data.DataLoader(Arrays(), batch_size=3, num_workers=2)):
        assert batch["image"].shape == (3, 64, 64)
        assert batch["image"][:, 0, 0].tolist() == [3 * number, 3 * number + 1, 3 * number + 2]
        assert batch["empty"].shape == (3, 0, 3)
        assert batch["name"] == [str(3 * number + offset) for offset in range(3)]
        batch["image"].add_(1)


@pytest.mark.full
def test_own_collation_and_no_batches() -> None:
    assert next(iter(data.DataLoader(Slow(0), 3, num_workers=1, collate_fn=wider))) == [0, 10, 20]
    assert list(data.DataLoader(Slow(0), batch_size=None, num_workers=2)) == list(range(24))


@pytest.mark.full
def test_iterable_datasets_are_shared_out() -> None:
    loader = data.DataLoader(Shards(11), batch_size=2, num_workers=3)
    seen = [number for batch in loader for number in batch.tolist()]
    assert sorted(seen) == list(range(11))
    assert sorted(len(batch) for batch in loader) == [1, 2, 2, 2, 2, 2]
    assert [len(batch) for batch in data.DataLoader(Shards(11), batch_size=2, num_workers=3, drop_last=True)] == [2] * 5


def test_out_of_order_gives_everything() -> None:
    loader = data.DataLoader(Slow(0.5), batch_size=2, num_workers=2, in_order=False)
    batches = [batch.tolist() for batch in loader]
    assert sorted(number for batch in batches for number in batch) == list(range(24))
    assert batches[-1] != [22, 23] or batches[1] != [2, 3]


@pytest.mark.full
def test_workers_are_seeded_apart_and_again() -> None:
    def drawn(seed: int) -> list[Any]:
        generator = engine.Generator().manual_seed(seed)
        return [batch for batch in data.DataLoader(Draws(), num_workers=2, generator=generator)]  # noqa: C416

    first, again, other = drawn(1), drawn(1), drawn(2)
    for source in range(3):
        values = [float(batch[source]) for batch in first]
        assert len(set(values)) == 6
        assert values == [float(batch[source]) for batch in again]
        assert values != [float(batch[source]) for batch in other]
    seeds = [int(batch[3]) for batch in first]
    assert seeds[1] == seeds[0] + 1


def test_persistent_workers_serve_every_epoch() -> None:
    loader = data.DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    first = [batch[0].tolist() for batch in loader]
    iterator = iter(loader)
    pids = [process.pid for process in iterator.processes]
    next(iterator)
    assert [batch[0].tolist() for batch in loader] == first  # the epoch left early does not show
    assert [process.pid for process in iter(loader).processes] == pids


@pytest.mark.full
def test_persistent_workers_restart_iterable_datasets() -> None:
    loader = data.DataLoader(Shards(6), num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert sorted(int(batch) for batch in loader) == list(range(6))


@pytest.mark.parametrize(
    "kind",
    [
        ValueError,
        *(pytest.param(kind, marks=pytest.mark.full) for kind in (KeyError, StopIteration, UnicodeDecodeError)),
    ],
)
def test_errors_arrive_with_their_traceback(kind: Any) -> None:
    loader = data.DataLoader(Failing(kind), batch_size=4, num_workers=2)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    expected = {StopIteration: RuntimeError, UnicodeDecodeError: TypeError}.get(kind, kind)
    with pytest.raises(expected) as error:
        next(iterator)
    text = str(error.value)
    assert "in DataLoader worker process 1" in text
    assert "Traceback (most recent call last)" in text
    assert kind is UnicodeDecodeError or "index five is broken" in text
    assert next(iterator).tolist() == [8, 9, 10, 11]


def test_worker_init_fn_runs_and_its_error_is_reported() -> None:
    loader = data.DataLoader(Numbers(), num_workers=1, worker_init_fn=refuse_worker)
    with pytest.raises(OSError, match="worker 0 cannot start"):
        next(iter(loader))


def unsendable(batch: list[Any]) -> Any:
    return lambda: batch


@pytest.mark.full
def test_what_cannot_be_sent_back_is_reported() -> None:
    loader = data.DataLoader(Numbers(), num_workers=1, collate_fn=unsendable)
    with pytest.raises(Exception, match="in DataLoader worker process 0"):
        next(iter(loader))


@pytest.mark.parametrize("context", SLOWER_TO_START)
def test_a_killed_worker_is_reported(context: str) -> None:
    loader = data.DataLoader(Dying(), batch_size=4, num_workers=2, multiprocessing_context=context)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: SIGKILL"):
        next(iterator)


def test_timeouts() -> None:
    loader = data.DataLoader(Slow(30), batch_size=2, num_workers=1, timeout=60)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]  # the worker may take long to start on a busy machine
    loader.timeout = 2
    with pytest.raises(RuntimeError, match=r"timed out after 2 seconds"):
        next(iterator)
    for process in iterator.processes:
        process.terminate()


def test_what_cannot_be_pickled_is_told_what_to_do() -> None:
    class Local(Numbers):
        pass

    # Python 3.13 words it otherwise, 3.14 raises the other
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"Can't \w+ local object") as failure:
        iter(data.DataLoader(Local(), num_workers=1, multiprocessing_context="forkserver"))
    assert "at the top of a module" in " ".join(failure.value.__notes__)  # 3.14 has notes of its own


def test_leaving_early_ends_the_workers() -> None:
    iterator = iter(data.DataLoader(Numbers(), num_workers=2))
    next(iterator)
    processes = list(iterator.processes)
    del iterator
    for process in processes:
        process.join(10)
        assert process.exitcode == 0


SCRIPT = """
import os, sys, types
sys.modules["mpi4py.MPI"] = types.ModuleType("mpi4py.MPI")  # as after `from mpi4py import MPI`
import engine
from engine import data
from engine.data import processes

class Where(data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index, os.environ.get("PMIX_RANK", "none"), os.environ["OMP_NUM_THREADS"]

{guard}
loader = data.DataLoader(Where(), batch_size=2, num_workers=2)
print([(batch[0].tolist(), *batch[1:]) for batch in loader], processes.default_context().get_start_method())
print(os.environ["PMIX_RANK"], os.environ["OMP_NUM_THREADS"])
"""


def run_script(tmp_path: Any, guard: str, body_indent: str = "") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    head, tail = SCRIPT.split("{guard}\n")
    script.write_text(head + guard + "\n" + "\n".join(body_indent + line for line in tail.strip().splitlines()) + "\n")
    environment = {**os.environ, "PMIX_RANK": "0", "OMP_NUM_THREADS": "7", "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@pytest.mark.full
def test_under_mpi_workers_come_from_a_server_without_its_environment(tmp_path: Any) -> None:
    done = run_script(tmp_path, 'if __name__ == "__main__":', "    ")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "[([0, 1], ['none', 'none'], ['1', '1']), ([2, 3], ['none', 'none'], ['1', '1'])] forkserver"
    assert second == "0 7"  # this process keeps its own


def test_under_mpi_a_script_without_main_guard_gets_an_error_and_an_end(tmp_path: Any) -> None:
    done = run_script(tmp_path, "")
    assert done.returncode != 0
    assert "exited unexpectedly" in done.stderr
    assert "__main__" in done.stderr
