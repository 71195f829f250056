"""Writing a generation: every rank its own file, the manifest last.

All ranks pack the state and deal it out; one makes the folder and locks it; each writes its file and tells what is in
it; when all have, that one writes the manifest. What this costs in memory is nothing, or, to go on meanwhile, a copy of
the rank's own part.

Where each host has a folder of its own, its ranks write all that ranks hold alike, and its manifest names their files.
So a host that comes anew takes that from any other one.
"""

import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import engine
from ddp.checkpoint import places, shard, states
from ddp.checkpoint.agreeing import FAILURES, raise_first, ranks_of, together
from ddp.checkpoint.copying import Copy
from ddp.checkpoint.dealing import deal
from ddp.checkpoint.manifest import File, Manifest, Piece, Stored
from ddp.checkpoint.progress import Progress
from ddp.groups.process_group import ProcessGroup
from engine.rules.dtypes import dtype


def save(state: Mapping[str, Any], path: str | os.PathLike[str], *, group: ProcessGroup | None = None) -> None:
    """Collective: writes a checkpoint, the directory `path`, which is complete then, or not there at all.

        checkpoint.save({"model": model, "optimizer": optimizer, "step": 100}, "runs/a/last")

    Every rank writes its part, of what all ranks hold an equal share, so that nothing is gathered and no memory taken.
    Tensors keep their strides.

    state: by name objects with `state_dict` and `load_state_dict`, or tensors, arrays and plain data; the same names on
        every rank, in the same order. Of an object with `local_state_dict` (ZeroRedundancyOptimizer, RandomStreams)
        each rank has a part, everything else is alike on all.
    path: is to be seen by all ranks; its parents are made. group: the ranks; default all.
    Raises, on every rank: FileExistsError where there is a complete checkpoint already; TypeError for what is more than
    data; ValueError where the ranks' states differ in more than tensors' values; OSError; RuntimeError where a rank
    cannot see the directory.
    """
    ranks = ranks_of(group)
    under_way = Save(state, Path(path), places.on_disk(path, ranks), ranks, None)
    under_way.write(Progress(ranks, f"writing {path}", under_way.nbytes))
    under_way.finish()


class Cancelled(Exception):
    """Ends the writing of a generation that is not wanted any more."""


class _Report(NamedTuple):
    """What a rank has written: its file, pieces of tensors by their first byte, and what it knows of tensors."""

    name: str
    file: File
    pieces: dict[str, list[tuple[int, Piece]]]
    tensors: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]
    same: dict[str, str]
    own: dict[str, Any]


class Save:
    """A generation under way on this rank. Making one is collective; see `save` for what is raised."""

    def __init__(
        self, state: Mapping[str, Any], generation: Path, place: places.Place, group: ProcessGroup, step: int | None
    ) -> None:
        self.generation, self.step = generation, step
        self._group, self._place = group, place
        self._draft: places.Draft | None = None
        self._report: bytes | None = None
        self._reports: list[bytes] | None = None
        self._error: BaseException | None = None
        self._copy: Copy | None = None
        packed = together(group, lambda: states.pack(state))
        self._shared, self._own = packed.shared, packed.own
        self._shared_layouts, self._own_layouts = _layouts(packed.shared_tensors), _layouts(packed.own_tensors)
        shared, self._same_shared = _distinct(packed.shared_tensors)
        own, self._same_own = _distinct(packed.own_tensors)
        firsts = {name: shared.pop(name) for name in [*shared] if name in packed.firsts}
        makers = place.makers
        if group.rank in makers:
            own = firsts | own
        everybody = group.exchange((packed.digests(), sum(tensor.nbytes for tensor in own.values())))
        _check_alike([digests for digests, _ in everybody])
        if len(set(makers)) > 1 and packed.firsts:
            comm = group.objects()
            with group.meeting("the sending of buffers"):
                values = comm.bcast({name: tensor.detach().cpu() for name, tensor in firsts.items()})
            own |= {name: tensor for name, tensor in values.items() if name in own}
        mates = [rank for rank, maker in enumerate(makers) if maker == makers[group.rank]]
        dealt = deal([tensor.nbytes for tensor in shared.values()], [everybody[rank][1] for rank in mates])
        cuts = dealt[mates.index(group.rank)]
        names = list(shared)
        taken: set[str] = set()
        blobs = [
            *(shard.blob_of(name, tensor, 0, tensor.nbytes, taken) for name, tensor in own.items() if tensor.nbytes),
            *(shard.blob_of(names[c.place], shared[names[c.place]], c.begin, c.end, taken) for c in cuts),
        ]
        self._blobs = shard.in_order(blobs)
        try:
            together(group, self._begin)
            places.check_seen(generation, group, socket.gethostname())
        except FAILURES:
            self.abandon()
            raise

    @property
    def nbytes(self) -> int:
        """What this rank writes, without the header."""
        return sum(blob.nbytes for blob in self._blobs)

    def stage(self, memory: np.ndarray, state: Mapping[str, Any] | None = None) -> None:
        """Copies this rank's part into `memory`; what is saved may change from then on.

        state: where it is given, `copy_rest` is still to copy what the optimizers in it change in their next step.
        """
        if state is None:
            shard.stage(self._blobs, memory)
        else:
            self._copy = Copy(self._blobs, memory, state)

    def copy_rest(self) -> None:
        """Copies what `stage` has left, in any thread."""
        if self._copy is not None:
            self._copy.run()

    def settle(self) -> None:
        """Waits for `copy_rest`; the save has failed where its bytes are not those of when it began."""
        if self._copy is not None:
            self._copy.settle()
            self._error = self._error or self._copy.error

    def write(self, told: shard.Told, beside: bool = False) -> None:
        """Writes this rank's file. Raises nothing: what went wrong, `finish` tells all ranks.

        beside: beside training, whose the processors are, so past the page cache where it goes to a disk.
        """
        name = f"{self._group.rank:05d}.safetensors"
        try:
            durable = self._place.durable
            file, pieces = shard.write(self.generation / name, self._blobs, durable, told, direct=beside and durable)
        except Cancelled:
            return
        except FAILURES as error:
            self._error = error
            return
        layouts = self._own_layouts | (self._shared_layouts if self._group.rank == 0 else {})
        about = {
            name: (kind.name, shape, states.stored_layout(shape, stride)[1])
            for name, (kind, shape, stride) in layouts.items()
        }
        same = self._same_own | (self._same_shared if self._group.rank == 0 else {})
        # Pickled here, and unpickled in `commit`, beside training, which waits for `collect`.
        self._report = pickle.dumps(_Report(name, file, pieces, about, same, self._own))

    @property
    def failed(self) -> bool:
        """Whether `write` went wrong here."""
        return self._error is not None

    def collect(self) -> None:
        """Collective, after every rank's `write`: those that make the manifest hear what is in it."""
        with self._group.meeting("the collecting of a checkpoint"):
            comm = self._group.comm and self._group.objects()
            report = None if self.failed else self._report
            reports: Any = comm.gather(report) if comm else [report]
            if comm and len(set(self._place.makers)) > 1:
                reports = comm.bcast(reports)
        self._reports = reports if reports and all(reports) else None

    def commit(self) -> None:
        """Ends the generation, where this rank is to, in any thread. Raises nothing, as `write`."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if self._error is not None or self._reports is None:
            draft.abandon()
            return
        try:
            draft.commit(self._manifest([pickle.loads(report) for report in self._reports]).encode())
        except FAILURES as error:
            self._error = error
            draft.abandon()

    def conclude(self) -> None:
        """Collective, after `commit`: the generation is complete; or the first error on all ranks, and it is gone."""
        raise_first(self._group, self._error)

    def finish(self) -> None:
        """Collective: all that is left to do after `write`."""
        self.collect()
        self.commit()
        self.conclude()

    def abandon(self) -> None:
        """Gives up: nothing of the generation stays, but for files of ranks that are still in their `write`."""
        if self._copy is not None:
            self._copy.unhook()
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.abandon()

    def _begin(self) -> None:
        if self._group.rank in self._place.makers:
            self._draft = places.Draft(self.generation, self._place.durable)

    def _manifest(self, reports: Sequence[_Report]) -> Manifest:
        """That of the generation which this rank ends. Raises: ValueError where divided state contradicts itself."""
        pieces: dict[str, list[tuple[int, Piece]]] = {}
        tensors: dict[str, Stored] = {}
        for report, made_by in zip(reports, self._place.makers, strict=True):
            for name, found in report.pieces.items():
                if made_by == self._group.rank or name not in self._shared_layouts:
                    pieces.setdefault(name, []).extend(found)
        for report in reports:
            for name, (kind, shape, order) in report.tensors.items():
                of = sorted(pieces.get(report.same.get(name, name), []))
                tensors[name] = Stored(kind, shape, order, tuple(piece for _, piece in of))
        own = {key: states.merge(key, [report.own[key] for report in reports]) for key in self._own}
        files = {report.name: report.file for report in reports}
        return Manifest(self.step, len(reports), files, tensors, self._shared | own)


def _distinct(tensors: Mapping[str, engine.Tensor]) -> tuple[dict[str, engine.Tensor], dict[str, str]]:
    """Tensors without those that are another one's memory under a second name, and these names with the first."""
    first: dict[Any, str] = {}
    distinct, same = {}, {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
        known = first.setdefault(key, name) if tensor.nbytes else name
        if known == name:
            distinct[name] = tensor
        else:
            same[name] = known
    return distinct, same


def _check_alike(digests: list[dict[str, str]]) -> None:
    """Raises: ValueError where the ranks do not save the same."""
    for rank, found in enumerate(digests):
        if list(found) != list(digests[0]):
            raise ValueError(f"checkpoint: rank 0 saves {list(digests[0])}, rank {rank} saves {list(found)}")
        for key, digest in found.items():
            if digest != digests[0][key]:
                raise ValueError(
                    f"checkpoint: {key!r} differs between rank 0 and rank {rank} in more than tensors' values; what "
                    "each rank has for itself is saved by an object with local_state_dict"
                )


def _layouts(tensors: Mapping[str, engine.Tensor]) -> dict[str, tuple[dtype, tuple[int, ...], tuple[int, ...]]]:
    """The dtype, shape and strides of each."""
    return {name: (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) for name, tensor in tensors.items()}
