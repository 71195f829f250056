"""Several ranks in one process, for unit tests: each is a thread, and nothing of MPI need be installed.

    from ddp.testing import on_ranks, run_ranks

    def test_mean():
        def body():
            tensor = engine.tensor([float(ddp.get_rank())])
            ddp.all_reduce(tensor, ddp.ReduceOp.AVG)
            return tensor.item()

        assert run_ranks(3, body) == [1.0, 1.0, 1.0]

    @on_ranks(1, 2, 4)  # the same under pytest: the body runs on every rank, fixtures are shared by them
    def test_training(): ...

Inside, `init_process_group` was called: `ddp.get_rank()`, collectives, messages, objects, subgroups,
DistributedDataParallel and what builds on it are those of a job. **One rank runs at a time**, until it has to wait for
another one; then the next goes on. So every run takes the same course, ranks that wait for each other are found at
once, and the default random generator of each rank is its own. What is not here: shared memory between ranks (gradients
go over the transports `loopback` and `mpi`), processes that die, timings (`ddp.forecast.virtual_time` has virtual
ones), the watchdog. Compare MultiThreadedTestCase in
torch/testing/_internal/distributed/multi_threaded_pg.py.
"""

from ddp.testing.running import on_ranks as on_ranks
from ddp.testing.running import run_ranks as run_ranks

__all__ = ["on_ranks", "run_ranks"]
