"""What `ddprun --elastic` was asked for, as ranks find it in their environment."""

import os

MINIMUM = "ALLSTRIDE_ELASTIC"
"""Environment variable in which `ddprun --elastic` says how few ranks may be left."""

RESERVE = "ALLSTRIDE_RESERVE"
"""Environment variable in which `ddprun --elastic MIN:N` says how many processes more wait in reserve."""

RANKS = "ALLSTRIDE_NPROC"
"""Environment variable in which `ddprun` says how many ranks there are."""

SPAWNED = "ALLSTRIDE_SPAWNED"
"""Environment variable of a process that one of the job has started, to be in reserve."""


def minimum() -> int:
    """How few ranks may be left; 0 where the job was not started to go on without some."""
    return int(os.environ.get(MINIMUM) or 0)


def in_reserve() -> int:
    """How many processes wait beside the ranks, to replace those that are lost; 0 where nobody is replaced."""
    return int(os.environ.get(RESERVE) or 0)


def refuse(what: str, instead: str) -> None:
    """Raises ValueError where the job is to outlive the loss of ranks, which `what` does not."""
    if minimum():
        raise ValueError(
            f"{what} does not outlive the loss of a rank, and this job was started to (--elastic): {instead}"
        )


def is_spawned() -> bool:
    """Whether this process was started by one of the job."""
    return SPAWNED in os.environ
