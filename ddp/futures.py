"""Future: a value that is waited for, as torch.futures.Future. Nothing runs in the background: waiting does it."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """Made by `Work.get_future`, by `then`, or by hand with `set_result`.

    compute: what gives the value, called once, by the first `wait`.
    """

    def __init__(self, compute: Callable[[], T] | None = None) -> None:
        self._compute = compute
        self._values: list[T] = []  # empty or one

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._values)

    def wait(self) -> T:
        """The value. Raises RuntimeError where nobody has set one and nothing computes it."""
        if not self._values:
            if self._compute is None:
                raise RuntimeError("Future: nobody has called set_result, so waiting would never end")
            self._values.append(self._compute())
            self._compute = None
        return self._values[0]

    def value(self) -> T:
        """The value of a future that is done. Raises RuntimeError before."""
        if not self._values:
            raise RuntimeError("Future: value() was called before it was done; call wait()")
        return self._values[0]

    def set_result(self, result: T) -> None:
        """Completes it. Raises RuntimeError when it has a value already."""
        if self._values:
            raise RuntimeError("Future: it has a result already")
        self._values.append(result)

    def then(self, callback: "Callable[[Future[T]], S]") -> "Future[S]":
        """The future of `callback(self)`, called when that one is waited for."""

        def compute() -> Any:
            self.wait()
            return callback(self)

        return Future(compute)
