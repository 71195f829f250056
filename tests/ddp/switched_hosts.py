"""Any number of hosts on one machine, behind a switch whose links have the rate and the delay that are asked for.

    python -m tests.ddp.switched_hosts 3 1gbit,1ms -m ddp.bench --transport mpi      # as root

Each host is a network namespace (`tests.ddp.two_hosts`). Without delay the kernel's bridge and its token buckets are
the switch. Not every kernel can delay packets (netem); with delay a process of ours is the switch, and each host has a
TUN device whose other end it holds. A packet leaves when the ones before it are through its sender's link, so that the
sender's TCP waits as it does for a network card; it has arrived when it is through the receiver's link, too, and the
delay is over. Nothing is lost but what finds a host's queue full. It takes 0.1 ms of a core for 64 KiB, which ranks
that use all cores miss.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from ddp.forecast import Link, parse_link
from ddp.forecast.network import PAYLOAD
from launch.testing.process import ask_to_end_with_parent
from tests.ddp.two_hosts import Hosts, give_address, must, namespaces, wait_for_cable
from tests.mpi_job import ROOT

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PR_SET_TIMERSLACK = 29
_PACKET_SECONDS = 0.0005  # that a link is to take for one: it has travelled when its last byte has
_MTU = (1500, 65_000)  # least and largest
_BURST, _QUEUE = 1 << 17, 1 << 21  # bytes of a token bucket, and of what waits for it


@contextlib.contextmanager
def switched_hosts(count: int, link: Link) -> Iterator[Hosts]:
    """So many namespaces, each behind such a link. Raises NotPossibleError, with the reason, where that cannot be."""
    link = Link(link.bandwidth / PAYLOAD, link.latency)  # of the line
    cable = f"{8 * link.bandwidth / 1e6:g} Mbit/s, {1e3 * link.latency:g} ms"
    with namespaces(count + 1) as ((*names, switch), folder), contextlib.ExitStack() as exits:
        if link.latency:
            exits.enter_context(_process(names, link))
        else:
            _bridge(names, switch, link)
        for number, name in enumerate(names, 1):
            give_address(name, number)
        for name in names:
            wait_for_cable(name)
        yield Hosts(tuple(names), folder, cable)


def _bridge(names: Sequence[str], switch: str, link: Link) -> None:
    """A namespace of the kernel's as the switch; what enters a link, from either side, goes through a token bucket."""
    must(*f"ip -netns {switch} link add bridge type bridge".split())
    must(*f"ip -netns {switch} link set bridge up".split())
    burst = max(_BURST, int(link.bandwidth * _PACKET_SECONDS))
    limited = f"root tbf rate {int(8 * link.bandwidth)} burst {burst} limit {burst + _QUEUE}".split()
    for name in names:
        port = f"to{names.index(name)}"
        must(*f"ip link add e0 netns {name} type veth peer name {port} netns {switch}".split())
        must(*f"ip -netns {switch} link set {port} master bridge up".split())
        must(*f"tc -netns {name} qdisc add dev e0".split(), *limited)
        must(*f"tc -netns {switch} qdisc add dev {port}".split(), *limited)


@contextlib.contextmanager
def _process(names: Sequence[str], link: Link) -> Iterator[None]:
    """`forward` as the switch."""
    devices = [_tun(name) for name in names]
    mtu = min(max(_MTU[0], int(link.bandwidth * _PACKET_SECONDS)), _MTU[1])
    for name in names:
        must("ip", "-netns", name, "link", "set", "e0", "mtu", str(mtu))
    numbers = [str(each) for each in (link.bandwidth, link.latency, *devices)]
    switch = subprocess.Popen(
        [sys.executable, "-m", "tests.ddp.switched_hosts", "--forward", *numbers],
        cwd=ROOT,
        pass_fds=devices,
        preexec_fn=ask_to_end_with_parent,
    )
    try:
        yield
    finally:
        switch.kill()
        switch.wait()
        for device in devices:
            os.close(device)


def _tun(name: str) -> int:
    """Gives a host the device e0; what is returned is its other end."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    here = f"tun{device}p{os.getpid() % 10**6}"
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", here.encode(), _IFF_TUN | _IFF_NO_PI))
    must("ip", "link", "set", here, "netns", name, "name", "e0")
    return device


def forward(link: Link, devices: Sequence[int]) -> None:
    """The switch, without end. Host number n has the address that ends with n."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # the ranks use all cores
    sends = dict.fromkeys(devices, 0.0)  # until when its link is busy, that way
    receives = dict.fromkeys(devices, 0.0)
    under_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, its number, where
    number = 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, device, packet = heapq.heappop(under_way)
            with contextlib.suppress(BlockingIOError):  # a host whose queue is full loses it, as from any network
                os.write(device, packet)
        free = [device for device in devices if sends[device] <= now]
        later = [sends[device] for device in devices if sends[device] > now] + [each[0] for each in under_way[:1]]
        for device in select.select(free, [], [], max(0.0, min(later) - now) if later else None)[0]:
            packet = os.read(device, 1 << 16)
            if packet[0] >> 4 != 4 or not 1 <= packet[19] <= len(devices):
                continue  # not IPv4, or to nobody
            target, takes = devices[packet[19] - 1], len(packet) / link.bandwidth
            sends[device] = max(sends[device], time.monotonic() - takes) + takes
            receives[target] = max(receives[target] + takes, sends[device])
            number += 1
            heapq.heappush(under_way, (receives[target] + link.latency, number, target, packet))


def main() -> None:
    """Runs Python with the arguments, on a rank a host."""
    if sys.argv[1] == "--forward":
        bandwidth, latency, *devices = sys.argv[2:]
        forward(Link(float(bandwidth), float(latency)), [int(device) for device in devices])
    count = int(sys.argv[1])
    with switched_hosts(count, parse_link(sys.argv[2])) as hosts:
        ended = hosts.run(sys.argv[3:], ranks=count, timeout=600)
    sys.stdout.write(ended.stdout)
    sys.stderr.write(ended.stderr)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
