"""Who connects to ddprun: the ranks of a job, and the guards of other hosts. report.py is the other side.

A job on this host alone connects through a folder that only its user can enter, and no port is opened. For other hosts
one port is, on all addresses; who connects there proves first that it knows the token.
"""

import contextlib
import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path

from launch.events import Events
from launch.report import NONCE, SOCKET, TOKEN, WHERE, keep_alive, proof

_STRANGERS = 64  # connections at a time that have proved nothing yet; the oldest makes room


class Peer:
    """One connection, by lines of words."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.text = b""

    def say(self, *words: object) -> None:
        """Sends one line; if the other side has ended meanwhile, that is heard soon enough."""
        with contextlib.suppress(OSError):
            self.line.sendall((" ".join(map(str, words)) + "\n").encode())


class Door:
    """Takes connections. `heard` gets each line of each peer as words, `lost` each peer whose connection has ended."""

    def __init__(
        self, events: Events, folder: str | None, heard: Callable[[Peer, list[str]], None], lost: Callable[[Peer], None]
    ) -> None:
        self._events, self._heard, self._lost = events, heard, lost
        self._token = b"" if folder else os.urandom(NONCE)
        self._strangers: dict[Peer, bytes] = {}  # and the nonces exchanged with them
        self._entry = _in_folder(folder) if folder else _on_network()
        self._entry.setblocking(False)
        self._entry.listen(4096)
        events.add(self._entry.fileno(), self._accept)
        if folder:
            self.variables = {WHERE: folder}
        else:
            port = self._entry.getsockname()[1]
            self.variables = {WHERE: f"tcp:{port}:{','.join(addresses())}", TOKEN: self._token.hex()}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again already
            line, _ = self._entry.accept()
            line.setblocking(False)
            peer = Peer(line)
            if self._token:
                keep_alive(line)
                self._strangers[peer] = b""
                if len(self._strangers) > _STRANGERS:
                    self._forget(next(iter(self._strangers)))
            self._events.add(line.fileno(), lambda: self._read(peer))

    def _read(self, peer: Peer) -> None:
        try:
            part = peer.line.recv(65536)
        except BlockingIOError:
            return
        except OSError:  # reset, or given up by the kernel: no other end than a plain one
            part = b""
        peer.text += part
        if peer in self._strangers and not self._prove(peer):
            if not part:
                self._forget(peer)
            return
        *lines, peer.text = peer.text.split(b"\n")
        for line in lines:
            self._heard(peer, line.decode(errors="replace").split())
        if not part:
            self._forget(peer)
            self._lost(peer)

    def _prove(self, peer: Peer) -> bool:
        """Goes one step on with a stranger; whether it has become a peer."""
        if not self._strangers[peer]:
            if len(peer.text) < NONCE:
                return False
            nonces, peer.text = peer.text[:NONCE] + os.urandom(NONCE), peer.text[NONCE:]
            self._strangers[peer] = nonces
            with contextlib.suppress(OSError):
                peer.line.sendall(nonces[NONCE:] + proof(self._token, b"ddprun", nonces))
        if len(peer.text) < NONCE:
            return False
        from hmac import compare_digest  # with OpenSSL behind it: not where it is not needed

        nonces, said, peer.text = self._strangers[peer], peer.text[:NONCE], peer.text[NONCE:]
        if not compare_digest(said, proof(self._token, b"rank", nonces)):
            self._forget(peer)
            return False
        del self._strangers[peer]
        return True

    def give_away(self, peer: Peer) -> socket.socket:
        """The connection of a peer, which is no peer from now on."""
        self._events.remove(peer.line.fileno())
        return peer.line

    def _forget(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)
        if peer.line.fileno() >= 0:
            self._events.remove(peer.line.fileno())
            peer.line.close()

    def close(self) -> None:
        """Takes nobody any more."""
        self._events.remove(self._entry.fileno())
        self._entry.close()


def _in_folder(folder: str) -> socket.socket:
    entry = socket.socket(socket.AF_UNIX)
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    entry.bind(f"/proc/self/fd/{place}/{SOCKET}")  # short, whatever the folder is called: 107 bytes are allowed
    os.close(place)
    return entry


def _on_network() -> socket.socket:
    return socket.create_server(
        ("", 0), family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
        dualstack_ipv6=socket.has_dualstack_ipv6(),
    )  # fmt: skip


def addresses(proc: Path = Path("/proc")) -> list[str]:
    """The addresses of this host, by which other hosts may reach it, those of a cable first and loopback last."""
    found: list[str] = []
    routes = (proc / "net/fib_trie").read_text().split("\n")
    for line, after in itertools.pairwise(routes):
        if "host LOCAL" in after and "|-- " in line:
            found.append(line.split("|-- ")[1].strip())
    six = proc / "net/if_inet6"
    for row in six.read_text().splitlines() if six.is_file() else ():
        digits, _, _, scope, *_ = row.split()
        if scope == "00":  # global; one of a link only would need the link's name on the other host
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))
