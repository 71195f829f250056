"""Worker processes: fetch batches and send them back, until the pipe closes.

A worker receives (number, indices) and answers (number, batch), `Failure` or `EXHAUSTED` in place of the batch. A
thread of its own sends, so that the next batch is fetched while the last one waits to be read.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from engine.data import wire
from engine.data.fetch import Fetcher
from engine.data.seeding import seed_everything
from engine.errors import tracebacks

EXHAUSTED = "exhausted"  # the dataset of this worker has no more samples
RESTART = "restart"  # a new epoch begins: iterate the dataset again


@dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info` gives in a worker: its number, how many there are, its seed, its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class Failure(NamedTuple):
    """An exception of a worker, as it can be raised again in the parent."""

    kind: type[BaseException]
    message: str

    def reraise(self) -> None:
        """Raises the same type with the worker's traceback as text, RuntimeError where the type takes no text."""
        if self.kind is KeyError:
            raise KeyError(_Text(self.message))
        try:
            exception = self.kind(self.message)
        except Exception:  # noqa: BLE001 - a user's exception class may refuse in any way; the text is what matters
            raise RuntimeError(self.message) from None
        raise exception


class _Text(str):
    """A message that KeyError prints as it is instead of quoting its line breaks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def failure_of(error: BaseException, worker: int) -> Failure:
    """The failure that stands for `error` of a worker, with its traceback as text."""
    trace = "".join(tracebacks.format_exception(error))
    kind = type(error) if isinstance(error, Exception) else RuntimeError
    return Failure(kind, f"Caught {type(error).__name__} in DataLoader worker process {worker}.\nOriginal {trace}")


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a `DataLoader`, who it is; None in the main process."""
    return _info


class Task(NamedTuple):
    """All a worker needs; pickled where it is not forked."""

    dataset: Any
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], Any] | None
    base_seed: int
    num_workers: int
    first: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    """A function and its arguments: what a package above has a worker do that is not forked, and so knows nothing."""


def run(worker: int, connection: Connection, inherited: list[Connection], task: Task) -> None:
    """Main function of a worker process. `inherited` are ends of pipes that a forked worker must not keep open."""
    global _info
    for other in inherited:
        other.close()
    if task.first is not None:
        function, arguments = task.first
        function(*arguments)
    seed = task.base_seed + worker
    seed_everything(seed)
    _info = WorkerInfo(worker, task.num_workers, seed, task.dataset)
    outbox: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
    sender = threading.Thread(target=_send_all, args=(worker, connection, outbox), daemon=True)
    sender.start()
    try:
        _serve(worker, connection, outbox, task)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the parent is gone, or on its way out
    finally:
        outbox.put(None)
    sender.join(1.0)


def _serve(worker: int, connection: Connection, outbox: "queue.SimpleQueue[Any]", task: Task) -> None:
    fetcher: Fetcher | None = None
    exhausted = False
    broken: Failure | None = None
    try:
        if task.worker_init_fn is not None:
            task.worker_init_fn(worker)
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        broken = failure_of(error, worker)
    while True:
        message = connection.recv()
        if message == RESTART:
            fetcher, exhausted = None, False
            continue
        number, indices = message
        answer: Any = broken
        if broken is None and exhausted:
            answer = EXHAUSTED
        elif broken is None:
            try:
                fetcher = fetcher or Fetcher(task.dataset, task.batched, task.collate_fn, task.drop_last)
                answer = fetcher.fetch(indices)
            except StopIteration as error:
                if fetcher is None or fetcher.samples is None:
                    # raised again as it is, it would end the caller's loop without a word
                    answer = Failure(RuntimeError, failure_of(error, worker).message)
                else:
                    answer, exhausted = EXHAUSTED, True
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = failure_of(error, worker)
        outbox.put((number, answer))


def _send_all(worker: int, connection: Connection, outbox: "queue.SimpleQueue[Any]") -> None:
    while (message := outbox.get()) is not None:
        try:
            data, buffers = wire.packed(message)
        except Exception as error:  # noqa: BLE001 - a batch that cannot be pickled is reported like any other error
            data, buffers = wire.packed((message[0], failure_of(error, worker)))
        try:
            wire.send(connection, data, buffers)
        except OSError:
            return  # the parent has closed the pipe
