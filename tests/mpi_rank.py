"""One rank of a test job: runs the tests that the pytest process asks for and sends it what came of them."""

import faulthandler
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

STACK_SIGNAL = signal.SIGUSR1

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class Rank:
    """A pytest plugin; see `tests/mpi_plugin.py` for the whole. `folder` belongs to the job."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.rank = int(next(os.environ[name] for name in _RANK_VARIABLES if name in os.environ))
        config.option.basetemp = str(folder / f"rank-{self.rank}")
        self.connection = socket.socket(socket.AF_UNIX)
        self.stack = (folder / f"stack-{self.rank}").open("w")
        faulthandler.register(STACK_SIGNAL, self.stack, all_threads=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop over what it collected."""
        items = {item.nodeid: item for item in session.items}
        with self.connection, self.connection.makefile() as lines:
            self.connection.connect(str(self.folder / "socket"))
            self.send({"rank": self.rank, "pid": os.getpid()})
            for line in lines:
                message = json.loads(line)
                item, successor = items[message["run"]], items.get(message["next"])
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=successor)
                self.send(None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.send(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_unconfigure(self) -> None:
        faulthandler.unregister(STACK_SIGNAL)
        self.stack.close()

    def send(self, message: dict[str, Any] | None) -> None:
        """A line of JSON; an empty line for None."""
        text = "" if message is None else json.dumps(message, default=str)
        self.connection.sendall(text.encode() + b"\n")

    @pytest.fixture
    def shared_tmp_path(self, request: pytest.FixtureRequest) -> Path:
        """An empty folder for this test, the same one on every rank."""
        path = self.folder / "shared" / re.sub(r"\W+", "_", request.node.nodeid)
        path.mkdir(parents=True, exist_ok=True)
        return path
