"""A thread for as long as a block lasts."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def meanwhile(run: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """In the block a thread of this name runs `run`, whose event is set at the block's end: soon after, it returns."""
    over = threading.Event()
    thread = threading.Thread(target=run, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
