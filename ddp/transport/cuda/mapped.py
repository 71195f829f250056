"""Device memory that all ranks of a node see: each rank's block mapped into every other process by CUDA IPC.

A block must not be freed while a peer has it mapped, and a mapping must not be undone while a kernel reads through it.
So a block belongs to the registry of its transport, not to the arrays that look at it. What nobody looks at any more,
on no rank, is given back at the next collective occasion (`collect`), which is when memory is asked for or the
transport is closed. After that the block lives as long as its arrays.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

from ddp.transport.base import round_up
from engine.memory.backend import require_cupy

if TYPE_CHECKING:
    from mpi4py import MPI

# cudaIpcGetMemHandle names whole allocations; cudaMalloc packs those below this size into one, which would be mapped
# with whatever else lies there.
_GRANULE = 2 << 20
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, which CuPy has no name for


class _Hold:
    """What arrays on a rank's own memory keep alive; when the registry has let go of the memory, that itself."""

    memory: Any = None


class Block:
    """One rank's memory, and the addresses and events at which this process sees those of every rank."""

    def __init__(self, memory: Any, addresses: list[int], events: list[list[int]], own: Sequence[Any]) -> None:
        self.memory = memory
        self.own = own  # this rank's events, which must not be destroyed as long as another rank may wait for them
        self.addresses = addresses  # in rank order
        self.events = events  # of each rank, in rank order: raw handles
        self.hold: Any = None  # weakly: what the arrays on `memory` keep alive
        self.dead = False  # no array of this process looks at it


class MappedBlocks:
    """The blocks of the ranks of `comm`, which are on one node; the communicator is the caller's."""

    def __init__(self, comm: "MPI.Intracomm", rank: int) -> None:
        self._comm = comm
        self._rank = rank
        self._blocks: dict[int, Block] = {}  # by number: the same one on every rank
        self._next = 0

    def allocate(self, nbytes: int, events: Sequence[Any]) -> tuple[Block, list[Any]]:
        """Collective: zeroed memory, and one memory a rank to make arrays of: mine, and the mappings of the others'.

        events: this rank's, made with `interprocess=True`; `Block.events` has everybody's.
        RuntimeError on every rank when any of them cannot.
        """
        self.collect()
        cuda = require_cupy().cuda
        error = cuda.runtime.CUDARuntimeError
        mine: Any = None
        offer: tuple[int, bytes, list[bytes]] | str
        try:
            mine = _new_memory(round_up(max(nbytes, 1), _GRANULE))
            cuda.runtime.memsetAsync(mine.ptr, 0, nbytes, cuda.get_current_stream().ptr)
            handles = [cuda.runtime.ipcGetEventHandle(event.ptr) for event in events]
            offer = (nbytes, cuda.runtime.ipcGetMemHandle(mine.ptr), handles)
            cuda.get_current_stream().synchronize()  # before a peer can write there
        except error as cause:
            offer = f"rank {self._rank} cannot share device memory: {cause}"
        offers = self._comm.allgather(offer)
        addresses: list[int] = []
        everyones: list[list[int]] = []
        problem = ""
        if not any(isinstance(one, str) for one in offers):
            try:
                for rank, (_, handle, handles) in enumerate(offers):
                    own = rank == self._rank
                    addresses.append(mine.ptr if own else cuda.runtime.ipcOpenMemHandle(handle))
                    everyones.append(
                        [event.ptr for event in events]
                        if own
                        else [cuda.runtime.ipcOpenEventHandle(handle) for handle in handles]
                    )
            except error as cause:
                problem = f"rank {self._rank} cannot map the device memory of rank {rank}: {cause}"
        problems = [one for one in (*offers, *self._comm.allgather(problem)) if isinstance(one, str) and one]
        sizes = {one[0] for one in offers if not isinstance(one, str)}
        if not problems and len(sizes) > 1:
            problems = [f"the ranks ask for buffers of different sizes, {[one[0] for one in offers]} bytes"]
        block = Block(mine, addresses, everyones, events)
        if problems:
            self._unmap(block)
            self._comm.Barrier()  # nobody frees what another one has mapped
            raise RuntimeError(f"transport cuda_ipc: {'; '.join(problems)}")
        hold = _Hold()
        block.hold = ref(hold)
        finalize(hold, _mark_dead, block).atexit = False
        self._blocks[self._next] = block
        self._next += 1
        here = cuda.Device().id
        memories = [
            cuda.UnownedMemory(address, nbytes, hold if rank == self._rank else block, here)
            for rank, address in enumerate(addresses)
        ]
        return block, memories

    def collect(self) -> None:
        """Collective: undo the mappings of blocks that no rank looks at any more, and free them."""
        own = sorted(number for number, block in self._blocks.items() if block.dead)
        dead = set(own).intersection(*self._comm.allgather(own))
        if not dead:
            return
        require_cupy().cuda.Device().synchronize()
        self._comm.Barrier()  # no kernel of any rank is at work on them
        blocks = [self._blocks.pop(number) for number in dead]
        for block in blocks:
            self._unmap(block)
        self._comm.Barrier()  # before anybody frees

    def close(self) -> None:
        """Collective: undo all mappings. Arrays on this rank's own memory stay valid."""
        require_cupy().cuda.Device().synchronize()
        self._comm.Barrier()
        for block in self._blocks.values():
            self._unmap(block)
            hold = block.hold()
            if hold is not None:
                hold.memory = block.memory
        self._comm.Barrier()
        self._blocks.clear()

    def _unmap(self, block: Block) -> None:
        runtime = require_cupy().cuda.runtime
        for rank, address in enumerate(block.addresses):
            if rank != self._rank:
                runtime.ipcCloseMemHandle(address)
        for rank, events in enumerate(block.events):
            if rank != self._rank:
                for event in events:
                    runtime.eventDestroy(event)


def _new_memory(nbytes: int) -> Any:
    """An allocation of its own, of memory that CuPy's pool does not use where there is no other."""
    cupy = require_cupy()
    runtime = cupy.cuda.runtime
    try:
        return cupy.cuda.Memory(nbytes)
    except runtime.CUDARuntimeError as error:
        if error.status != _OUT_OF_MEMORY:
            raise
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.Memory(nbytes)


def _mark_dead(block: Block) -> None:
    block.dead = True
