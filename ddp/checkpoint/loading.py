"""Reading a generation: every rank what it needs, whichever ranks wrote it; nothing is changed before all have it.

What a rank cannot read, since its host does not see the file or its bytes have changed, a rank that can sends it. What
several ranks of a host read from one file, one of them checks; a piece that it doubts all of them check.
"""

import hashlib
import os
import socket
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import engine
from ddp.checkpoint import manifest, places, shard, states
from ddp.checkpoint.agreeing import ranks_of, together
from ddp.checkpoint.manifest import Manifest, Piece
from ddp.checkpoint.progress import Progress
from ddp.groups.process_group import ProcessGroup
from engine.rules import layout
from engine.rules.dtypes import dtype, named
from engine.rules.spec import spec_of
from engine.serialization import structure
from engine.tensor.flat import flat_view, unflattened

_MESSAGE = 16 << 20  # bytes
_LARGE_PAGE = 2 << 20  # bytes
_LARGEST_MANIFEST = 1 << 30  # bytes


def load(state: MutableMapping[str, Any], path: str | os.PathLike[str], *, group: ProcessGroup | None = None) -> None:
    """Collective: takes over a checkpoint, written by any number of ranks.

        checkpoint.load({"model": model, "optimizer": optimizer}, "runs/a/last")

    state: what is wanted of it. Objects take their state over; other entries, whatever they are, are replaced by what
        was saved. path: a checkpoint, or a directory of them, whose newest complete one is taken.
    A rank reads what it needs: of state that is divided among ranks its share. All bytes are checked, and nothing is
    changed before every rank has all that it needs. Nothing in a checkpoint is executed.
    Raises, on every rank: FileNotFoundError where there is none; RuntimeError for a damaged one, naming the file;
    ValueError where it lacks a name, or does not fit an object, before any is changed.
    """
    ranks = ranks_of(group)
    found = together(ranks, lambda: places.newest(Path(path)) if ranks.rank == 0 else None)
    generation = ranks.exchange(found)[0]
    assert generation is not None
    take(state, [generation], ranks)


def take(state: MutableMapping[str, Any], folders: Sequence[Path], group: ProcessGroup) -> Manifest:
    """Collective: `load` from a generation of which there may be copies in several folders."""
    described = _manifest_of(folders, group)

    def read() -> dict[str, Any]:
        contents = {}
        for key, value in state.items():
            if key not in described.state:
                raise ValueError(
                    f"checkpoint: {folders[0]} holds no {key!r}; it has {', '.join(map(repr, described.state))}"
                )
            content = described.state[key]
            contents[key] = states.prune(content, value.keeps) if isinstance(value, states.Divided) else content
        return contents

    contents = together(group, read)
    divided = {key for key, value in state.items() if isinstance(value, states.Divided)}
    tensors = fetch(described, contents, folders, group, divided)

    def build() -> dict[str, Any]:
        loaded = {key: structure.unpack(content, tensors, str(folders[0])) for key, content in contents.items()}
        for key, value in loaded.items():
            states.check_fit(key, state[key], value)
        return loaded

    loaded = together(group, build)
    tensors.clear()
    together(group, lambda: states.apply(state, loaded))
    return described


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a generation. Raises: OSError; RuntimeError."""
    path = folder / manifest.NAME
    with open(shard.open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_MANIFEST:
            raise manifest.damaged(path, "it is larger than any manifest")
        return manifest.decode(file.read(), path)


def _manifest_of(folders: Sequence[Path], group: ProcessGroup) -> Manifest:
    """Collective: the manifest, of the first rank that has one. Raises its error where none is readable."""

    def read() -> Manifest:
        error: BaseException | None = None
        for folder in folders:
            try:
                return read_manifest(folder)
            except (OSError, RuntimeError) as raised:
                error = error or raised
        assert error is not None
        raise error

    mine: Manifest | None = None
    problem: BaseException | None = None
    try:
        mine = read()
    except (OSError, RuntimeError) as raised:
        problem = raised
    sees = group.exchange(mine is not None)
    if not any(sees):
        assert problem is not None
        raise problem
    root = sees.index(True)
    if all(sees) or group.comm is None:
        assert mine is not None
        return mine
    with group.meeting("the sending of what one rank has read"):
        return group.objects().bcast(mine, root)


def fetch(
    described: Manifest,
    contents: Mapping[str, Any],
    folders: Sequence[Path],
    group: ProcessGroup,
    divided: Collection[str] = (),
) -> dict[str, engine.Tensor]:
    """Collective: the tensors that these contents speak of, in host memory. Raises: RuntimeError, on every rank.

    divided: those of the contents of which each rank has its own part.
    """

    def prepare() -> tuple[dict[str, engine.Tensor], dict[Piece, np.ndarray], list[Piece]]:
        tensors: dict[str, engine.Tensor] = {}
        same: dict[Any, engine.Tensor] = {}
        parts: dict[Piece, np.ndarray] = {}
        alike: list[Piece] = []
        for key, content in sorted(contents.items(), key=lambda item: item[0] in divided):
            for name, description in structure.described_tensors(content, str(folders[0])).items():
                if name not in described.tensors:
                    raise manifest.damaged(folders[0], f"it has no tensor {name!r}")
                tensors[name] = _make(described.tensors[name], description, same, parts)
            if key not in divided:
                alike = [*parts]
        return tensors, parts, alike

    tensors, parts, alike = together(group, prepare)
    trusted = _checked_by_others(alike, folders[0], group)
    told = Progress(group, f"reading {folders[0]}", sum(piece.size for piece in parts))
    with shard.Reader(folders[0], told) as reader:
        wrong = reader.read_all(parts, trusted)
    doubted = set().union(*group.exchange(wrong))
    errors: dict[Piece, BaseException] = {}
    for piece in [piece for piece in parts if piece in doubted]:
        problem = _read(piece, parts[piece], folders, lambda count: None)
        if problem is not None:
            errors[piece] = problem
    _ask_peers(errors, parts, folders, group)
    together(group, lambda: _check_truths(tensors))
    return tensors


def _checked_by_others(pieces: Sequence[Piece], folder: Path, group: ProcessGroup) -> set[Piece]:
    """Collective: those of the pieces that this rank need not check, since others on its host do.

    Those that read the same pieces of the same file system's folder share them out, in equal parts of the bytes.
    """
    names = hashlib.sha256(repr([(piece.file, piece.offset) for piece in pieces]).encode()).digest()
    try:
        found = os.stat(folder)
        mine: Any = socket.gethostname(), found.st_dev, found.st_ino, names
    except OSError:
        mine = None
    everyones = group.exchange(mine)
    mates = [rank for rank, each in enumerate(everyones) if each == mine] if mine else []
    if len(mates) < 2:
        return set()
    total, at = sum(piece.size for piece in pieces), 0
    others = set()
    for piece in pieces:
        if mates[(at + piece.size // 2) * len(mates) // total] != group.rank:
            others.add(piece)
        at += piece.size
    return others


def _make(
    stored: manifest.Stored, description: structure.Description, same: dict[Any, engine.Tensor], parts: dict[Any, Any]
) -> engine.Tensor:
    """An empty tensor, its memory being added to `parts`; one that was made already where it has the same pieces."""
    stride = layout.contiguous_strides(stored.shape) if description.stride is None else description.stride
    if len(stride) != len(stored.shape):
        raise RuntimeError(f"checkpoint: a tensor of shape {stored.shape} is said to have strides {stride}")
    stride = layout.preserve_strides(stored.shape, stride)
    key = stored, stride
    if key not in same or not stored.pieces:
        same[key] = made = _empty(stored.shape, stride, named(stored.dtype))
        octets, at = flat_view(made).view(np.uint8), 0
        for piece in stored.pieces:
            if piece in parts:
                raise RuntimeError(f"checkpoint: two tensors share {piece.key!r} of {piece.file}")
            parts[piece] = octets[at : at + piece.size]
            at += piece.size
    return same[key]


def _empty(shape: tuple[int, ...], stride: tuple[int, ...], kind: dtype) -> engine.Tensor:
    """As `engine.empty_strided`. Where it is large, it begins where a large page of the system does.

    So all of it comes in such pages: reading 500 MB into 30 tensors takes a tenth less time.
    """
    spec = spec_of(shape, stride, kind)
    size = spec.numel * kind.itemsize
    if size >= _LARGE_PAGE:
        memory = np.empty(size + _LARGE_PAGE, np.uint8)
        begin = -int(memory.__array_interface__["data"][0]) % _LARGE_PAGE
        made = engine.from_numpy(unflattened(memory[begin : begin + size].view(kind.numpy), spec))
        if tuple(made.stride()) == stride:  # where an axis has one element NumPy may have another
            return made
    return engine.empty_strided(shape, stride, dtype=kind)


def _read(piece: Piece, target: np.ndarray, folders: Sequence[Path], told: shard.Told) -> BaseException | None:
    """Reads a piece from the first folder that has it whole; else what is wrong with it in the first."""
    first: BaseException | None = None
    for folder in folders:
        try:
            with shard.Reader(folder, told) as reader:
                reader.read_into(target, piece)
        except (OSError, RuntimeError) as error:
            first = first or error
        else:
            if first is not None:
                places.logger.warning("checkpoint: %s; taken from %s", first, folder)
            return None
    return first


def _ask_peers(
    errors: Mapping[Piece, BaseException],
    parts: Mapping[Piece, np.ndarray],
    folders: Sequence[Path],
    group: ProcessGroup,
) -> None:
    """Collective: ranks that could not read pieces get them from others that can."""
    missing = [piece for found in group.exchange([*errors]) for piece in found]
    problem: BaseException | None = None
    for piece in sorted(set(missing), key=lambda piece: (piece.file, piece.offset)):
        target = parts.get(piece)
        has = target is not None and piece not in errors
        if piece not in parts:
            target = np.empty(piece.size, np.uint8)
            has = _read(piece, target, folders, lambda count: None) is None
        everybody = group.exchange((has, "" if piece not in errors else str(errors[piece])))
        having = [rank for rank, (there, _) in enumerate(everybody) if there]
        if not having or group.comm is None:
            problem = problem or RuntimeError(next(text for _, text in everybody if text))
            continue
        assert target is not None
        with group.meeting("the sending of a checkpoint"):
            for begin in range(0, piece.size, _MESSAGE):
                group.comm.Bcast(target[begin : begin + _MESSAGE], having[0])
    if problem is not None:
        raise problem


def _check_truths(tensors: Mapping[str, engine.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype is engine.bool and tensor.nbytes and flat_view(tensor).view(np.uint8).max() > 1:
            raise RuntimeError(f"checkpoint: tensor {name!r} of dtype bool holds bytes other than 0 and 1")


def readable(described: Manifest, folder: Path, names: Iterable[str]) -> dict[str, engine.Tensor]:
    """Tensors of a generation, in this process alone. Raises: OSError; RuntimeError."""
    content = {"list": [entry for key in names for entry, _ in structure.tensors_in(described.state[key])]}
    return fetch(described, {"": content}, [folder], ranks_of(None))
