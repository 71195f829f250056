"""Memory that all ranks of a node see: one segment per rank, mapped once, freed when the last array that looks at it is
gone.

Why not `MPI.Win.Allocate_shared` for the buckets themselves: a window is freed collectively and takes its memory with
it, so a gradient that outlives the process group (`p.grad` after `destroy_process_group`, or in an exit handler) would
be a dangling pointer; a mapping is kept alive by the arrays. It also needs no `/dev/shm`, which containers limit to 64
MiB: a Linux memory file has no such limit.
"""

import contextlib
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from mpi4py import MPI

from ddp.transport.base import round_up


def map_segments(comm: MPI.Intracomm, nbytes: int) -> tuple[mmap.mmap, int]:
    """Collective: zeroed memory shared by the ranks of `comm`, which must be on one node.

    Returns the mapping and the length of a segment in bytes: rank r's segment starts at `r * length`, on a page
    boundary. Each rank reserves its own segment, so that its pages lie on the NUMA node of the rank that fills and
    reads them most. Raises RuntimeError on every rank when any of them cannot map the memory.
    """
    wanted = comm.allgather(nbytes)
    if len(set(wanted)) > 1:
        raise RuntimeError(f"transport shared: the ranks ask for buffers of different sizes, {wanted} bytes")
    length = round_up(nbytes, mmap.PAGESIZE)
    mapping, file, problem = None, None, ""
    with contextlib.ExitStack() as stack:
        if comm.rank == 0:
            try:
                file = stack.enter_context(_memory_file(length * comm.size))
            except OSError as error:
                problem = f"rank 0 cannot create a memory file: {error}"
        file = comm.bcast(file)
        if file:
            try:
                mapping = _map(file, comm.rank, comm.size, length)
            except OSError as error:
                problem = f"rank {comm.rank} cannot map {file.path}: {error}"
        problems = [text for text in comm.allgather(problem) if text]  # nobody closes before everybody has opened
    if mapping is None or problems:
        total = length * comm.size
        raise RuntimeError(f"transport shared: {total} bytes cannot be shared between ranks: {'; '.join(problems)}")
    return mapping, length


class _MemoryFile(NamedTuple):
    path: str
    device: int
    inode: int


@contextlib.contextmanager
def _memory_file(nbytes: int) -> Iterator[_MemoryFile]:
    """A file in memory; the user's other processes on this machine can open its path within the context."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("allstride")
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="allstride-")
    try:
        os.truncate(descriptor, nbytes)
        status = os.fstat(descriptor)
        yield _MemoryFile(path, status.st_dev, status.st_ino)
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            os.unlink(path)


def _map(file: _MemoryFile, rank: int, size: int, length: int) -> mmap.mmap:
    descriptor = os.open(file.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        # Where rank 0 has raised meanwhile, the number of its descriptor is that of whatever it opened next: the source
        # that its traceback quotes, a data set. That must not be written to.
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (file.device, file.inode):
            raise OSError("rank 0 has closed it")
        if sys.platform == "linux":
            # Allocates the pages now: "no space" is an error here instead of a bus error in the middle of backward.
            os.posix_fallocate(descriptor, rank * length, length)
        return mmap.mmap(descriptor, length * size)
    finally:
        os.close(descriptor)
