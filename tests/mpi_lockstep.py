"""One `mpirun` whose ranks run tests in lockstep: the pytest side of it; `tests/mpi_rank.py` is the other end."""

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mpi_job import end_process, mpirun_command, start_process

JOB_VARIABLE = "ALLSTRIDE_TEST_JOB"
"""Set on the ranks of a test job: the folder with its socket."""

_START_SECONDS = 120.0  # mpirun, Python, and collection of one file on every rank of a busy machine
_STRAGGLER_SECONDS = 5.0  # what the other ranks have to end a test in which one rank has failed
_DEATH_SECONDS = 5.0  # what mpirun has to end when a rank is gone
_STACK_SECONDS = 0.5  # what a rank has to print its stack before it is ended
_FRAMES_OF_PYTEST = ("/_pytest/", "/pluggy/", "/pytest/", "/mpi_rank.py", "<frozen runpy>")


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
    """One `mpirun` whose ranks run tests of one file on demand."""

    def __init__(self, config: pytest.Config, path: Path, ranks: int) -> None:
        self.config = config
        self.ranks = ranks
        self.alive = False
        self._folder = tempfile.TemporaryDirectory(prefix="allstride-")
        folder = Path(self._folder.name)
        self._log = folder / "log"
        self._channels: list[Channel] = []
        options = [str(path), f"--rootdir={config.rootpath}", "--runxfail", "-p", "no:cacheprovider", "-q"]
        if config.inipath is not None:
            options += ["-c", str(config.inipath)]
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(folder / "socket"))
            listener.listen(ranks)
            command = [*mpirun_command(ranks), sys.executable, "-m", "pytest", *options]
            self._process = start_process(command, log.fileno(), log.fileno(), _rank_environment(folder))
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + _START_SECONDS
        while len(self._channels) < self.ranks:
            try:
                self._channels.append(Channel(listener.accept()[0]))
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = self._output()
                    self.end()
                    pytest.fail(f"the job of {self.ranks} ranks did not start; its output:\n{text}", pytrace=False)
        for channel in self._channels:
            channel.rank, channel.pid = channel.receive_hello()
        self.alive = True

    def run(self, nodeid: str, next_nodeid: str | None, timeout: float) -> list[Report]:
        """Run one test on all ranks. Returns the ranks' reports, the earliest failure first; raises if the job had to
        be ended.
        """
        for channel in self._channels:
            channel.send({"run": nodeid, "next": next_nodeid})
        reports: list[Report] = []
        deadline = time.monotonic() + timeout
        reason = f"still running after {timeout:g} s"
        with selectors.DefaultSelector() as selector:
            for channel in self._channels:
                selector.register(channel.socket, selectors.EVENT_READ, channel)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._give_up(reports, [key.data for key in selector.get_map().values()], reason)
                for key, _ in ready:
                    channel = key.data
                    messages = channel.receive()
                    if messages is None:
                        self._mourn(channel, reports)
                    for message in messages or ():
                        if message is None:
                            selector.unregister(channel.socket)
                            continue
                        report = self.config.hook.pytest_report_from_serializable(config=self.config, data=message)
                        if report.failed and not any(earlier.report.failed for earlier in reports):
                            deadline = min(deadline, time.monotonic() + _STRAGGLER_SECONDS)
                            reason = f"still running {_STRAGGLER_SECONDS:g} s after that"
                        reports.append(Report(channel.rank, report))
        return reports

    def end(self) -> None:
        """Let the ranks go; end them if they do not."""
        for channel in self._channels:
            channel.socket.close()
        try:
            if self.alive:
                self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # a rank hangs in MPI_Finalize, say: the next line ends it
        finally:
            end_process(self._process)
            self._folder.cleanup()

    def _give_up(self, reports: list[Report], missing: "list[Channel]", reason: str) -> None:
        self.alive = False
        for channel in missing:
            channel.ask_for_stack()
        time.sleep(_STACK_SECONDS)
        stacks = [f"--- where rank {channel.rank} was\n{self._stack(channel.rank)}" for channel in missing]
        names = ", ".join(str(rank) for rank in sorted(channel.rank for channel in missing))
        self._fail(reports, f"rank {names} of {self.ranks} {reason}; the job was ended", stacks)

    def _mourn(self, channel: "Channel", reports: list[Report]) -> None:
        self.alive = False
        try:
            self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            end_process(self._process)
        self._fail(
            reports, f"rank {channel.rank} of {self.ranks} ended inside the test; the job's output:", [self._output()]
        )

    def _fail(self, reports: Iterable[Report], reason: str, details: list[str]) -> None:
        failed = [describe(report, self.ranks) for report in reports if report.report.failed]
        pytest.fail("\n".join([*failed, reason, *details]), pytrace=False)

    def _stack(self, rank: int) -> str:
        lines = Path(self._folder.name, f"stack-{rank}").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not any(name in line for name in _FRAMES_OF_PYTEST))

    def _output(self) -> str:
        return self._log.read_text(errors="replace")[-10_000:]


def _rank_environment(folder: Path) -> dict[str, str]:
    # Plugins of the environment are for the process that reports; on every rank they only cost time.
    return {JOB_VARIABLE: str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class Channel:
    """The connection to one rank: a line is a message, an empty line says that the rank is through with the test."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.rank = self.pid = -1
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # it is gone: reading from it says so, and then it is reported

    def receive(self) -> list[dict[str, Any] | None] | None:
        """What has arrived: messages, None among them for "through"; None instead of a list when the rank is gone."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) if line else None for line in lines]

    def receive_hello(self) -> tuple[int, int]:
        """The rank and its process."""
        self.socket.settimeout(_START_SECONDS)
        messages = self.receive()
        self.socket.settimeout(None)
        assert messages is not None
        assert messages[0] is not None
        return messages[0]["rank"], messages[0]["pid"]

    def ask_for_stack(self) -> None:
        """Have the rank write its Python stack to a file; it does so even while it is inside MPI."""
        from tests.mpi_rank import STACK_SIGNAL

        try:
            os.kill(self.pid, STACK_SIGNAL)
        except ProcessLookupError:
            return  # it is gone
