"""The file that one rank writes: plain safetensors, its tensors and cuts of tensors one after another."""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

import engine
from ddp.checkpoint.checksum import PART, PIECE, Checksum, checksum_of
from ddp.checkpoint.direct import Direct
from ddp.checkpoint.manifest import File, Piece, damaged
from ddp.checkpoint.states import stored_layout
from engine.ops.copy.kernels import copy_past_caches
from engine.rules.dtypes import dtype
from engine.serialization import container, files
from engine.sharing import threads
from engine.tensor.flat import flat_view

_ALIGN = 4096  # bytes; where tensors begin
_CUT = 4 << 20  # bytes; what is worth a thread of its own to copy
_READ = 16 << 20  # bytes; what is read at a time where nothing is summed
_BEGIN_SYNC = 8 << 20  # bytes; with what the disk begins while the next are summed: 0.25 to 0.22 s for 256 MB, synced

Told = Callable[[int], None]
"""Is told of every so many bytes that went by; may raise to end the writing or reading."""


@dataclass(slots=True)
class Blob:
    """Bytes `begin` to `end` of the memory of a tensor. key, kind and shape: what others find in the file.

    memory: the bytes themselves, once they were copied.
    """

    tensor: str
    key: str
    kind: dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    source: engine.Tensor | None
    memory: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return self.end - self.begin

    def octets(self) -> np.ndarray:
        """The bytes, where they lie if they can be seen as one run of host memory, else a copy."""
        if self.memory is not None:
            return self.memory
        assert self.source is not None
        return octets_of(self.source)[self.begin : self.end]

    def lies_in(self, memory: np.ndarray) -> None:
        """The bytes were copied there, and are read from there."""
        self.memory, self.source = memory, None


def octets_of(tensor: engine.Tensor) -> np.ndarray:
    """All bytes of a tensor in memory order, as uint8; a copy where it is on a device or has gaps."""
    tensor = tensor.detach()
    host = tensor if tensor.is_cpu else tensor.cpu()
    flat = flat_view(host)
    if flat is None:
        dense = engine.empty_strided(tuple(host.shape), stored_layout(host.shape, host.stride())[0], dtype=host.dtype)
        flat = flat_view(dense.copy_(host))
    return flat.view(np.uint8)


def blob_of(name: str, tensor: engine.Tensor, begin: int, end: int, taken: set[str]) -> Blob:
    """A blob of a tensor; `taken` are the keys that the file has already, and has this one's afterwards."""
    kind = container.stored(tensor.dtype)[1]
    key = name
    shape: tuple[int, ...] = tuple(tensor.shape[axis] for axis in stored_layout(tensor.shape, tensor.stride())[1])
    if kind is not tensor.dtype:
        shape = (*shape, 2)
    if (begin, end) != (0, tensor.nbytes):
        key = f"{name}[{begin // kind.itemsize}:{end // kind.itemsize}]"
        shape = ((end - begin) // kind.itemsize,)
    while key in taken or key == "__metadata__":
        key += "_"
    taken.add(key)
    return Blob(name, key, kind, shape, begin, end, tensor)


def in_order(blobs: Iterable[Blob]) -> list[Blob]:
    """As they lie in a file: those of large elements first, so that all are aligned."""
    return sorted(blobs, key=lambda blob: -blob.kind.itemsize)


def stage(
    blobs: Iterable[Blob], memory: np.ndarray, may_wait: Callable[[Blob], bool] = lambda blob: False
) -> list[tuple[Blob, np.ndarray, np.ndarray]]:
    """Copies the blobs to `memory`, of at least as many bytes as they have; from there on they are written from it.

    Those that may wait are left: returns them, where their bytes are now, and where they are to go.
    """
    at, left = 0, []
    for blob in blobs:
        target = memory[at : at + blob.nbytes]
        if may_wait(blob):
            left.append((blob, blob.octets(), target))
        else:
            threads.share(partial(_copy, target, blob.octets()), threads.pieces(blob.nbytes, _CUT))
            blob.lies_in(target)
        at += blob.nbytes
    return left


def _copy(target: np.ndarray, source: np.ndarray, part: slice) -> None:
    copy_past_caches(target[part], source[part])


def write(
    path: Path, blobs: Sequence[Blob], durable: bool, told: Told, direct: bool = False
) -> tuple[File, dict[str, list[tuple[int, Piece]]]]:
    """Writes the file with these blobs; returns what the manifest says of it, and of each tensor its pieces by their
    first byte.

    durable: synced, with its folder. direct: past the page cache, which takes a processor less, and is no faster; who
    reads it soon waits for the disk. Raises: OSError; FileExistsError where the file is there already.
    """
    pieces: dict[str, list[tuple[int, Piece]]] = {}
    text = container.header_of({"format": "np"}, ((b.key, b.kind, b.shape) for b in blobs), _ALIGN)
    head = len(text).to_bytes(8, "little") + text
    at, written = len(head), 0
    with Direct(path) if direct else path.open("xb", buffering=0) as file:
        _write_all(file, memoryview(head))
        for blob in blobs:
            octets, checksum = blob.octets(), Checksum()
            for begin in range(0, octets.nbytes, PIECE):
                part = octets[begin : begin + PIECE]
                checksum.add(part)
                _write_all(file, part.data)
                told(part.nbytes)
                written += part.nbytes
                if durable and not direct and written >= _BEGIN_SYNC:
                    files.begin_sync(file.fileno())
                    written = 0
            piece = Piece(path.name, blob.key, at, blob.nbytes, checksum.text())
            pieces.setdefault(blob.tensor, []).append((blob.begin, piece))
            at += blob.nbytes
        if isinstance(file, Direct):
            file.finish()
        if durable:
            os.fsync(file.fileno())
    if durable:
        files.sync_folder(path.parent)
    return File(at, len(head), checksum_of(np.frombuffer(head, np.uint8))), pieces


def _write_all(file: Any, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


class Reader:
    """Reads pieces of a folder's files, and checks them. The file stays open while the next piece is in it, too.

    with Reader(folder, told) as reader:
        reader.read_into(target, piece)
    """

    def __init__(self, folder: Path, told: Told) -> None:
        self._folder, self._told = folder, told
        self._opened: tuple[str, int] | None = None  # a file and its descriptor

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def read_into(self, target: np.ndarray, piece: Piece, check: bool = True) -> None:
        """Reads a piece, and checks it where `check` says so.

        Raises: OSError; RuntimeError where its bytes have changed, or are not all there. A file that is no regular one
        is not opened: reading a pipe would take for ever.
        """
        checksum = Checksum()
        for part in self._parts(target, piece, PART if check else _READ):
            if check:
                checksum.add(part)
        if check:
            self._compare(piece, checksum)

    def read_all(self, targets: Mapping[Piece, np.ndarray], trusted: Collection[Piece]) -> set[Piece]:
        """Reads pieces, each into its target, and checks all but the trusted. Returns those that `read_into` would
        raise for, or may: whoever reads one of them again hears what is wrong.

        With a second thread one reads, and the other sums what has come: two that read would wait for each other in
        the kernel. From piece to piece neither waits for the other.
        """
        wrong: set[Piece] = set()
        sums: dict[Piece, Checksum] = {}
        ready = SimpleQueue[tuple[Checksum, np.ndarray] | None]()
        alone = threads.usable_threads() == 1

        def read(piece: Piece) -> None:
            if alone or piece in trusted or piece.size <= PIECE:
                self.read_into(targets[piece], piece, piece not in trusted)
                return
            checksum = sums[piece] = Checksum()
            for part in self._parts(targets[piece], piece, PIECE):
                ready.put((checksum, part))

        def read_ahead() -> None:
            try:
                for piece in sorted(targets, key=lambda piece: (piece.file, piece.offset)):
                    try:
                        read(piece)
                    except (OSError, RuntimeError):
                        wrong.add(piece)
            finally:
                ready.put(None)

        def add_what_was_read() -> None:
            while (found := ready.get()) is not None:
                checksum, part = found
                checksum.add(part)

        threads.share(lambda function: function(), (read_ahead, add_what_was_read))
        return wrong | {piece for piece, checksum in sums.items() if checksum.text() != piece.checksum}

    def read_through(self, scratch: np.ndarray, piece: Piece) -> None:
        """Checks a piece, reading it into `scratch`, of `PIECE` bytes, again and again. Raises as `read_into`."""
        checksum = Checksum()
        for begin in range(0, piece.size, PIECE):
            part = scratch[: min(PIECE, piece.size - begin)]
            self._fill(part, piece, begin)
            checksum.add(part)
        self._compare(piece, checksum)

    def _parts(self, target: np.ndarray, piece: Piece, size: int) -> Iterator[np.ndarray]:
        """Fills `target` with so many bytes at a time."""
        for begin in range(0, piece.size, size):
            part = target[begin : begin + size]
            self._fill(part, piece, begin)
            yield part

    def _fill(self, part: np.ndarray, piece: Piece, begin: int) -> None:
        file, at, left = self._file_of(piece), piece.offset + begin, part.data
        while left:
            count = os.preadv(file, [left], at)
            if not count:
                raise damaged(self._folder / piece.file, f"it ends {len(left)} bytes early")
            at, left = at + count, left[count:]
        self._told(part.nbytes)

    def _compare(self, piece: Piece, checksum: Checksum) -> None:
        if checksum.text() != piece.checksum:
            raise damaged(
                self._folder / piece.file, f"the checksum of {piece.key!r} does not match: its bytes have changed"
            )

    def _file_of(self, piece: Piece) -> int:
        if self._opened is None or self._opened[0] != piece.file:
            self._close()
            self._opened = piece.file, open_regular(self._folder / piece.file)
        return self._opened[1]

    def _close(self) -> None:
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None


def open_regular(path: Path) -> int:
    """A descriptor of a regular file, for reading. Raises: OSError; RuntimeError for anything else of that name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "it is no regular file")
    return descriptor
