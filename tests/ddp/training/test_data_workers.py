"""DataLoader's workers of a rank: not forked where MPI runs, they know the rank nevertheless."""

import os
import subprocess
import sys

from tests.mpi_job import python_path, run_job

SCRIPT = """
import ddp, engine
from engine import data

class Shards(data.IterableDataset):
    def __iter__(self):
        worker = data.get_worker_info()
        first = ddp.get_rank() * worker.num_workers + worker.id
        return iter(range(first, 12, ddp.get_world_size() * worker.num_workers))

class Collective(data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        ddp.all_reduce(engine.ones(1))

if __name__ == "__main__":
    ddp.init_process_group()
    mine = sorted(data.DataLoader(Shards(), batch_size=None, num_workers=2))
    everybodys = [None] * ddp.get_world_size()
    ddp.all_gather_object(everybodys, mine)
    assert everybodys == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]], everybodys
    try:
        list(data.DataLoader(Collective(), num_workers=1))
    except RuntimeError as error:
        assert "worker process is no rank" in str(error)
    else:
        raise AssertionError("a worker took part in a collective")
    ddp.destroy_process_group()
    print("done")
"""


def test_workers_know_the_rank_and_take_part_in_nothing() -> None:
    done = run_job(SCRIPT, 2, timeout=120)
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stderr


WITHOUT_GUARD = """
import sys
import ddp, engine
from engine.data import DataLoader, TensorDataset

ddp.init_process_group()
loader = DataLoader(TensorDataset(engine.arange(8)), batch_size=4, num_workers=1)
print([batch[0].tolist() for batch in loader], ddp.get_world_size(), "mpi4py.MPI" in sys.modules)
ddp.destroy_process_group()
"""


def test_a_script_without_a_main_guard_in_a_world_of_one(tmp_path) -> None:
    """Nothing is to be had of MPI there, and without it workers are forked."""
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_GUARD)
    done = subprocess.run(
        [sys.executable, script],
        env={name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "ALLSTRIDE_N"))}
        | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("[[0, 1, 2, 3], [4, 5, 6, 7]] 1 False\n", "")
