"""Collectives on tensors and objects, in torch.distributed's names.

Tensors are exchanged in logical (row-major) order, whatever their layouts.

Every function takes part on all ranks of the group in the same order. A wrong root, shape or dtype raises before
anything is sent.
"""

import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

import engine
from ddp.futures import Future
from ddp.group import ProcessGroup, resolve

if TYPE_CHECKING:
    from mpi4py import MPI


class ReduceOp(Enum):
    """How elements are combined. AVG divides the sum by the number of ranks."""

    SUM = "SUM"
    AVG = "AVG"
    PRODUCT = "PROD"
    MIN = "MIN"
    MAX = "MAX"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"


# MPI knows no half precision: those travel and are combined as float32.
_WIDER = {"float16": np.float32, "bfloat16": np.float32}


class Work:
    """A collective under way."""

    def __init__(self, tensor: engine.Tensor, request: "MPI.Request | None", finish: Callable[[], None]) -> None:
        self._tensor = tensor
        self._request = request
        self._finish: Callable[[], None] | None = finish

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._finish is not None and (self._request is None or self._request.Test()):
            self._done()
        return self._finish is None

    def get_future(self) -> "Future[list[engine.Tensor]]":
        """The future of the result: a list of one tensor."""

        def compute() -> list[engine.Tensor]:
            self.wait()
            return [self._tensor]

        return Future(compute)

    def wait(self) -> bool:
        """Blocks until the result is in the tensor."""
        if self._finish is not None:
            if self._request is not None:
                self._request.Wait()
            self._done()
        return True

    def _done(self) -> None:
        finish, self._finish = self._finish, None
        assert finish is not None
        finish()


def _array(tensor: engine.Tensor, name: str) -> np.ndarray:
    if not isinstance(tensor, engine.Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(tensor).__name__}")
    return tensor.detach().cpu().numpy()


def _buffer(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array that MPI can send: the array itself where it is one, else a copy.

    The copy is wider for half precision, and bytes for bool.
    """
    wide = _WIDER.get(array.dtype.name)
    if wide is not None:
        return array.astype(wide, order="C")
    if array.dtype == np.bool_:
        return np.ascontiguousarray(array).view(np.uint8)
    return np.ascontiguousarray(array)


def _write(tensor: engine.Tensor, values: np.ndarray) -> None:
    array = tensor.detach().numpy()
    if values is not array:
        array[...] = values.reshape(array.shape).astype(array.dtype, copy=False)
    # Even where MPI wrote into the tensor's own memory, what autograd saved of it is out of date now.
    engine.autograd.graph.increment_version(tensor)


def _check_root(name: str, group: ProcessGroup, root: int) -> int:
    if root not in group.ranks:
        raise ValueError(f"{name}: rank {root} is not in the group; expected one of {list(group.ranks)}")
    return group.ranks.index(root)


def all_reduce(
    tensor: engine.Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Combines the tensors of all ranks, in place, on every rank."""
    members = resolve(group)
    own = _array(tensor, "all_reduce")
    values = _buffer(own)
    if op is ReduceOp.AVG and own.dtype.kind in "iub":
        raise TypeError(f"all_reduce: AVG needs a floating point tensor, got {tensor.dtype}; use SUM")
    request = None
    if members.comm is not None and members.size() > 1:
        from mpi4py import MPI

        combine = getattr(MPI, "SUM" if op is ReduceOp.AVG else op.value)
        if async_op:
            request = members.comm.Iallreduce(MPI.IN_PLACE, values, combine)
        else:
            members.comm.Allreduce(MPI.IN_PLACE, values, combine)

    def finish() -> None:
        result = values / members.size() if op is ReduceOp.AVG else values
        _write(tensor, result.astype(bool) if own.dtype == np.bool_ else result)

    work = Work(tensor, request, finish)
    if async_op:
        return work
    work.wait()
    return None


def reduce(tensor: engine.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Combines the tensors of all ranks into that of rank `dst`."""
    members = resolve(group)
    root = _check_root("reduce", members, dst)
    combined = tensor.detach().clone()
    all_reduce(combined, op, members)
    if members.rank == root:
        _write(tensor, combined.numpy())


def broadcast(tensor: engine.Tensor, src: int = 0, group: ProcessGroup | None = None) -> None:
    """Every rank's tensor becomes that of rank `src`."""
    members = resolve(group)
    root = _check_root("broadcast", members, src)
    own = _array(tensor, "broadcast")
    # Bytes, so that every dtype travels exactly.
    values = np.ascontiguousarray(own)
    if members.comm is not None and members.size() > 1:
        members.comm.Bcast(values.reshape(-1).view(np.uint8), root)
    _write(tensor, values)


def all_gather(tensor_list: list[engine.Tensor], tensor: engine.Tensor, group: ProcessGroup | None = None) -> None:
    """Fills `tensor_list` with the tensors of all ranks, which must be of one shape and dtype."""
    members = resolve(group)
    if len(tensor_list) != members.size():
        raise ValueError(f"all_gather: expected a list of {members.size()} tensors, got {len(tensor_list)}")
    for rank, found in enumerate(members.exchange((tuple(tensor.shape), str(tensor.dtype)))):
        if found != (tuple(tensor.shape), str(tensor.dtype)):
            raise ValueError(
                f"all_gather: rank {rank} has {found[0]} {found[1]}, "
                f"rank {members.rank} {tuple(tensor.shape)} {tensor.dtype}"
            )
    values = np.ascontiguousarray(_array(tensor, "all_gather"))
    gathered = np.empty((members.size(), *values.shape), values.dtype)
    if members.comm is None:
        gathered[0] = values
    else:
        members.comm.Allgather(values.reshape(-1).view(np.uint8), gathered.reshape(-1).view(np.uint8))
    for target, part in zip(tensor_list, gathered, strict=True):
        _write(target, part)


def gather(
    tensor: engine.Tensor,
    gather_list: list[engine.Tensor] | None = None,
    dst: int = 0,
    group: ProcessGroup | None = None,
) -> None:
    """Fills `gather_list` of rank `dst` with the tensors of all ranks."""
    members = resolve(group)
    root = _check_root("gather", members, dst)
    if (members.rank == root) != (gather_list is not None):
        raise ValueError(f"gather: gather_list must be given on rank {dst} and only there")
    everywhere = [engine.empty_like(tensor) for _ in members.ranks]
    all_gather(everywhere, tensor, members)
    for target, source in zip(gather_list or (), everywhere, strict=False):
        target.copy_(source)


def scatter(
    tensor: engine.Tensor,
    scatter_list: list[engine.Tensor] | None = None,
    src: int = 0,
    group: ProcessGroup | None = None,
) -> None:
    """Gives each rank its entry of the list of rank `src`."""
    members = resolve(group)
    root = _check_root("scatter", members, src)
    if (members.rank == root) != (scatter_list is not None):
        raise ValueError(f"scatter: scatter_list must be given on rank {src} and only there")
    parts = None if scatter_list is None else [np.ascontiguousarray(_array(part, "scatter")) for part in scatter_list]
    received = parts[0] if members.comm is None and parts else members.comm.scatter(parts, root)  # type: ignore[union-attr]
    if received.shape != tuple(tensor.shape):
        raise ValueError(
            f"scatter: rank {members.rank} expected shape {tuple(tensor.shape)}, rank {src} sent {received.shape}"
        )
    _write(tensor, received)


def reduce_scatter(
    output: engine.Tensor,
    input_list: Sequence[engine.Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
) -> None:
    """Combines entry r of all ranks' lists into the output of rank r."""
    members = resolve(group)
    if len(input_list) != members.size():
        raise ValueError(f"reduce_scatter: expected a list of {members.size()} tensors, got {len(input_list)}")
    for rank, part in enumerate(input_list):
        combined = part.detach().clone()
        all_reduce(combined, op, members)
        if rank == members.rank:
            _write(output, combined.numpy())


def send(tensor: engine.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Sends to rank `dst`."""
    members = resolve(group)
    _needs_comm("send", members).Send(
        np.ascontiguousarray(_array(tensor, "send")).reshape(-1).view(np.uint8), _check_root("send", members, dst), tag
    )


def recv(tensor: engine.Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """Receives from rank `src` (or whoever sends first); returns the sender."""
    from mpi4py import MPI

    members = resolve(group)
    values = np.ascontiguousarray(_array(tensor, "recv"))
    status = MPI.Status()
    source = MPI.ANY_SOURCE if src is None else _check_root("recv", members, src)
    _needs_comm("recv", members).Recv(values.reshape(-1).view(np.uint8), source, tag, status)
    _write(tensor, values)
    return members.ranks[status.Get_source()]


def _needs_comm(name: str, group: ProcessGroup) -> "MPI.Intracomm":
    if group.comm is None:
        raise RuntimeError(
            f"{name}: this process runs without MPI, so there is nobody to talk to; start it with ddprun"
        )
    return group.comm


def barrier(group: ProcessGroup | None = None) -> None:
    """Returns when all ranks have called it."""
    members = resolve(group)
    if members.comm is not None:
        members.comm.Barrier()


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Fills `object_list` with the (picklable) objects of all ranks."""
    members = resolve(group)
    if len(object_list) != members.size():
        raise ValueError(f"all_gather_object: expected a list of {members.size()} entries, got {len(object_list)}")
    object_list[:] = members.exchange(obj)


def broadcast_object_list(object_list: list[Any], src: int = 0, group: ProcessGroup | None = None) -> None:
    """Every rank's list becomes that of rank `src`."""
    members = resolve(group)
    root = _check_root("broadcast_object_list", members, src)
    if members.comm is not None:
        sent = members.comm.bcast(pickle.dumps(object_list) if members.rank == root else None, root)
        object_list[:] = pickle.loads(sent)
