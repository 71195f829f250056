"""A process group: ranks that communicate with each other, and what they communicate over."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ddp.execution.lines import Lines
from ddp.groups.methods import Methods
from ddp.transport import CUDA_ONLY, Transport, choose_transport, time_messages
from ddp.transport.timing import SumTimes
from ddp.watching.progress import DEFAULT_TIMEOUT, Channel, Meeting, channels
from engine.calls.effects import unreplayable

if TYPE_CHECKING:
    from mpi4py import MPI
    from mpi4py.util import pkl5

    from engine import device

T = TypeVar("T")


class Rank(int):
    """A rank's number that can be called, too: in PyTorch `group.rank()` gives it."""

    def __call__(self) -> int:
        return int(self)


@dataclass(slots=True, eq=False)
class ProcessGroup(Methods):
    """Ranks that communicate with each other. `ranks` are their numbers in the world, in the order of the group.

    timeout: seconds that a rank waits for the others before the job is ended (`ddp.watching.watchdog`). name: equal on
    all its ranks. lines: what its collectives run over. Making one is collective.
    """

    rank: int
    ranks: tuple[int, ...]
    comm: "MPI.Intracomm | None"
    transport_name: str | None = None
    _transport: Transport | None = field(default=None, repr=False)
    _sum_times: SumTimes | None = field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT
    name: str = "a group"
    channel: Channel = field(init=False, repr=False)
    lines: Lines | None = field(init=False, default=None, repr=False)
    _on_devices: "dict[device, Transport]" = field(init=False, default_factory=dict, repr=False)
    _rooms: dict[tuple[Any, ...], Any] = field(init=False, default_factory=dict, repr=False)
    refused: list[str] = field(init=False, default_factory=list, repr=False)
    """Why transports of device memory that would come before the chosen one do not serve."""
    _meetings: dict[str, Meeting] = field(init=False, default_factory=dict, repr=False)
    unsettled: int = field(init=False, default=0, repr=False)
    """Messages that this rank has sent over its communicator, less those that it has received."""
    models: int = field(init=False, default=0, repr=False)
    """How many DistributedDataParallel there have been: their channels are named by it."""
    barriers: int = field(init=False, default=0, repr=False)
    """How many `monitored_barrier` there have been."""
    subgroups: "list[ProcessGroup]" = field(init=False, default_factory=list, repr=False)
    """Of the default group: those made by `new_group` that this rank is in; their communicators are ours."""
    made: dict[tuple[int, ...], int] = field(init=False, default_factory=dict, repr=False)
    """Of the default group: how many groups of these ranks there have been."""
    last_without: tuple[int, ...] = field(init=False, default=(), repr=False)
    """Of the default group: the ranks of the last group that was made without this one."""

    def __post_init__(self) -> None:
        self.rank = Rank(self.rank)
        self.channel = Channel(self.name, self.ranks, self.timeout)
        if self.comm is not None and self.size() > 1:
            with self.meeting("the making of a process group"):
                self.lines = Lines(self)

    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def transport(self) -> Transport:
        """How gradients are summed. The first access is collective: the transport is chosen and checked then."""
        if self._transport is None:
            with self.meeting("the choice of a transport"):
                alone = self.comm is None and self.size() > 1  # until it has come to the others
                name = None if alone or self.transport_name in CUDA_ONLY else self.transport_name
                self._transport = choose_transport(self.comm, name)
                self._sum_times = time_messages(self._transport, self.comm)
        return self._transport

    @property
    def sum_times(self) -> SumTimes | None:
        """What a sum takes in host memory by messages; None in shared memory. Collective like `transport`."""
        return self._sum_times if self.transport else None

    def transport_on(self, where: "device") -> Transport:
        """How gradients on a device are summed. Collective where the group has not summed on that device before."""
        if where.type == "cpu":
            return self.transport
        if where not in self._on_devices:
            from ddp.transport.cuda import choose_cuda_transport

            with self.meeting("the choice of a transport for device memory"):
                chosen, self.refused = choose_cuda_transport(self.comm, where, self.transport_name)
                self._on_devices[where] = chosen
        return self._on_devices[where]

    @unreplayable
    def exchange(self, value: T) -> list[T]:
        """Collective: every rank's (small, picklable) value, in rank order."""
        if self.comm is None:
            return [value]
        with self.meeting("an exchange of objects"):
            return self.comm.allgather(value)

    def objects(self) -> "pkl5.Intracomm":
        """The communicator for pickled objects of any size: MPI by itself counts their bytes in 31 bits.

        Only where there is MPI. Small objects take a message more: `exchange` is for those.
        """
        from mpi4py import MPI

        assert self.comm is not None
        if not isinstance(self.comm, MPI.Intracomm):
            return self.comm  # of `ddp.testing`, which counts in Python
        from mpi4py.util import pkl5

        return pkl5.Intracomm(self.comm)

    def meeting(self, label: str) -> Meeting:
        """Around a blocking call in which all ranks of the group meet: so the watchdog knows what is waited for.

        Nothing compares these calls between the ranks, so each kind is counted by itself: a rank in another one is late
        then, and not taken to be in the same.
        """
        if label not in self._meetings:
            self._meetings[label] = Meeting(self.subchannel(label), label)
        return self._meetings[label]

    def subchannel(self, name: str, ranks: tuple[int, ...] | None = None, anybody: bool = False) -> Channel:
        """Meetings that have an order of their own, of these ranks (numbers in the world) or all of the group."""
        return Channel(f"{name} of {self.name}", self.ranks if ranks is None else ranks, self.timeout, anybody)

    def device_room(self, name: str, where: "device", count: int, dtype: Any, header: int = 0) -> Any:
        """Collective: a buffer of the transport of device memory, kept for the next time it is asked for by this name.

        So the steps of a training loop allocate nothing.
        """
        key = name, where, count, np.dtype(dtype)
        if key not in self._rooms:
            transport = self.transport_on(where)
            with self.meeting("the making of memory on a device"):
                self._rooms[key] = transport.allocate(count, dtype, header)
        return self._rooms[key]

    def renew(self, comm: "MPI.Intracomm") -> None:
        """Collective over `comm`, the ranks that are left: the group is theirs. What it had is abandoned."""
        if self.lines is not None:
            self.lines.abandon()
            self.lines = None
        self._transport = None
        self._meetings.clear()
        self.unsettled = 0
        self.rank, self.ranks, self.comm = Rank(comm.rank), tuple(range(comm.size)), comm
        self.__post_init__()

    def close(self) -> None:
        """Collective: gives back what it has taken, its communicator too (`ddp.execution.leaving`)."""
        with self.meeting("destroy_process_group"):
            if self._transport is not None:
                self._transport.close()
                self._transport = None
            for transport in self._on_devices.values():
                transport.close()
            self._on_devices.clear()
            self._rooms.clear()
            if self.lines is not None:
                self.lines.leave()
                self.lines = None
            elif self.comm is not None and self.size() == 1:
                self.comm.Free()
                self.comm = None

    def forget_channels(self) -> None:
        """What this rank contributed counts no more: a later group may have the same name."""
        for name in [name for name in channels if name.endswith(self.name)]:
            del channels[name]
