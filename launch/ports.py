"""Keeps the ports of mpirun to this host, for a job that is on no other.

mpirun listens on all addresses, for agents of hosts that such a job does not have, and no setting of Open MPI 5, MPICH
or Intel MPI keeps it from that. Its sockets are bound to the loopback device instead, from outside.
"""

import contextlib
import ctypes
import os
import socket

_PIDFD_GETFD = 438  # the number of the system call, on every architecture
_LISTENING = "0A"


def keep_here(pid: int) -> None:
    """Has the sockets on which a child of this process listens answer on the loopback device only.

    A kernel older than 5.7 cannot, and some containers forbid it: then they stay as mpirun has made them; see
    SECURITY.md.
    """
    listening = _listening()
    with contextlib.suppress(OSError):  # it has ended, or is not to be reached
        process = os.pidfd_open(pid)
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"/proc/{pid}/fd/{number}") in listening:
                        _bind(process, int(number))
        finally:
            os.close(process)


def _listening() -> set[str]:
    """All TCP sockets that wait for connections on this host, as a process's descriptors name them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table) as file:
                rows = [line.split() for line in file][1:]
            found |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENING}
    return found


def _bind(process: int, descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=copy) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
