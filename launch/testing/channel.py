"""The connection to one rank of a test job, as the process that reports sees it."""

import json
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

STACK_SIGNAL = signal.SIGUSR1
"""On it a rank writes its Python stack to its file, even while it is inside MPI."""

_FRAMES_OF_PYTEST = ("/_pytest/", "/pluggy/", "/pytest/", "/launch/testing/", "<frozen runpy>")


class Channel:
    """Messages are lines of JSON, each with one key that says what it is; see `launch/testing/rank.py`."""

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self.socket = connection
        self._folder = folder
        self._received = b""
        self._stack_read = 0
        messages = self.receive()
        assert messages is not None, "the rank was gone before it said who it is"
        self.rank, self.pid = int(messages[0]["rank"]), int(messages[0]["pid"])
        stderr = f"/proc/{self.pid}/fd/{messages[0]['stderr']}"
        # A file while pytest captures it, else a pipe. Opened anew, it is read without moving the rank's own place.
        self._captured = open(stderr, "rb") if stat.S_ISREG(os.stat(stderr).st_mode) else None  # noqa: SIM115

    def send(self, message: dict[str, Any]) -> None:
        """Nothing happens when the rank is gone: reading from it says so, and then it is reported."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None when the rank is gone."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def ask_for_stack(self) -> None:
        """Have the rank write its stack; `stack` has it a moment later."""
        try:
            os.kill(self.pid, STACK_SIGNAL)
        except ProcessLookupError:
            return  # it is gone

    def stack(self) -> str:
        """What the rank wrote of its stack since this was last called, without pytest's own frames."""
        with (self._folder / f"stack-{self.rank}").open("rb") as file:
            file.seek(self._stack_read)
            text = file.read()
        self._stack_read += len(text)
        lines = text.decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not any(name in line for name in _FRAMES_OF_PYTEST))

    def captured(self) -> str:
        """What pytest keeps of the rank's standard error since the last phase of a test that it reported.

        The rank itself can tell of it no more when it has been ended from within: by a watchdog, or by MPI.
        """
        if self._captured is None:
            return ""
        self._captured.seek(0)
        return self._captured.read().decode(errors="replace")

    def close(self) -> None:
        """Let the rank go. It ends by itself, and at once if it does not read what is said to it."""
        self.socket.close()
        if self._captured is not None:
            self._captured.close()
