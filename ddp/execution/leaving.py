"""The communicators of groups that this rank has left: freed when nothing is on its way in them any more, not before.

MPI gives a freed communicator's number to the next one. A message that arrives late would come to that: Open MPI ends
the job without a word where the sender is no rank of it, and else it may be taken for another message. Only all ranks
together know whether there is such a message, and leaving a group waits for nobody. So who leaves posts one sum, and
looks at it later, when groups are made and left. Where a rank never leaves, or a message was never received, the
communicators stay to the end of MPI.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


class _Left(NamedTuple):
    request: "MPI.Request"
    sums: np.ndarray
    comms: "Sequence[MPI.Intracomm]"


_left: list[_Left] = []


def leave(comms: "Sequence[MPI.Intracomm]", under_way: int, unsettled: int) -> None:
    """This rank uses these communicators of the same ranks no more; the first is only used here from now on.

    under_way: calls of this rank that have not ended. unsettled: messages sent less those received.
    """
    from mpi4py import MPI

    free_settled()
    sums = np.array([under_way, unsettled], np.int64)
    # Kept even when the interpreter ends: MPI may write to it until its own end, which comes later.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(sums))
    _left.append(_Left(comms[0].Iallreduce(MPI.IN_PLACE, sums), sums, comms))


def free_settled() -> None:
    """Frees those which all ranks have left with nothing on its way. Waits for nobody."""
    _left[:] = [left for left in tuple(_left) if not _is_over(left)]


def _is_over(left: _Left) -> bool:
    if not left.request.Test():
        return False
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(left.sums))
    if not left.sums.any():
        for comm in left.comms:
            comm.Free()
    return True
