"""Files that are written past the page cache hold what was given to them, whatever a file system makes of that."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from ddp.checkpoint import direct
from ddp.checkpoint.direct import Direct

MIB = 1 << 20
SIZES = [0, 1, 4095, 4096, 4097, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 17 * MIB + 5]


def write(path: Path, content: bytes, piece: int = MIB + 3) -> None:
    with Direct(path) as file:
        for begin in range(0, len(content), piece):
            left = memoryview(content)[begin : begin + piece]
            while left:
                left = left[file.write(left) :]
        file.finish()


@pytest.mark.parametrize("size", SIZES)
def test_content(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    write(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == content


@pytest.mark.parametrize("size", SIZES[4:])
def test_writes_that_end_anywhere_go_on_through_the_cache(tmp_path: Path, monkeypatch, size: int) -> None:
    """As on a disk that is nearly full; what is no multiple of a block is refused past the cache."""
    content, whole, modes = os.urandom(size), os.write, []

    def some(descriptor: int, view: memoryview) -> int:
        past = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct._DIRECT)
        modes.append(past)
        if past and (len(view) % 4096 or os.lseek(descriptor, 0, os.SEEK_CUR) % 4096):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if len(modes) == 1:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY)
            count = whole(descriptor, view[:1000])
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY | direct._DIRECT)
            return count
        return whole(descriptor, view)

    monkeypatch.setattr(os, "write", some)
    write(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == content
    assert modes[-1] is False


def test_file_systems_that_do_not_have_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(direct, "_DIRECT", 0)
    write(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"


def test_errors_are_raised_and_files_not_replaced(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        Direct(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"first"

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "b", b"x")
