"""Reading all pieces of a file: on one thread, or with a second one that sums what the first has read."""

from pathlib import Path

import numpy as np
import pytest

import engine
from ddp.checkpoint import shard
from ddp.checkpoint.checksum import PIECE
from ddp.checkpoint.manifest import Piece

SIZES = [8, PIECE - 8, PIECE, PIECE + 8, 3 * PIECE + 24, 2 * PIECE]


def written(folder: Path) -> dict[Piece, np.ndarray]:
    """A file of bytes, and what each of its pieces holds."""
    random = np.random.default_rng(0)
    contents = {f"w{size}": random.integers(0, 256, size, np.uint8) for size in SIZES}
    taken: set[str] = set()
    blobs = [shard.blob_of(name, engine.from_numpy(each), 0, each.nbytes, taken) for name, each in contents.items()]
    _, pieces = shard.write(folder / "a", shard.in_order(blobs), False, lambda count: None)
    return {piece: contents[name] for name, [(_, piece)] in pieces.items()}


@pytest.fixture(params=[1, 2])
def threads(request):
    before = engine.get_num_threads()
    engine.set_num_threads(request.param)
    yield request.param
    engine.set_num_threads(before)


def read(folder: Path, wanted: dict[Piece, np.ndarray], trusted: set[Piece]) -> tuple[set[Piece], list[Piece]]:
    """What is said to be wrong, and what has come as it was."""
    targets = {piece: np.zeros_like(content) for piece, content in wanted.items()}
    with shard.Reader(folder, lambda count: None) as reader:
        wrong = reader.read_all(targets, trusted)
    return wrong, [piece for piece in wanted if np.array_equal(targets[piece], wanted[piece])]


def test_all_pieces_come_as_they_were_written(tmp_path, threads) -> None:
    wanted = written(tmp_path)
    assert read(tmp_path, wanted, set()) == (set(), [*wanted])
    assert read(tmp_path, wanted, {*wanted}) == (set(), [*wanted])


@pytest.mark.parametrize("place", range(len(SIZES)))
def test_a_piece_that_has_changed_is_named_and_no_other(tmp_path, threads, place) -> None:
    wanted = written(tmp_path)
    changed = [*wanted][place]
    with (tmp_path / "a").open("r+b") as file:
        file.seek(changed.offset + changed.size - 1)
        file.write(bytes([wanted[changed][-1] ^ 1]))
    others = [piece for piece in wanted if piece is not changed]
    assert read(tmp_path, wanted, set()) == ({changed}, others)
    assert read(tmp_path, wanted, {changed}) == (set(), others)  # another rank looks at that one


def test_pieces_that_are_not_all_there_are_named(tmp_path, threads) -> None:
    wanted = written(tmp_path)
    last = max(wanted, key=lambda piece: piece.offset)
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(last.offset + last.size // 2)
    assert read(tmp_path, wanted, set()) == ({last}, [piece for piece in wanted if piece is not last])
    (tmp_path / "a").unlink()
    assert read(tmp_path, wanted, set()) == ({*wanted}, [])
