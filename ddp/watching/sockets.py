"""What the kernel knows of this process's connections to other hosts: whether they acknowledge what is sent to them.

A host whose processes are stopped, or hold the GIL, acknowledges all the same: its kernel does. One that is dead, or
cut off, does not. Linux and TCP only.
"""

import fcntl
import os
import socket
import struct
import sys
import termios

_INFO_BYTES = 104
_LAST_ACKNOWLEDGED = 8 + 4 * 12  # offset in struct tcp_info: milliseconds ago
_ESTABLISHED = 1


def unacknowledged(seconds: float) -> list[str] | None:
    """The addresses to which this process has sent something that was not acknowledged for so long.

    None where it has no connection to another address, so that nothing can be said.
    """
    if sys.platform != "linux":
        return None
    silent, connections = set(), 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.type != socket.SOCK_STREAM:
                    continue
                own, other = connection.getsockname()[0], connection.getpeername()[0]
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                # Bytes not acknowledged, those included that could not even be sent, for want of a route.
                queued = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
        except OSError:  # it was closed meanwhile, or listens
            continue
        if other == own or info[0] != _ESTABLISHED:
            continue
        connections += 1
        (age,) = struct.unpack_from("I", info, _LAST_ACKNOWLEDGED)
        if queued and age > 1000 * seconds:
            silent.add(other)
    return sorted(silent) if connections else None
