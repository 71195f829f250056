"""SparseAdam, which has nothing to work on: gradients are dense here."""

from typing import Any, NoReturn


class SparseAdam:
    """Raises NotImplementedError: gradients of `Embedding` are dense, whatever its `sparse` says."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("SparseAdam: there are no sparse gradients; use engine.optim.Adam")
