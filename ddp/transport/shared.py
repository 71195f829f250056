"""Sums inside one node, through memory that all its ranks see: no message is sent.

Rank r sums slice r of every rank's array in rank order, divides once, and writes the sums to slice r of every rank's
array. Two numbers per rank and buffer, each on its own cache line, order this without a barrier; both only ever grow:

* `filled[q] = k`: rank q has filled its array for round k, and will not touch it until the round is over for it;
* `summed[r] = k`: rank r has read slice r of every array, and the headers, of round k, and has written the results.

Rank r sums when `filled[q] >= k` for all q. The round is over for a rank when it has seen `summed[r] >= k` for all r.

Why a buffer can be used again at once, without a barrier, although ranks leave a round at different times. Let rank q
be fast: it has left round k and fills its array for round k + 1 while rank s is still inside round k.

* q destroys nothing that s must still read: q left only after `summed[s] >= k`, and s reads other ranks' arrays and
  headers only before it sets that. What s may still do in round k is look at `summed`, which q never lowers, and read
  the sum of the headers, which rank 0 writes before it sets `summed` and again only after `filled[s] >= k + 1`.
* q's results of round k + 1 cannot hit s's array early: q sums only after `filled[s] >= k + 1`, which s sets after it
  has left round k.
* nobody writes to q's array while q fills it: results of round k were all written before q left, those of round k + 1
  wait for `filled[q] = k + 1`.
* the headers' sum has a place of its own, and is copied over a rank's header only when the round is over for it, hence
  after everybody has read it.

A small buffer goes another way, with `filled` alone: a rank copies its header and array to one of two places, which
take turns, and says so; it reads those of all ranks as soon as they are there, and sums all elements itself. It writes
to a place again two rounds later. Then it has seen that each rank had filled for the round between, and that rank did
so after it had read this one.

Memory order between data and the numbers that announce it: `ddp.transport.fence`.
"""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ddp import losses
from ddp.transport.base import accumulator_dtype, closed, in_words, slice_bounds, stopped
from ddp.transport.exchange import SUMMED
from ddp.transport.fence import Fence
from ddp.transport.headers import weights
from ddp.transport.nodes import count_cores, count_nodes
from ddp.transport.order import rank_order, tree_order
from ddp.transport.pausing import SPINS, pause
from ddp.transport.shared_buffer import DONE, FILLING, IDLE, LEAVING, SUMMING, SharedBuffer
from ddp.transport.summing import Summation, check_divisor, sum_headers
from ddp.transport.under_way import LOOKS_BETWEEN, advance_all
from engine.sharing.kernels import compiled_wait

# How often to look for the others' small buffers in the compiled call that sums them: about 2 µs, in which no other
# thread of this process goes on.
_LOOKS = 40

# The same in a call beside which they do; and how many looks in Python take as long. A rank that waits so takes nothing
# from the one it waits for where both are threads of one core.
_GLANCES = 512
_GLANCES_TAKE = 8

# Header and array of a small buffer, of all ranks together. Sums of two ranks' 1 KiB take 1.4 µs this way and 5.3 the
# other, 8 KiB 2.9 and 5.7, 16 KiB 4.9 and 5.9, 20 KiB as long (Xeon with AMX).
_SMALL_BYTES = 1 << 15


class SharedTransport:
    """See `ddp.transport.base.Transport`. `comm`: ranks of one node; it is duplicated.

    Raises RuntimeError on every rank when they are on several nodes, or cannot map each other's memory.
    """

    name = "shared"
    progress = "polling"

    def __init__(self, comm: MPI.Intracomm) -> None:
        if (nodes := count_nodes(comm)) > 1:
            raise RuntimeError(
                f"transport shared: its ranks must be on one node, got {comm.size} ranks on {nodes} nodes; use "
                "'hierarchical' or 'mpi'"
            )
        self.rank = comm.rank
        self.size = comm.size
        self._enter(comm.Dup())

    def _enter(self, node: MPI.Intracomm) -> None:
        """Collective over the node, whose communicator is now this transport's own."""
        self._node = node
        self._local = node.rank
        self._fence_window = Fence()
        self._fence = self._fence_window.sync
        self._in_flight: list[Any] = []  # in the order of start
        self._closed = False
        self._stopped = ""  # by which exception
        crowded = node.size > count_cores(node)
        self._spins, self._looks = (0, 0) if crowded else (SPINS, _LOOKS)
        self._wait_for = compiled_wait()
        if (watch := losses.watching()) is not None:
            watch.interrupted.add(self)

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> SharedBuffer:
        accumulator_dtype(dtype)
        order = rank_order(self.size) if shards is None else tree_order(shards, self.size)
        together = self.size * (8 * header + count * np.dtype(dtype).itemsize)
        small = shards is None and 0 < together <= _SMALL_BYTES
        buffer = SharedBuffer(self._node, count, np.dtype(dtype), header, order, 0, small)
        if small:
            return buffer
        bounds = slice_bounds(count, buffer.array.dtype.itemsize, self.size)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        addends = [part[mine] for parts in buffer.parts for part in parts]
        merges = None if shards is None else order.merges
        buffer.summation = Summation(addends, [array[mine] for array in buffer.arrays], merges)
        return buffer

    def start(self, buffer: Any, divisor: float | None = 1.0) -> None:
        if buffer.stage != IDLE or self._closed or self._stopped:
            raise self._refusal()
        if divisor != buffer.divisor:
            check_divisor(buffer.array.dtype, divisor)
            buffer.divisor = divisor
        buffer.round = number = buffer.round + 1
        small = buffer.exchange
        if small is not None:  # before anything else: the others wait for this
            small.lay_down(number)
        buffer.stage = FILLING
        self._in_flight.append(buffer)
        if small is not None:  # the others have just begun, too, and nobody waits for more of this rank
            return
        buffer.cursor = 0
        self._fence()
        buffer.filled[self._local][0] = number
        self.poll()

    def _refusal(self) -> RuntimeError:
        if self._stopped:
            return stopped(self.name, self._stopped)
        if self._closed:
            return closed(self.name)
        return RuntimeError(f"transport {self.name}: the buffer was started twice; wait for it first")

    def poll(self) -> None:
        if self._stopped:
            raise stopped(self.name, self._stopped)
        try:
            self._advance_all()
        except BaseException as error:
            self._stopped = in_words(error)
            raise

    def _advance_all(self) -> None:
        for buffer in tuple(self._in_flight):
            self._advance(buffer)

    def wait(self, buffer: Any) -> None:
        if buffer.exchange is not None and buffer.stage == FILLING and not self._stopped:
            try:
                found = buffer.exchange.sum(buffer.round, buffer.divisor or 0.0, self._looks)
                if found == SUMMED or buffer.is_completed(found):
                    self._in_flight.remove(buffer)
                    buffer.stage = IDLE
                    return
            except BaseException as error:
                self._stopped = in_words(error)
                raise
        elif buffer.stage == IDLE:
            if self._stopped:
                raise stopped(self.name, self._stopped)
            raise RuntimeError(f"transport {self.name}: wait for a buffer that was not started")
        looks = 0
        while buffer.stage != DONE:
            if looks < self._spins and self._looks:
                self._wait_for(buffer.awaited_at(), buffer.round, _GLANCES, 0)
                looks += _GLANCES_TAKE
            else:
                pause(looks, self._spins)
                looks += 1
            self.poll()  # every buffer: another rank may wait for my slice of one that I do not wait for yet
            if looks % LOOKS_BETWEEN == 0:
                advance_all()
        buffer.stage = IDLE

    def is_done(self, buffer: Any) -> bool:
        return bool(buffer.stage == DONE)

    def independent(self) -> "SharedTransport":
        return self  # each buffer has its own numbers: no order among buffers is assumed

    def interrupt(self, cause: str) -> None:
        """From another thread: nothing that is under way will end."""
        self._stopped = cause

    def close(self) -> None:
        self._closed = True
        if not self._in_flight and not self._stopped:
            self._leave()

    def _leave(self) -> None:
        self._fence_window.close()
        self._node.Free()

    def _advance(self, buffer: Any) -> None:
        """Do what the numbers of the other ranks allow, and no more."""
        if buffer.exchange is not None:
            if buffer.stage == FILLING:
                found = buffer.exchange.sum(buffer.round, buffer.divisor or 0.0, 0)
                if found == SUMMED or buffer.is_completed(found):
                    self._end(buffer)
            return
        if buffer.stage == FILLING:
            if not _reached(buffer, buffer.filled):
                return
            self._fence()
            buffer.stage = SUMMING
        if buffer.stage == SUMMING:
            if not self._sum(buffer):
                return
            self._fence()
            buffer.summed[self._local][0] = buffer.round
            buffer.stage = LEAVING
            buffer.cursor = 0
        if buffer.stage == LEAVING and _reached(buffer, buffer.summed):
            self._fence()
            if buffer.total.size:
                buffer.header[:] = buffer.total
            self._end(buffer)

    def _end(self, buffer: Any) -> None:
        buffer.stage = DONE
        self._in_flight.remove(buffer)

    def _sum(self, buffer: Any) -> bool:
        """This rank's part; whether it is complete, so that `summed` can be set."""
        if buffer.total.size and self._local == 0:
            sum_headers(buffer.headers, out=buffer.total)
        if buffer.divisor is None:
            buffer.summation.average(weights(buffer.headers))
        else:
            buffer.summation.run(buffer.divisor)
        return True


def _reached(buffer: SharedBuffer, numbers: list[memoryview]) -> bool:
    """Whether every rank's number has reached this round. Ranks once seen there are not looked at again."""
    while buffer.cursor < len(numbers):
        if numbers[buffer.cursor][0] < buffer.round:
            return False
        buffer.cursor += 1
    return True
