"""This process among the ranks: starting MPI, what there is to communicate with, ranks in words."""

from ddp.world.backends import (
    Backend,
    DebugLevel,
    check_backend,
    get_debug_level,
    get_default_backend_for_device,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
)
from ddp.world.bootstrap import World, abort, default_world, start_world, stop_world
from ddp.world.ranks import name_ranks

__all__ = [
    "Backend",
    "DebugLevel",
    "World",
    "abort",
    "check_backend",
    "default_world",
    "get_debug_level",
    "get_default_backend_for_device",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "name_ranks",
    "start_world",
    "stop_world",
]
