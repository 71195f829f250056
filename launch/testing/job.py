"""One `mpirun` whose ranks run tests in lockstep: the side of the process that reports; rank.py is the other."""

import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch.testing import JOB_VARIABLE
from launch.testing.channel import Channel
from launch.testing.process import end_process, mpirun_command, start_process
from launch.testing.watch import Watch

_START_SECONDS = 200.0  # mpirun, Python, and collection on every rank of a busy machine
_DEATH_SECONDS = 5.0  # what mpirun has to end when a rank is gone
_STACK_SECONDS = 0.5  # what a rank has to print its stack before it is ended
_LONGEST = 10_000  # characters of what was printed


class Report(NamedTuple):
    """What one rank says about one phase (setup, call, teardown) of a test."""

    rank: int
    report: pytest.TestReport


def describe(report: Report, ranks: int) -> str:
    """A failed phase as text: the rank, its traceback, what it had printed."""
    parts = [f"rank {report.rank} of {ranks}, {report.report.when}:", report.report.longreprtext]
    parts += [f"--- {title}, rank {report.rank}\n{text}" for title, text in report.report.sections if text.strip()]
    return "\n".join(parts)


class Job:
    """One `mpirun` whose ranks run tests of some files on demand. What cannot be started fails the test."""

    def __init__(self, config: pytest.Config, files: Sequence[Path], ranks: int) -> None:
        self.config = config
        self.files = frozenset(files)
        self.ranks = ranks
        self.alive = False
        self._folder = tempfile.TemporaryDirectory(prefix="mpi-tests-")
        folder = Path(self._folder.name)
        self._log = folder / "log"
        self._channels: list[Channel] = []
        arguments = [str(argument) for argument in config.invocation_params.args]
        settings = {"ranks": ranks, "files": [str(file) for file in files], "path": sys.path, "arguments": arguments}
        (folder / "settings").write_text(json.dumps(settings))
        # Nothing is ever sent over it: a rank is killed by the kernel when this end is closed, see rank.py.
        self._lifeline = _listen(folder / "lifeline", ranks)
        with _listen(folder / "socket", ranks) as listener, self._log.open("wb") as log:
            # -P: the folder of the program is this package's, and no place to import from.
            program = [sys.executable, "-P", str(Path(__file__).with_name("__main__.py")), str(folder)]
            self._process = start_process(
                [*mpirun_command(ranks), *program],
                log.fileno(),
                log.fileno(),
                {JOB_VARIABLE: str(folder)},
                config.invocation_params.dir,
            )
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + _START_SECONDS
        while len(self._channels) < self.ranks:
            try:
                self._channels.append(Channel(listener.accept()[0], Path(self._folder.name)))
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = self._output()
                    self.end()
                    pytest.fail(f"the job of {self.ranks} ranks did not start; its output:\n{text}", pytrace=False)
        self.alive = True

    def lives(self) -> bool:
        """Whether all ranks wait for a test."""
        if self._process.poll() is None:
            with selectors.DefaultSelector() as selector:
                for channel in self._channels:
                    selector.register(channel.socket, selectors.EVENT_READ)
                return not selector.select(0)  # between tests a rank says nothing, unless it is gone
        return False

    def run(self, nodeid: str, next_nodeid: str | None, timeout: float) -> list[Report]:
        """Run one test on all ranks. Returns the ranks' reports, the earliest failure first; fails the test if the job
        had to be ended.
        """
        for channel in self._channels:
            channel.send({"run": nodeid, "next": next_nodeid})
        reports: list[Report] = []
        watch = Watch(self.ranks, time.monotonic() + timeout, f"still running after {timeout:g} s")
        with selectors.DefaultSelector() as selector:
            for channel in self._channels:
                selector.register(channel.socket, selectors.EVENT_READ, channel)
            while inside := [key.data for key in selector.get_map().values()]:
                ready = selector.select(watch.patience(time.monotonic()))
                if not ready and watch.gives_up(time.monotonic(), inside):
                    self._give_up(reports, inside, watch)
                for key, _ in ready:
                    messages = key.data.receive()
                    if messages is None:
                        self._mourn(key.data, reports, watch)
                    for message in messages or ():
                        if "report" in message:
                            reports.append(self._report(key.data, message["report"]))
                            if reports[-1].report.failed:
                                watch.failed(time.monotonic())
                        elif "expected" in message:
                            watch.expected(key.data, message["expected"])
                        elif "unknown" in message:
                            self._end_unknown(key.data, message["unknown"])
                        else:
                            watch.through(key.data)
                            selector.unregister(key.data.socket)
        return reports

    def end(self) -> None:
        """Let the ranks go; end them if they do not."""
        for channel in self._channels:
            channel.close()
        try:
            if self.alive:
                self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # a rank hangs in MPI_Finalize, say: the next line ends it
        finally:
            end_process(self._process)
            self._lifeline.close()
            self._folder.cleanup()

    def _report(self, channel: Channel, data: dict[str, Any]) -> Report:
        return Report(channel.rank, self.config.hook.pytest_report_from_serializable(config=self.config, data=data))

    def _give_up(self, reports: list[Report], missing: list[Channel], watch: Watch) -> None:
        self.alive = False
        missing = sorted(missing, key=lambda channel: channel.rank)
        for channel in missing:
            channel.ask_for_stack()
        time.sleep(_STACK_SECONDS)
        stacks = [f"--- where rank {channel.rank} was\n{channel.stack()}" for channel in missing]
        names = ", ".join(str(channel.rank) for channel in missing)
        reason = f"rank {names} of {self.ranks} {watch.reason}; the job was ended"
        self._fail(reports, [reason, *watch.expectations(), *stacks])

    def _mourn(self, channel: Channel, reports: list[Report], watch: Watch) -> None:
        self.alive = False
        try:
            self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            end_process(self._process)
        reason = f"rank {channel.rank} of {self.ranks} ended inside the test; the job's output:"
        captured = [(each.rank, text) for each in self._channels if (text := each.captured())]
        lost = [f"--- captured on rank {rank}\n{text[-_LONGEST:]}" for rank, text in sorted(captured)]
        self._fail(reports, [*watch.expectations(), reason, self._output(), *lost])

    def _end_unknown(self, channel: Channel, nodeid: str) -> None:
        self.alive = False
        self._fail(
            [], [f"rank {channel.rank} of {self.ranks} did not find {nodeid}; the job's output:", self._output()]
        )

    def _fail(self, reports: Iterable[Report], lines: Iterable[str]) -> None:
        failed = [describe(report, self.ranks) for report in reports if report.report.failed]
        pytest.fail("\n".join([*failed, *lines]), pytrace=False)

    def _output(self) -> str:
        return self._log.read_text(errors="replace")[-_LONGEST:]


def _listen(path: Path, connections: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(connections)
    return listener
