"""When a tensor was last given other memory, or its memory another layout.

An optimizer looks here in place of at each of its parameters: `Tensor._take_memory` is the only way to it.
"""


class Mark:
    """`last`: another object since each change of something, made after it. Nobody makes that object again, whatever
    threads do, as long as who compares it holds it.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = object()


exchanged = Mark()
