"""What `python -m ddp.checkpoint` does with checkpoints: list, verify, compare, make one file. In one process."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import engine
from ddp.checkpoint import loading, manifest, places, shard
from ddp.checkpoint.agreeing import ranks_of
from ddp.checkpoint.checksum import PIECE, checksum_of
from ddp.checkpoint.manifest import Manifest
from ddp.checkpoint.progress import Progress
from engine.serialization import container, structure
from engine.tensor.flat import flat_view


def consolidate(path: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Makes one file of a checkpoint, which `engine.load` reads: a dict of what was saved, by name.

    It is a safetensors file, its tensors named as in the checkpoint, row-major. path: a checkpoint, or a directory of
    them, whose newest complete one is taken.
    Raises: FileNotFoundError; RuntimeError for a damaged checkpoint; OSError.
    """
    folder = places.newest(Path(path))
    described = loading.read_manifest(folder)
    tensors = loading.readable(described, folder, described.state)
    engine.save(
        {key: structure.unpack(content, tensors, str(folder)) for key, content in described.state.items()}, file
    )


def verify(path: str | os.PathLike[str]) -> list[str]:
    """What is wrong with a checkpoint, in words: every byte is read. Nothing: it is whole."""
    folder = Path(path)
    try:
        described = loading.read_manifest(folder)
    except FileNotFoundError:
        return [f"{folder / manifest.NAME} is not there: its writers did not come to the end"]
    except (OSError, RuntimeError) as error:
        return [str(error)]
    found = []
    for name, expected in described.files.items():
        try:
            _verify_head(folder / name, expected)
        except (OSError, RuntimeError) as error:
            found.append(str(error))
    scratch = np.empty(PIECE, np.uint8)
    pieces = {piece for stored in described.tensors.values() for piece in stored.pieces}
    told = Progress(ranks_of(None), f"verifying {folder}", sum(piece.size for piece in pieces))
    with shard.Reader(folder, told) as reader:
        for piece in sorted(pieces, key=lambda piece: (piece.file, piece.offset)):
            try:
                reader.read_through(scratch, piece)
            except (OSError, RuntimeError) as error:
                found.append(str(error))
    return list(dict.fromkeys(found))


def _verify_head(path: Path, expected: manifest.File) -> None:
    with open(shard.open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size:
            raise manifest.damaged(path, f"it has {size} bytes, {expected.size} were written")
        container.read_header(file, str(path))
        file.seek(0)
        if checksum_of(np.frombuffer(file.read(expected.header), np.uint8)) != expected.checksum:
            raise manifest.damaged(path, "the checksum of its header does not match")


def difference(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> list[str]:
    """In what two checkpoints differ, in words; tensors by their values, whichever ranks wrote them.

    Raises: FileNotFoundError; RuntimeError for a damaged one.
    """
    folders = [places.newest(Path(each)) for each in (path, other)]
    described = [loading.read_manifest(folder) for folder in folders]
    steps = [each.step for each in described]
    found = [f"step {steps[0]} and step {steps[1]}"] if steps[0] != steps[1] else []
    keys = list(dict.fromkeys(key for each in described for key in each.state))
    for key in keys:
        there = [key in each.state for each in described]
        if not all(there):
            found.append(f"{key}: only in {folders[there.index(True)]}")
            continue
        values = [_leaves(each, folder, key) for each, folder in zip(described, folders, strict=True)]
        for place in dict.fromkeys((*values[0], *values[1])):
            words = _compare(values[0].get(place, _NOTHING), values[1].get(place, _NOTHING))
            if words:
                found.append(f"{place}: {words}")
    return found


_NOTHING = object()


def _leaves(described: Manifest, folder: Path, key: str) -> dict[str, Any]:
    tensors = loading.readable(described, folder, [key])
    return dict(_walk(structure.unpack(described.state[key], tensors, str(folder)), key))


def _walk(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _walk(item, f"{place}.{number}")
    else:
        yield place, value


def _compare(left: Any, right: Any) -> str:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        left, right = engine.from_numpy(left), engine.from_numpy(right)
    if isinstance(left, engine.Tensor) and isinstance(right, engine.Tensor):
        return _compare_tensors(left, right)
    if left is _NOTHING or right is _NOTHING:
        return "only in the second" if left is _NOTHING else "only in the first"
    same = type(left) is type(right) and (left == right or (left != left and right != right))
    return "" if same else f"{left!r:.60} and {right!r:.60}"


def _compare_tensors(left: engine.Tensor, right: engine.Tensor) -> str:
    kinds = [(tuple(each.shape), each.dtype.name, each.stride()) for each in (left, right)]
    if kinds[0] != kinds[1]:
        return " and ".join(f"{shape} {kind} with strides {stride}" for shape, kind, stride in kinds)
    octets = [flat_view(each).view(np.uint8).reshape(-1, left.element_size()) for each in (left, right)]
    count = int((octets[0] != octets[1]).any(axis=1).sum())
    if not count:
        return ""
    words = f"{count} of {left.numel()} elements differ"
    if left.dtype.is_floating_point:
        largest = (left.double() - right.double()).abs().max().item()
        words += f", by {largest:.3g} at most" if math.isfinite(largest) else ""
    return words


def generations(path: str | os.PathLike[str]) -> list[Path]:
    """`path` itself if it is a checkpoint, complete or not, else those in it, the newest last.

    Raises: FileNotFoundError where there is none.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no directory {folder}")
    found = [*reversed(places.generations(folder).values())]
    if not found and (places.is_complete(folder) or any(folder.glob("[0-9]*.safetensors"))):
        return [folder]
    if not found:
        raise FileNotFoundError(f"checkpoint: there is no checkpoint in {folder}")
    return found


def rows(path: str | os.PathLike[str]) -> list[tuple[str, str, str, str, str]]:
    """Of each of the `generations`: name, step, ranks, bytes, and whether it is complete."""
    found = []
    for generation in generations(path):
        try:
            described = loading.read_manifest(generation)
        except FileNotFoundError:
            found.append((generation.name, "", "", "", "not complete"))
        except (OSError, RuntimeError) as error:
            found.append((generation.name, "", "", "", str(error)))
        else:
            step = "" if described.step is None else str(described.step)
            found.append((generation.name, step, str(described.ranks), f"{described.nbytes:,}", "complete"))
    return found
