"""Iterating a `DataLoader` with worker processes: tasks go out in turn, batches come back in order.

Each worker has a pipe of its own, so one that is killed cannot leave a lock behind: its pipe ends, and that is
reported. How a worker starts: forked as long as MPI is not running in this process (nothing needs to be pickled),
otherwise by a fork server, because MPI does not survive a fork. The server's environment has no MPI variables, so a
script without `if __name__ == "__main__":` cannot join the job a second time from a worker.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from engine.data import wire
from engine.data.worker import EXHAUSTED, RESTART, Failure, Task, run
from engine.errors.absent import provided

if TYPE_CHECKING:
    from engine.data.dataloader import DataLoader

_MPI_VARIABLES = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPIR_", "MPICH_", "I_MPI_")
_SERVER_ENVIRONMENT = {
    # one thread a worker, as in PyTorch: several workers share the cores
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # a worker imports the script, and with it mpi4py: that must not start another MPI (1 s a worker)
    "MPI4PY_RC_INITIALIZE": "0",
}
_starting_server = threading.Lock()
_STOP_WITHIN = 5.0  # seconds for workers to leave by themselves
# This process's ends of all pipes: a forked worker closes its copies, or other workers would not see theirs close.
_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _mpi_is_running() -> bool:
    return "mpi4py.MPI" in sys.modules


def default_context() -> Any:
    """The multiprocessing context that is safe here: fork, or forkserver once MPI has been imported."""
    methods = multiprocessing.get_all_start_methods()
    if "fork" in methods and not _mpi_is_running():
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    with _starting_server, _server_environment():
        # The server imports these once, its children start at once: they import the script, and it may import torch.
        hook = ["engine.torch"] if "engine.torch" in sys.modules else []
        context.set_forkserver_preload(["engine.data.worker", *hook])
        multiprocessing.forkserver.ensure_running()
    return context


@contextmanager
def _server_environment() -> Iterator[None]:
    """This process's environment as the fork server is to inherit it, put back at the end."""
    changed = {name: os.environ.get(name) for name in _SERVER_ENVIRONMENT}
    changed |= {name: value for name, value in os.environ.items() if name.startswith(_MPI_VARIABLES)}
    try:
        for name in changed:
            if name in _SERVER_ENVIRONMENT:
                os.environ[name] = _SERVER_ENVIRONMENT[name]
            else:
                del os.environ[name]
        yield
    finally:
        for name, value in changed.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class WorkerIterator(Iterator[Any]):
    """One epoch (with `persistent_workers` several, see `restart`) over the batches of worker processes.

    Raises, from `next`: what a worker raised, with its traceback; RuntimeError for a worker that died or timed out.
    """

    def __init__(self, loader: "DataLoader", base_seed: int) -> None:
        self.loader = loader
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        context = loader.multiprocessing_context or default_context()
        forked = context.get_start_method() == "fork"
        task = Task(
            loader.dataset,
            loader.batched,
            loader.collate_fn,
            loader.drop_last,
            loader.worker_init_fn,
            base_seed,
            loader.num_workers,
            None if forked else provided("engine.data.worker.first"),
        )
        for worker in range(loader.num_workers):
            ours, theirs = context.Pipe()
            _open.add(ours)
            inherited = list(_open) if forked else []
            process = context.Process(target=run, args=(worker, theirs, inherited, task), daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                error.add_note(
                    "DataLoader: workers are not forked once MPI runs, so dataset, collate_fn and worker_init_fn are "
                    "pickled: define them at the top of a module (no lambda, no class inside of a function). Without "
                    "pickling: num_workers=0, or multiprocessing_context='fork' where your MPI stands a fork."
                )
                raise
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        self._begin()

    def restart(self) -> None:
        """Begins a new epoch with the same workers."""
        self.indices: Iterator[Any] = iter(
            []
        )  # an epoch that was left early gets no more tasks, its answers are waited for
        while self.sent > self.received:
            self._receive()
        for worker in range(len(self.connections)):
            self._tell(worker, RESTART)
        self._begin()

    def _begin(self) -> None:
        assert self.loader.epoch is not None
        self.epoch = self.loader.epoch
        self.indices = self.epoch.indices()
        self.lost: set[int] = set()
        self.turns = cycle(range(len(self.processes)))
        self.active = [True] * len(self.processes)
        self.sent = self.received = self.wanted = 0
        self.owners: dict[int, int] = {}
        self.arrived: dict[int, Any] = {}
        ahead = self.loader.prefetch_factor or 0
        for _ in range(ahead * len(self.processes)):
            self._send_next()

    def _send_next(self) -> None:
        """Gives the next indices, if there are any, to the next worker that is not exhausted."""
        if not any(self.active):
            return
        try:
            indices = next(self.indices)
        except StopIteration:
            return
        worker = next(turn for turn in self.turns if self.active[turn])
        self.owners[self.sent] = worker
        self._tell(worker, (self.sent, indices))
        self.sent += 1

    def _tell(self, worker: int, message: Any) -> None:
        try:
            self.connections[worker].send(message)
        except OSError as error:
            raise self._death_of(worker) from error

    def __next__(self) -> Any:
        while self.wanted < self.sent:
            number = self._available()
            if number is None:
                self._receive()
                continue
            answer = self.arrived.pop(number)
            del self.owners[number]
            if self.loader.in_order:
                self.wanted += 1
            elif not self.owners:
                self.wanted = self.sent
            if isinstance(answer, str) and answer == EXHAUSTED:
                continue
            self.epoch.give()
            self._send_next()
            if isinstance(answer, Failure):
                answer.reraise()
            return answer
        if not self.loader.persistent_workers:
            self.shut_down()
        self.epoch.finished = True
        raise StopIteration

    def _available(self) -> int | None:
        """The number of an answer that can be given out now."""
        if self.loader.in_order:
            return self.wanted if self.wanted in self.arrived else None
        return next(iter(self.arrived), None)

    def _receive(self) -> None:
        """Waits for one answer."""
        if self.loader.in_order and self.owners.get(self.wanted) in self.lost:
            raise self._death_of(self.owners[self.wanted])
        workers = set(self.owners.values()) - self.lost
        waiting = {self.connections[worker]: worker for worker in workers}
        ready = wait(list(waiting), self.loader.timeout or None)
        if not ready:
            raise RuntimeError(f"DataLoader timed out after {self.loader.timeout} seconds")
        connection: Any = ready[0]
        worker = waiting[connection]
        try:
            number, answer = wire.receive(connection)
        except (EOFError, OSError) as error:
            if self.loader.in_order and self.owners.get(self.wanted) != worker:
                self.lost.add(worker)  # batches of other workers come before the one that is lost
                return
            raise self._death_of(worker) from error
        self.received += 1
        self.arrived[number] = answer
        if isinstance(answer, str) and answer == EXHAUSTED and self.active[worker]:
            self.active[worker] = False
            self._send_next()

    def _death_of(self, worker: int) -> RuntimeError:
        """The error that says how a worker ended."""
        process = self.processes[worker]
        process.join(_STOP_WITHIN)
        code = process.exitcode
        self.shut_down()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            advice = "; the system may have run out of memory" if -code == signal.SIGKILL else ""
            return RuntimeError(f"DataLoader worker (pid {process.pid}) is killed by signal: {name}{advice}.")
        return RuntimeError(
            f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly with exit code {code}; its traceback is "
            "above. Where workers are not forked, the dataset has to be picklable and the script needs `if "
            "__name__ == '__main__':`."
        )

    def shut_down(self) -> None:
        """Ends the workers: they leave when their pipe closes, or are terminated."""
        for connection in self.connections:
            connection.close()
        deadline = time.monotonic() + _STOP_WITHIN
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.terminate()
                process.join(_STOP_WITHIN)
        self.connections, self.processes = [], []
        self.sent = self.wanted = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __del__(self) -> None:
        if getattr(self, "processes", None):
            self.shut_down()
