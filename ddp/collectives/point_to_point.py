"""Messages between two ranks, in torch.distributed's names.

Two MPI messages make one: a label that says what the tensor is, then its bytes. A receiver whose tensor is of another
shape, dtype or layout than the sender's raises and says both. Messages of one tag from one rank to another keep their
order. `src`, `dst` and `peer` are numbers in the world, `group_src` and the like in the group.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import engine
from ddp.collectives.members import members_of, number_in_group
from ddp.collectives.wire import check_tensor, elements, layout_of, settle
from ddp.execution.calls import calling_line
from ddp.execution.messages import pieces
from ddp.execution.work import Work
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.watching.progress import Channel, channels
from engine.calls.effects import unreplayable

if TYPE_CHECKING:
    from mpi4py import MPI

_LABEL_BYTES = 512
_RANK_BYTES = 4  # of them, at the beginning: the sender's number in the group


def isend(
    tensor: engine.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Sends to rank `dst`; the tensor must not be written to before the `Work` is complete."""
    members = members_of("isend", group)
    if members is None:
        return None
    check_tensor("isend", tensor)
    to = _peer("isend", members, "dst", dst, group_dst)
    return _Sending(members, tensor, to, tag)


def irecv(
    tensor: engine.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Receives from rank `src`, or from whoever sends first. The tensor is filled when the `Work` is complete."""
    members = members_of("irecv", group)
    if members is None:
        return None
    check_tensor("irecv", tensor, written=True)
    anybody = src is None and group_src is None
    source = None if anybody else _peer("irecv", members, "src", src, group_src)
    return _Receiving(members, tensor, source, tag)


def send(
    tensor: engine.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Sends to rank `dst`; returns when the tensor may be written to again."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(
    tensor: engine.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receives from rank `src`, or from whoever sends first; returns the sender's number in the world.

    Returns -1 on a rank that is not in the group.
    """
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return -1
    work.wait()
    return work.source_rank()


class P2POp:
    """One of the messages of `batch_isend_irecv`: op is `isend` or `irecv`, peer a number in the world."""

    def __init__(
        self,
        op: Any,
        tensor: engine.Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError("Invalid ``op``. Expected ``op`` to be of type ``ddp.isend`` or ``ddp.irecv``.")
        check_tensor("P2POp", tensor)
        self.op = op
        self.tensor = tensor
        self.group = resolve(group)
        self.group_peer = number_in_group("P2POp", self.group, "peer", peer, group_peer, None)
        self.peer = self.group.ranks[self.group_peer]
        self.tag = tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts all these messages; returns their handles.

    Raises TypeError for anything but `P2POp`; ValueError for an empty list or several groups.
    """
    for operation in p2p_op_list:
        if not isinstance(operation, P2POp):
            raise TypeError(f"batch_isend_irecv: expected P2POp, got {type(operation).__name__}")
    if not p2p_op_list:
        raise ValueError("batch_isend_irecv: p2p_op_list is empty")
    if any(operation.group is not p2p_op_list[0].group for operation in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    return [
        operation.op(operation.tensor, group=operation.group, tag=operation.tag, **{_PEER[operation.op]: number})
        for operation in p2p_op_list
        for number in [operation.group_peer]
    ]


_PEER = {isend: "group_dst", irecv: "group_src"}


class _Sending(Work):
    def __init__(self, members: ProcessGroup, tensor: engine.Tensor, to: int, tag: int) -> None:
        super().__init__(f"send to rank {members.ranks[to]}", [tensor])
        comm = _needs_comm("send", members)
        self._label_bytes = _label(tensor, members.rank)
        self._values = elements(tensor).view(np.uint8)
        self._requests = [comm.Isend(part, to, tag) for part in (self._label_bytes, *pieces(self._values))]
        members.unsettled += 1
        self._channel = _channel(members, members.rank, to, tag)
        self._number = self._channel.contribute()

    def _advance(self) -> None:
        super()._advance()
        if all(request.Test() for request in self._requests):
            self._end()


class _Receiving(Work):
    def __init__(self, members: ProcessGroup, tensor: engine.Tensor, source: int | None, tag: int) -> None:
        who = "any rank" if source is None else f"rank {members.ranks[source]}"
        super().__init__(f"recv from {who}", [tensor])
        from mpi4py import MPI

        self._members = members
        self._tag = tag
        self._comm = _needs_comm("recv", members)
        self._tensor = tensor
        self._expected = _label(tensor, 0)
        self._found = bytearray(_LABEL_BYTES)
        self._values = np.empty(tensor.numel(), tensor.dtype.numpy)
        self._source = source
        self._labelled = False
        self._requests = [self._comm.Irecv(self._found, MPI.ANY_SOURCE if source is None else source, tag)]
        if source is None:
            self._channel = channels.get(f"anybody of {members.name}") or members.subchannel("anybody", anybody=True)
        else:
            self._channel = _channel(members, source, members.rank, tag)
            self._receive(source)  # at once: the next message of this sender must not be taken for these bytes
        self._number = self._channel.contribute()

    def source_rank(self) -> int:
        return -1 if self._source is None else self._members.ranks[self._source]

    def _receive(self, source: int) -> None:
        parts = pieces(self._values.view(np.uint8))
        self._requests += [self._comm.Irecv(part, source, self._tag) for part in parts]

    def _advance(self) -> None:
        super()._advance()
        if not self._labelled:
            if not self._requests[0].Test():
                return
            self._labelled = True
            sender = int.from_bytes(self._found[:_RANK_BYTES], "little")
            if self._found[_RANK_BYTES:] != self._expected[_RANK_BYTES:]:
                self._end(self._difference(sender))
                return
            if self._source is None:
                self._source = sender
                self._receive(sender)
        if all(request.Test() for request in self._requests):
            settle(self._tensor, self._values, self._tensor)
            self._members.unsettled -= 1
            self._end()

    def _difference(self, source: int) -> ValueError:
        sent, expected = (bytes(label[_RANK_BYTES:]).rstrip(b"\0").decode() for label in (self._found, self._expected))
        return ValueError(
            f"recv: rank {self._members.ranks[source]} has sent {sent}, but rank "
            f"{self._members.ranks[self._members.rank]} expects {expected} ({calling_line()}); "
            "shape, strides and dtype must agree"
        )


def _label(tensor: engine.Tensor, sender: int) -> bytearray:
    label = sender.to_bytes(_RANK_BYTES, "little") + str(layout_of(tensor)).encode()
    return bytearray(label[:_LABEL_BYTES].ljust(_LABEL_BYTES, b"\0"))


@unreplayable
def _channel(members: ProcessGroup, source: int, to: int, tag: int) -> Channel:
    """The messages of one tag from one rank to another."""
    name = f"messages {source} to {to} with tag {tag}"
    found = channels.get(f"{name} of {members.name}")
    return found or members.subchannel(name, (members.ranks[source], members.ranks[to]))


def _peer(name: str, members: ProcessGroup, what: str, rank: int | None, group_rank: int | None) -> int:
    number = number_in_group(name, members, what, rank, group_rank, None)
    if number == members.rank:
        raise ValueError(f"{name}: rank {members.ranks[number]} is this process itself; a message needs another one")
    return number


def _needs_comm(name: str, members: ProcessGroup) -> "MPI.Intracomm":
    if members.comm is None:
        raise RuntimeError(
            f"{name}: this process runs without MPI, so there is nobody to talk to; start it with ddprun"
        )
    return members.comm
