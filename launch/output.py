"""Where what a rank prints goes, where ddprun was asked: into a file of its own, to the terminal with a tag, or both.

By descriptor, so that what MPI, CUDA or a crash prints goes there too. Rank 0 with a file, and every rank with a tag,
have a process beside them that copies: it reads on when the rank is killed, and so has its last words.
"""

import os
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

LOG_DIR = "DDPRUN_LOG_DIR"
TAG = "DDPRUN_TAG"

_LINE = 1 << 16  # bytes after which a line is passed on though it has not ended
_LAST_WORDS = 1.0  # seconds in which the copy must be through when its rank ends early


def output_variables(folder: "Path | None", tag: bool) -> dict[str, str]:
    """What `--log-dir` and `--tag` are to the ranks."""
    found = {TAG: "1"} if tag else {}
    return found | ({LOG_DIR: os.path.abspath(folder)} if folder is not None else {})


class Output:
    """Standard output and error of this rank."""

    def __init__(self, log: int | None, before: tuple[int, int] | None, copier: int | None) -> None:
        self._log, self._before, self._copier = log, before, copier

    def restore(self) -> None:
        """Has what is printed from now on go to the terminal again, after all that was printed before.

        For a rank that ends early: what is still on its way then may come too late for mpirun.
        """
        if self._before is None:
            return
        for number, descriptor in zip((1, 2), self._before, strict=True):
            os.dup2(descriptor, number)
        self._before = None
        if self._copier is not None:
            import time

            deadline = time.monotonic() + _LAST_WORDS
            while os.waitpid(self._copier, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.001)

    def also_log(self, text: bytes) -> None:
        """Writes to the rank's file, if it has one, what goes to the terminal in another way."""
        if self._log is not None:
            os.write(self._log, text)


def open_output(environ: MutableMapping[str, str], rank: str) -> Output:
    """Takes standard output and error to where ddprun was asked to. Raises OSError if the file cannot be made."""
    folder, tag = environ.pop(LOG_DIR, ""), environ.pop(TAG, "")
    if not folder and not tag:
        return Output(None, None, None)
    log = None
    if folder:
        os.makedirs(folder, exist_ok=True)
        log = os.open(os.path.join(folder, f"rank_{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    before = os.dup(1), os.dup(2)
    if log is not None and rank != "0":
        os.dup2(log, 1)
        os.dup2(log, 2)
        return Output(log, before, None)
    pipes = os.pipe(), os.pipe()
    copier = os.fork()  # nothing else runs in this process yet
    if copier == 0:
        _copy([read for read, _ in pipes], before, log, f"[rank {rank}] ".encode() if tag else b"")
    for number, (read, write) in zip((1, 2), pipes, strict=True):
        os.dup2(write, number)
        os.close(read)
        os.close(write)
    return Output(log, before, copier)


def _copy(sources: list[int], terminal: tuple[int, int], log: int | None, tag: bytes) -> NoReturn:
    """Copies both streams until nobody can write to them any more: the rank, or a process that it started."""
    import select
    import signal

    os.setsid()  # mpirun ends a rank with its process group
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, signal.SIG_IGN)
    kept = {*sources, *terminal, *([] if log is None else [log])}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            _close(number)
    streams = {
        source: (_whole_lines(shown, tag) if tag else _writer(shown))
        for source, shown in zip(sources, terminal, strict=True)
    }
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    while streams:
        for source, _ in poll.poll():
            part = os.read(source, _LINE)
            if log is not None and part:
                log = _log(log, part, terminal[1])
            streams[source](part)
            if not part:
                poll.unregister(source)
                del streams[source]
    os._exit(0)


def _log(log: int, part: bytes, terminal: int) -> int | None:
    try:
        _write(log, part)
    except OSError as error:
        _write(terminal, f"ddprun: the log of this rank ends here: {error}\n".encode())
        return None
    return log


def _whole_lines(descriptor: int, tag: bytes) -> Callable[[bytes], None]:
    """Passes on each line with the tag before it, in one piece; what has not ended when it is told of the end, too."""
    write, rest = _writer(descriptor), b""

    def take(part: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + part).split(b"\n")
        if rest and (not part or len(rest) > _LINE):
            lines, rest = [*lines, rest], b""
        if lines:
            write(b"".join(tag + line + b"\n" for line in lines))

    return take


def _writer(descriptor: int) -> Callable[[bytes], None]:
    gone = False

    def write(data: bytes) -> None:
        nonlocal gone
        try:
            if not gone:
                _write(descriptor, data)
        except OSError:  # nobody is there to read it; the file goes on
            gone = True

    return write


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # the one by which the list was read
