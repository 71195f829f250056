"""Collectives on picklable objects, in torch.distributed's names.

Objects may be of any size. They are unpickled where they arrive, so ranks must trust each other. `src` and `dst` are
numbers in the world, `group_src` and `group_dst` in the group.
"""

import pickle
from typing import Any

import numpy as np

import engine
from ddp.collectives.members import members_of, number_in_group
from ddp.collectives.point_to_point import recv, send
from ddp.execution.calls import Call
from ddp.execution.collective import run
from ddp.groups.process_group import ProcessGroup


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Fills `object_list` with the objects of all ranks."""
    members = members_of("all_gather_object", group)
    if members is None:
        return
    if len(object_list) != members.size():
        raise ValueError(f"all_gather_object: expected a list of {members.size()} entries, got {len(object_list)}")
    run(members, Call("all_gather_object"))
    if members.comm is None:
        object_list[:] = [obj]
        return
    with members.meeting("all_gather_object"):
        object_list[:] = members.objects().allgather(obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
) -> None:
    """Fills `object_gather_list` of rank `dst`, by default 0, with the objects of all ranks."""
    members = members_of("gather_object", group)
    if members is None:
        return
    root = number_in_group("gather_object", members, "dst", dst, group_dst, 0)
    if members.rank == root and (object_gather_list is None or len(object_gather_list) != members.size()):
        raise ValueError(f"gather_object: rank {members.ranks[root]} must give a list of {members.size()} entries")
    run(members, Call("gather_object", (("dst", members.ranks[root]),)))
    if members.comm is None:
        gathered: list[Any] | None = [obj]
    else:
        with members.meeting("gather_object"):
            gathered = members.objects().gather(obj, root)
    if object_gather_list is not None and gathered is not None:
        object_gather_list[:] = gathered


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """The entries of every rank's list, which must be of one length, become those of rank `src`, by default 0."""
    members = members_of("broadcast_object_list", group)
    if members is None:
        return
    root = number_in_group("broadcast_object_list", members, "src", src, group_src, 0)
    run(members, Call("broadcast_object_list", (("src", members.ranks[root]), ("length", len(object_list)))))
    if members.comm is not None:
        with members.meeting("broadcast_object_list"):
            received = members.objects().bcast(object_list, root)
        if members.rank != root:
            object_list[:] = received


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
) -> None:
    """The first entry of every output list becomes the rank's entry of the input list of rank `src`, by default 0."""
    members = members_of("scatter_object_list", group)
    if members is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    root = number_in_group("scatter_object_list", members, "src", src, group_src, 0)
    objects = scatter_object_input_list if members.rank == root else None
    if members.rank == root and (objects is None or len(objects) != members.size()):
        raise ValueError(f"scatter_object_list: rank {members.ranks[root]} must give {members.size()} objects")
    run(members, Call("scatter_object_list", (("src", members.ranks[root]),)))
    if members.comm is None:
        assert objects is not None
        scatter_object_output_list[0] = objects[0]
        return
    with members.meeting("scatter_object_list"):
        scatter_object_output_list[0] = members.objects().scatter(objects, root)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: ProcessGroup | None = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Sends the objects to rank `dst`, which must call `recv_object_list`. `device` and `use_batch` change nothing."""
    members = members_of("send_object_list", group)
    if members is None:
        return
    packed = np.frombuffer(pickle.dumps(list(object_list)), np.uint8)
    send(engine.tensor([packed.size]), dst, members, _TAG, group_dst)
    send(engine.from_numpy(packed.copy()), dst, members, _TAG, group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Fills the list with the objects that rank `src`, or whoever comes first, has sent; returns the sender.

    Returns -1 on a rank that is not in the group. Raises ValueError when the lists differ in length.
    """
    members = members_of("recv_object_list", group)
    if members is None:
        return -1
    length = engine.zeros(1, dtype=engine.int64)
    source = recv(length, src, members, _TAG, group_src)
    packed = engine.empty(int(length.item()), dtype=engine.uint8)
    recv(packed, source, members, _TAG)
    objects = pickle.loads(packed.numpy().tobytes())
    if len(objects) != len(object_list):
        raise ValueError(
            f"recv_object_list: rank {source} has sent {len(objects)} objects, expected {len(object_list)}"
        )
    object_list[:] = objects
    return source


_TAG = 20_000  # of the messages above; MPI has at least 32767
