"""Future: a value that is waited for, as torch.futures.Future. Nothing runs in the background: waiting does it."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """Made by `Work.get_future`, by `then`, or by hand with `set_result`.

    compute: what gives the value, called once, by the first `wait`. ready: whether that would not block; without it
    nobody knows before.
    """

    def __init__(self, compute: Callable[[], T] | None = None, ready: Callable[[], bool] | None = None) -> None:
        self._compute = compute
        self._ready = ready
        self._error: BaseException | None = None
        self._values: list[T] = []  # empty or one
        self._callbacks: list[Callable[[Future[T]], None]] = []

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._over() and self._ready is not None and self._ready():
            self._settle()
        return self._over()

    def wait(self) -> T:
        """The value. Raises the error with which it ended; RuntimeError where nobody has set a value and nothing
        computes it.
        """
        if not self._over():
            if self._compute is None:
                raise RuntimeError("Future: nobody has called set_result, so waiting would never end")
            self._settle()
        if self._error is not None:
            raise self._error
        return self._values[0]

    def value(self) -> T:
        """The value of a future that is done. Raises RuntimeError before, and the error with which it ended."""
        if not self._over():
            raise RuntimeError("Future: value() was called before it was done; call wait()")
        return self.wait()

    def set_result(self, result: T) -> None:
        """Completes it. Raises RuntimeError when it is done already."""
        self._check_open()
        self._values.append(result)
        self._call_back()

    def set_exception(self, error: BaseException) -> None:
        """Ends it with an error, which `wait` raises. Raises RuntimeError when it is done already."""
        self._check_open()
        self._error = error
        self._call_back()

    def add_done_callback(self, callback: "Callable[[Future[T]], None]") -> None:
        """Calls `callback(self)` when it is done, which somebody must wait or ask for; at once where it is."""
        self._callbacks.append(callback)
        if self._over():
            self._call_back()

    def then(self, callback: "Callable[[Future[T]], S]") -> "Future[S]":
        """The future of `callback(self)`, called when that one is waited for."""

        def compute() -> Any:
            self.wait()
            return callback(self)

        return Future(compute, self.done)

    def _over(self) -> bool:
        return bool(self._values) or self._error is not None

    def _check_open(self) -> None:
        if self._over():
            raise RuntimeError("Future: it has a result already")

    def _settle(self) -> None:
        """Computes the value, or takes the error that comes instead."""
        compute, self._compute = self._compute, None
        assert compute is not None
        try:
            self._values.append(compute())
        except Exception as error:  # noqa: BLE001 - whatever it is, `wait` raises it
            self._error = error
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def wait_all(futures: "Sequence[Future]") -> list[Any]:
    """What each gives, in their order; blocks until all are there. Source: torch.futures.wait_all."""
    return [future.wait() for future in futures]


def collect_all(futures: "Sequence[Future]") -> "Future[list[Future]]":
    """The future of the futures themselves, done when all are; ends with the first error of theirs. Source:
    torch.futures.collect_all.
    """
    kept = list(futures)

    def compute() -> "list[Future]":
        wait_all(kept)
        return kept

    return Future(compute, lambda: all(future.done() for future in kept))
