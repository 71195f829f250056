"""A process that MPI has brought to a standstill after a loss is lost, too: nothing else leads out of there.

Open MPI 5.0 can wait for itself. Where it reads that a peer over TCP has ended, it holds a lock of that connection and
ends what the peer took part in; where a long message of that peer is there that nobody has received yet, it answers,
and wants that lock (`mca_btl_tcp_frag_recv`, `mca_pml_ob1_revoke_comm`). Processes that were started later talk by TCP
on one host, too.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from ddp.losses.words import Member, excuse

_PERIOD = 0.5  # seconds between looks
_LOOKS = 10  # in a row in which a thread has not moved; MPI itself does not sleep where it waits
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_SLEEPS = str(Path(__file__).with_name("nursery.py"))  # has limits of its own: MPI sleeps there until another one comes
TALKS = "ddp reserve"
"""The name of a thread that calls MPI, beside the main one."""

_over: threading.Event | None = None


def begin() -> None:
    """From now on it is looked whether this process still moves."""
    global _over
    if _over is None:
        _over = threading.Event()
        threading.Thread(target=_run, args=(_over,), name="ddp deadlock", daemon=True).start()


def end() -> None:
    """All have met again."""
    global _over
    if _over is not None:
        _over.set()
        _over = None


def _run(over: threading.Event) -> None:
    looks: dict[tuple[int, object], int] = {}
    while not over.wait(_PERIOD):
        found = {(thread, place) for thread in _threads() if (place := _place(thread))}
        looks = {each: looks.get(each, 0) + 1 for each in found}
        if max(looks.values(), default=0) > _LOOKS:
            own = Member(-1, os.getpid())
            excuse(own, f"in a deadlock inside of MPI after another loss, for {_LOOKS * _PERIOD:g} s")
            os.kill(own.pid, signal.SIGKILL)


def _threads() -> list[int]:
    """By their numbers in the kernel, those that call MPI."""
    threads = threading.enumerate()
    return [each.native_id or 0 for each in threads if each is threading.main_thread() or each.name == TALKS]


def _place(thread: int) -> tuple[int, ...] | None:
    """Where a thread sleeps in a lock, below a line of this package; None where it does not."""
    identity = next((each.ident for each in threading.enumerate() if each.native_id == thread), None)
    frame = sys._current_frames().get(identity or 0)
    file = "" if frame is None else frame.f_code.co_filename
    if frame is None or not file.startswith(_PACKAGE) or file == _SLEEPS:
        return None
    try:
        folder = Path(f"/proc/self/task/{thread}")
        call = (folder / "syscall").read_text().split()[0]
        switches = [line.split()[1] for line in (folder / "status").read_text().splitlines() if "ctxt_switches" in line]
    except (OSError, IndexError):
        return None
    return (id(frame), frame.f_lasti, *map(int, switches)) if call == _FUTEX.get(os.uname().machine) else None


_FUTEX = {"x86_64": "202", "aarch64": "98"}  # the number of the kernel's call
