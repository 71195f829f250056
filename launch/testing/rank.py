"""One rank of a test job: runs the tests that the reporting process asks for and sends it what came of them."""

import faulthandler
import fcntl
import json
import os
import re
import signal
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from launch.testing import JOB_VARIABLE, RANK_PLUGIN, number_of_ranks
from launch.testing.channel import STACK_SIGNAL

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_LONGEST = 10_000  # characters of an expected exception's traceback

# The command line is the reporting process's own, but for what only that one does: selecting tests, reporting them,
# stopping, debugging, and spreading over pytest-xdist's workers.
_OPTIONS: dict[str, Any] = {
    "keyword": "", "markexpr": "", "deselect": None, "lf": False, "failedfirst": False, "newfirst": False,
    "stepwise": False, "stepwise_skip": False, "cacheclear": False, "collectonly": False, "xmlpath": None,
    "runxfail": True, "no_header": True, "color": "no", "maxfail": 0, "usepdb": False, "trace": False,
    "numprocesses": None, "maxprocesses": None, "tx": [], "dist": "no", "distload": False,
}  # fmt: skip
_PLUGINS = ("lfplugin", "nfplugin", "stepwiseplugin")  # they write what was run into the cache


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """As early as pytest calls a plugin: a rank is to be killed with its job from its first moment on."""
    pluginmanager.register(Rank(Path(os.environ[JOB_VARIABLE])), RANK_PLUGIN)


class Rank:
    """A pytest plugin; `launch/testing/__init__.py` has the whole. `folder` belongs to the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = json.loads((folder / "settings").read_text())
        self.ranks: int = settings["ranks"]
        self.files: list[str] = settings["files"]
        self.rank = int(next(os.environ[name] for name in _RANK_VARIABLES if name in os.environ))
        self.lifeline = _connect(folder / "lifeline")
        _die_with(self.lifeline)
        self.connection = socket.socket(socket.AF_UNIX)
        self.stack = (folder / f"stack-{self.rank}").open("w")
        faulthandler.register(STACK_SIGNAL, self.stack, all_threads=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Iterator[None]:
        """Before anything is set up by the options."""
        config.args, config.args_source = self.files, config.ArgsSource.ARGS  # as if somebody had named them
        for name, value in _OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.basetemp = str(self.folder / f"rank-{self.rank}")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Leave the cache to the reporting process."""
        for name in _PLUGINS:
            if config.pluginmanager.hasplugin(name):
                config.pluginmanager.unregister(name=name)
        if self.ranks > 1:
            self._tell_of_expected_exceptions()
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is for this number of ranks."""
        items[:] = [item for item in items if number_of_ranks(item) == self.ranks]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop over what it collected."""
        items = {item.nodeid: item for item in session.items}
        with self.connection, self.connection.makefile() as lines:
            self.connection.connect(str(self.folder / "socket"))
            self.send({"rank": self.rank, "pid": os.getpid(), "stderr": self._captured_stderr()})
            for line in lines:
                message = json.loads(line)
                item, successor = items.get(message["run"]), items.get(message["next"])
                if item is None:
                    self.send({"unknown": message["run"]})
                    continue
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=successor)
                self.send({"through": True})
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send it where it is reported."""
        self.send({"report": self.config.hook.pytest_report_to_serializable(config=self.config, report=report)})

    def pytest_unconfigure(self) -> None:
        """The files close."""
        faulthandler.unregister(STACK_SIGNAL)
        self.stack.close()

    def send(self, message: dict[str, Any]) -> None:
        """A line of JSON."""
        self.connection.sendall(json.dumps(message, default=str).encode() + b"\n")

    @pytest.fixture
    def shared_tmp_path(self, request: pytest.FixtureRequest) -> Path:
        """An empty folder for this test, the same one on every rank."""
        path = self.folder / "shared" / re.sub(r"\W+", "_", request.node.nodeid)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _captured_stderr(self) -> int:
        """A descriptor of what is standard error during a test."""
        capture = self.config.pluginmanager.getplugin("capturemanager")
        capture.resume_global_capture()
        try:
            return os.dup(2)
        finally:
            capture.suspend_global_capture()

    def _tell_of_expected_exceptions(self) -> None:
        """Who has met one inside `pytest.raises` goes on, and the others may wait for it in a collective for ever."""
        leave = pytest.RaisesExc.__exit__

        def leave_and_tell(
            context: pytest.RaisesExc[Any],
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> bool:
            __tracebackhide__ = True
            as_expected = leave(context, kind, error, trace)
            if as_expected and error is not None:
                self.send({"expected": "".join(traceback.format_exception(error))[-_LONGEST:]})
            return as_expected

        pytest.RaisesExc.__exit__ = leave_and_tell  # type: ignore[method-assign]


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def _die_with(lifeline: socket.socket) -> None:
    """Have the kernel kill this process when the other end is closed, even while it is inside MPI or stopped."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
