"""Keeps the ports of mpirun to this host, for a job that is on no other.

mpirun listens on all addresses, for agents of hosts that such a job does not have, and no setting of Open MPI 5, MPICH
or Intel MPI keeps it from that. Its sockets are bound to the loopback device instead, from outside.
"""

import contextlib
import os
import socket

_PIDFD_GETFD = 438  # the number of the system call, on every architecture


def keep_here(pid: int) -> None:
    """Has the sockets on which a process of this user listens answer on the loopback device only.

    A kernel older than 5.7 cannot, and some containers forbid it: then they stay as mpirun has made them; see
    SECURITY.md.
    """
    with contextlib.suppress(OSError):  # it has ended, or is not to be reached
        process = os.pidfd_open(pid)
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                        _bind(process, int(number))
        finally:
            os.close(process)


def _bind(process: int, descriptor: int) -> None:
    import ctypes  # late: see launch.mpirun

    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=copy) as ours:
        on_network = ours.family in (socket.AF_INET, socket.AF_INET6) and ours.type == socket.SOCK_STREAM
        if on_network and ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
