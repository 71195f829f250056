"""What a bucket of gradients is at: the states of one machine, and the ways between them."""

from enum import Enum, auto


class Stage(Enum):
    """What a bucket is at, and so what it is owed."""

    __hash__ = object.__hash__  # that of Enum is a Python function, and every way is looked up

    IDLE = auto()
    """No backward that is synchronised is going on."""
    FILLING = auto()
    """Gradients of a backward are counted down."""
    FLYING = auto()
    """Started: somebody must wait for it, whatever happens."""
    SUMMED = auto()
    """Waited for, well or badly, or kept until this rank's last shard; the backward goes on."""
    FAILED = auto()
    """An exception came before it was started: the other ranks wait for it, so it must be sent with that news."""


FOLLOWING = {
    Stage.IDLE: {Stage.FILLING, Stage.FAILED},
    Stage.FILLING: {Stage.FLYING, Stage.SUMMED, Stage.FAILED},
    Stage.FLYING: {Stage.SUMMED},
    Stage.SUMMED: {Stage.IDLE, Stage.FAILED},
    Stage.FAILED: {Stage.FLYING},
}
"""The way of a bucket. A shard that is not its rank's last is summed without flying; nothing is under way then, and
whatever stage its buckets are in, a failure is news for the other ranks. `forget`, after a backward that failed, leads
back to idle from anywhere.
"""
