"""`torch.multiprocessing`: the standard library's module, and `spawn`, whose processes are those of ddprun."""

# ruff: noqa: F403 - the names are those of multiprocessing

import os
from collections.abc import Callable
from multiprocessing import *
from typing import Any


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Runs `fn(rank, *args)` in this process, which is one of the `nprocs` that ddprun started with the whole script.

    Ranks that MPI knows cannot be made by a running script, so that this is where `ddprun -n nprocs` takes over.
    Raises: RuntimeError when another number of processes was started.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != nprocs:
        raise RuntimeError(
            f"spawn: asked for {nprocs} processes, and {started} run this script; start it with `ddprun -n {nprocs}`"
        )
    fn(int(os.environ.get("RANK", "0")), *args)
