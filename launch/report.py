"""A rank's line to ddprun: that the rank is there, how it ended, and in return when it may end all.

On one host a socket in a folder that only the user can enter. From other hosts TCP, after each side has proved that it
knows the job's token without sending it. Sent are lines of words:

    rank NUMBER PID HOST    first of all
    reserve PID             the same of a process that waits until a rank is lost, which is one when it has said so
    finished                the script has ended well, its threads and exit handlers too
    leaves STATUS           it ends by `os._exit`
    interrupted             KeyboardInterrupt went through the script; answered when a traceback is wanted
    kill HOST PID           a process of another host that does not answer is to be killed
    stopped HOST SECONDS PID...   those of them are to be killed that are stopped: see guard.py
    ends CODE ERROR [WORDS] it has failed, by the error that these digits stand for ("-": by none), in words; answered
                            when it may end the job
"""

import _socket  # the module socket takes 3 ms to import, this a third of one
import contextlib
import fcntl
import os
from collections.abc import MutableMapping

WHERE = "DDPRUN_REPORT"  # environment variable: a folder, or tcp:PORT:ADDRESS,ADDRESS...
TOKEN = "DDPRUN_TOKEN"  # in hexadecimal
LINE = "DDPRUN_LINE"  # on several hosts, in the environment of each rank: the descriptor of its line
NONCE = 16  # bytes, also of a proof
SOCKET, STDIN, ALIVE = "report", "stdin", "alive"  # names in the folder
KEEP_ALIVE = 30, 10, 3
"""Seconds of silence before the other end is asked, and between questions; how many of them."""

_REACH = 30.0  # seconds in which some address of ddprun must answer


class Report:
    """The line of one rank."""

    def __init__(self, line: _socket.socket) -> None:
        self._line = line.detach()  # is open to the very end, of which Python would warn if it were a socket's
        self._pid = os.getpid()

    def say(self, *words: object) -> None:
        """Sends one line. A process that the rank forked has no part in it, and there may be nobody left to hear it."""
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.write(self._line, (" ".join(map(str, words)) + "\n").encode())

    def arrive(self, rank: str) -> None:
        """Says which rank this process is."""
        self.say("rank", rank, self._pid, os.uname().nodename)

    def ask(self, *words: object) -> None:
        """Sends one line and waits for the answer, which the end of ddprun is too."""
        self.say(*words)
        with contextlib.suppress(OSError):
            os.read(self._line, 1)


def connect(environ: MutableMapping[str, str], rank: str | None) -> Report | None:
    """The line to the ddprun that started this rank, and on rank 0 its standard input; None if there is none.

    rank: None of a process in reserve.
    There is none where a command that `ddprun --dry-run` printed was started by hand. Raises OSError, with the words
    for the user, if ddprun does not answer.
    """
    where = environ.get(WHERE)
    if where is None:
        return None
    token = bytes.fromhex(environ.pop(TOKEN, ""))  # of no use to what the script starts
    if rank == "0":
        _take_stdin(where, token)
    if not token:
        _die_with(where)
    line = _reach(where, token) if token else _enter(where)
    if token:
        environ[LINE] = str(line.fileno())
    report = Report(line)
    if rank is None:
        report.say("reserve", os.getpid())
    else:
        report.arrive(rank)
    return report


def open_line(environ: MutableMapping[str, str]) -> _socket.socket | None:
    """One more connection to ddprun from another host, for its guard; None on one host, where ddprun has its own."""
    token = environ.get(TOKEN)
    return _reach(environ[WHERE], bytes.fromhex(token)) if token else None


def proof(token: bytes, side: bytes, nonces: bytes) -> bytes:
    """What only somebody who knows the token can say."""
    from hashlib import blake2b

    return blake2b(side + nonces, key=token, digest_size=NONCE).digest()


def _die_with(folder: str) -> None:
    """Has the kernel kill this rank when ddprun and its guard are both gone, which hold the other end of a pipe.

    Ranks that wait for each other in memory would else go on for ever: they ask nobody.
    """
    pipe = os.open(os.path.join(folder, ALIVE), os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, 9)  # SIGKILL
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def _take_stdin(where: str, token: bytes) -> None:
    """Puts what ddprun reads from its own standard input in the place of ours, where mpirun's would never end."""
    if token:
        line = _reach(where, token)
        line.sendall(b"stdin\n")
        os.dup2(line.fileno(), 0)
        line.close()
    else:
        pipe = os.open(os.path.join(where, STDIN), os.O_RDONLY)
        os.dup2(pipe, 0)
        os.close(pipe)


def _enter(folder: str) -> _socket.socket:
    """The socket in the folder, by a path that is short whatever the folder is called: 107 bytes are allowed."""
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    line.connect(f"/proc/self/fd/{place}/{SOCKET}")
    os.close(place)
    return line


def _reach(where: str, token: bytes) -> _socket.socket:
    """The first of ddprun's addresses that answers and knows the token: not each can be reached from every host."""
    import select
    import socket
    import time

    _, port, names = where.split(":", 2)
    tried = {}
    ready = select.poll()
    for name in names.split(","):
        line = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET)
        line.setblocking(False)
        line.connect_ex((name, int(port)))
        tried[line.fileno()] = line
        ready.register(line, select.POLLOUT)
    deadline = time.monotonic() + _REACH
    while tried and time.monotonic() < deadline:
        for number, _ in ready.poll(100):
            line = tried.pop(number)
            ready.unregister(number)
            if line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and _both_prove(line, token):
                return line
            line.close()
    raise ConnectionError(
        f"{os.uname().nodename} cannot reach ddprun, which listens on port {port} of {names}; is there a firewall?"
    )


def _both_prove(line: _socket.socket, token: bytes) -> bool:
    """Whether it is ddprun that answers; it is told in turn that we belong to the job."""
    line.settimeout(5.0)
    nonces = os.urandom(NONCE)
    try:
        line.sendall(nonces)
        answer = b""
        while len(answer) < 2 * NONCE:
            if not (part := line.recv(2 * NONCE - len(answer))):
                return False
            answer += part
        nonces += answer[:NONCE]
        if answer[NONCE:] != proof(token, b"ddprun", nonces):
            return False
        line.sendall(proof(token, b"rank", nonces))
    except OSError:
        return False  # something else that listens there
    line.settimeout(None)
    keep_alive(line)
    return True


def keep_alive(line: _socket.socket) -> None:
    """Has the kernel notice within a minute that the host behind a connection has lost its power, or its cable."""
    line.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
    options = (_socket.TCP_KEEPIDLE, _socket.TCP_KEEPINTVL, _socket.TCP_KEEPCNT)
    for option, value in zip(options, KEEP_ALIVE, strict=True):
        line.setsockopt(_socket.IPPROTO_TCP, option, value)
