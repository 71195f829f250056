"""Who shares a node, and how many cores its ranks have: asked once, when a transport is made."""

import os

from mpi4py import MPI


def count_nodes(comm: MPI.Intracomm) -> int:
    """Collective: on how many nodes (sets of ranks that can share memory) the ranks of `comm` are."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    nodes = sum(comm.allgather(node.rank == 0))
    node.Free()
    return nodes


def count_cores(comm: MPI.Intracomm) -> int:
    """Collective: on how many distinct cores the ranks of `comm`, all on one node, may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(set().union(*comm.allgather(os.sched_getaffinity(0))))
    return os.cpu_count() or 1
