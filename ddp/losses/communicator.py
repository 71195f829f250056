"""`Communicator`: one of a world whose ranks may be lost; so is every communicator that is made from it."""

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ddp.losses.options import in_reserve

if TYPE_CHECKING:
    from ddp.losses.watch import Watch


class Communicator(MPI.Intracomm):
    """As any other, and known to a `ddp.losses.watch.Watch`, which revokes it when a rank is lost."""

    watch: "Watch"

    def Dup(self, info: Any = MPI.INFO_NULL) -> Any:
        return self._watched(MPI.Intracomm(self).Dup(info))

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        return self._watched(MPI.Intracomm(self).Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Any = MPI.INFO_NULL) -> MPI.Intracomm:
        if in_reserve() and split_type == MPI.COMM_TYPE_SHARED:
            return self.Split(0, key)  # of processes that were started later Open MPI does not know that they are here
        return self._watched(MPI.Intracomm(self).Split_type(split_type, key, info))

    def Free(self) -> None:
        self.watch.free(super().Free, self)

    def _watched(self, made: MPI.Comm) -> "MPI.Intracomm":
        assert isinstance(made, MPI.Intracomm)
        if made == MPI.COMM_NULL:
            return made
        found = Communicator(made)
        found.watch = self.watch
        self.watch.register(found)
        return found
