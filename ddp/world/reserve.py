"""What a process in reserve does until it is wanted; called by what `ddprun` runs on each rank (launch/rank.py)."""

from collections.abc import Callable, MutableMapping

from ddp import losses
from ddp.losses import reserve
from ddp.world import bootstrap


def stand_by(environment: MutableMapping[str, str], joined: Callable[[], None]) -> None:
    """Returns when this process is to replace a rank that was lost; the environment is that of the rank then.

    joined: called when it has become one.
    """
    MPI = bootstrap.load_started_mpi(environment)
    number = reserve.stand_by(MPI.COMM_WORLD, joined)
    environment["OMPI_COMM_WORLD_RANK"] = str(number)  # by which ddprun knows it
    environment["RANK"] = environment["LOCAL_RANK"] = str(losses.outside())
