"""Where PyTorch's ranks find each other: its store, which lies on rank 0, wants an address and a free port there."""

import socket
from collections.abc import MutableMapping

from ddp.world import bootstrap, torchrun_variables


def set_address(environment: MutableMapping[str, str]) -> None:
    """Collective: MASTER_ADDR and MASTER_PORT, unless somebody has chosen a port.

    That of `ddprun` and of `ddp.init_process_group` is no choice: nobody listens there, so it is the same in all jobs.
    """
    world = bootstrap.default_world()
    here = environment.get("MASTER_PORT", torchrun_variables.PORT) == torchrun_variables.PORT
    if not all(world.exchange(here)):
        return
    several_hosts = world.local_size != world.size
    free = (socket.gethostname() if several_hosts else "localhost", _free_port()) if world.rank == 0 else None
    found = world.exchange(free)[0]
    assert found is not None
    environment["MASTER_ADDR"], environment["MASTER_PORT"] = found[0], str(found[1])


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("", 0))
        return trial.getsockname()[1]
