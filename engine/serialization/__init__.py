"""`save` and `load`: tensors, plain data and whole objects in one safetensors file. Nothing in it is executed on load.

    structure.py   plain data and what is said of each tensor, as JSON
    objects.py     whole objects: a pickle beside the tensors, which restricted.py reads: it builds what was
                   allowed and nothing else
    container.py   the safetensors file: a header with checksums, then the tensors, one after another
    torch_files.py reads what torch.save writes, torch_writing.py writes it, torch_names.py has the names in it, and
                   torch_archive.py is its zip file
    files.py       from a path to a file that is complete or not there at all

A flat dict of tensors (a state_dict) becomes a plain safetensors file, readable by PyTorch and others; files of theirs
load here, too. Strides are kept, so that channels-last weights come back channels-last. Neither `save` nor `load` needs
more memory than the content and one tensor of it.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

from engine.serialization import container, files, objects, structure, torch_files, torch_writing
from engine.serialization.objects import add_safe_globals as add_safe_globals
from engine.serialization.objects import clear_safe_globals as clear_safe_globals
from engine.serialization.objects import get_safe_globals as get_safe_globals
from engine.serialization.objects import safe_globals as safe_globals
from engine.tensor import Tensor

Place = Callable[[Tensor, str], Tensor]


def save(
    obj: Any, f: str | os.PathLike[str] | BinaryIO, *, format: Literal["safetensors", "torch"] = "safetensors"
) -> None:
    """Writes to a path or an open binary file.

    Tensors, NumPy arrays, nested dicts, lists, tuples, numbers, strings, bytes and None are data; anything else, a
    module for instance, is pickled, and `load` reads it only where its classes are allowed.

    A path: the file is written beside it, synced, and moved there, so that it is complete or not there at all; symbolic
    links are followed, and what is no regular file (a device, a pipe) is written into.

    format: "torch" for a file that `torch.load(f, weights_only=True)` reads, and `load` too: tensors with their strides
        and what storage they share, numbers, strings, bytes, None, dtypes, and dicts, lists, tuples and sets of them.

    Raises: what pickle raises for lambdas, open files and the like; OSError; ValueError for more than 100 MB of plain
    data beside the tensors; TypeError for what a file of PyTorch's cannot hold.
    """
    if format not in ("safetensors", "torch"):
        raise ValueError(f"save: expected format='safetensors' or 'torch', got {format!r}")
    if format == "torch":
        if isinstance(f, str | os.PathLike):
            with files.replacing(f) as file:
                torch_writing.write(file, obj)
        else:
            torch_writing.write(f, obj)
        return
    tensors: dict[str, Tensor] = {}
    try:
        content = structure.pack(obj, tensors)
    except structure.MoreThanDataError:
        tensors.clear()
        content = objects.pack(obj, tensors)
    if isinstance(f, str | os.PathLike):
        with files.replacing(f) as file:
            container.write(file, content, tensors)
    else:
        container.write(f, content, tensors)


def load(f: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Reads what `save` or torch.save wrote, or any safetensors file (then a dict of tensors).

    map_location: the device of all tensors, a dict from the names of the devices they were on to devices, or a function
        (tensor in host memory, name of the device it was on) -> Tensor or None; what is not mapped goes where it was.
    weights_only: False to build the objects of a file that was saved with more than data, which can run any code.
    Raises: FileNotFoundError; RuntimeError for a damaged, truncated or foreign file, saying which, and for tensors that
    were on a GPU where there is none; nothing is half loaded; pickle.UnpicklingError for classes that were not allowed
    by `add_safe_globals`.
    """
    if isinstance(f, str | os.PathLike):
        with Path(f).open("rb") as file:
            return _load(file, str(f), map_location, not weights_only)
    seekable = hasattr(f, "seekable") and f.seekable()
    where = str(getattr(f, "name", "the file"))
    return _load(f if seekable else io.BytesIO(f.read()), where, map_location, not weights_only)


def _load(file: BinaryIO, where: str, map_location: Any, trusted: bool) -> Any:
    place = _placing(map_location, where)
    if objects.is_of_version_one(file):
        return objects.load_version_one(file, where, trusted, place)
    if torch_files.is_one(file, where):
        return torch_files.read(file, where, trusted, place)
    header = container.read_header(file, where)
    described = structure.described_tensors(header.content, where)
    tensors = {}
    for entry in header.entries:
        description = described.get(entry.name, structure.PLAIN)
        tensor = container.read_tensor(file, entry, description.stride, description.dtype, where)
        tensors[entry.name] = place(tensor, description.device) if description.placed else tensor
    if header.content is None:
        return tensors
    if objects.are_in(header.content):
        return objects.unpack(header.content, tensors, where, trusted)
    return structure.unpack(header.content, tensors, where)


def _placing(map_location: Any, where: str) -> Place:
    """The function that puts a loaded tensor, which is in host memory and was on the device it is told, where
    `map_location` says.
    """

    def where_it_was(tensor: Tensor, was: Any) -> Tensor:
        try:
            return tensor if was == "cpu" else tensor.to(was)
        except RuntimeError as cause:
            raise RuntimeError(
                f"load: {where}: a tensor was on {was} when it was saved, which is not there now; pass "
                f"map_location='cpu' to keep it in host memory ({cause})"
            ) from cause

    if map_location is None:
        return where_it_was
    if isinstance(map_location, dict):
        return lambda tensor, was: where_it_was(tensor, map_location.get(was, was))
    if callable(map_location):
        return lambda tensor, was: where_it_was(tensor, was) if (to := map_location(tensor, was)) is None else to
    return lambda tensor, was: tensor.to(map_location)
