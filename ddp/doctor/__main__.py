"""The command: facts and what they mean at once, then the trials one by one, so that a line is there when one hangs."""

import datetime
import faulthandler
import fcntl
import os
import socket
import sys
import termios
import time
from collections import Counter

import ddp
from ddp.doctor import facts
from ddp.doctor.findings import FAIL, OK, WARN, Finding, as_text, count
from ddp.doctor.judgements import JUDGEMENTS
from ddp.doctor.trials import TRIALS
from ddp.groups.group import resolve
from ddp.world import bootstrap

_TIMEOUT = 120.0  # seconds that a rank waits for the others; the watchdog ends the job then
_LIMIT = 240.0  # seconds for all of it; where a call of MPI holds the interpreter lock, no watchdog of ours sees it


def main() -> int:
    """Reports on rank 0; returns its exit code there, 0 on the others."""
    # By a thread in C: it needs no interpreter lock, which a call of MPI that hangs may hold.
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    try:
        ddp.init_process_group(timeout=datetime.timedelta(seconds=_TIMEOUT))
    except RuntimeError as error:
        # By every process: those that do not find each other do not know which one is to speak.
        print(as_text(Finding(FAIL, "MPI", f"{socket.gethostname()}, process {os.getpid()}: {error}")))
        return 1
    verdicts = _examine()
    code = 0
    if bootstrap.default_world().rank == 0:
        print(f"{count(verdicts[OK], 'fact')} ok, {count(verdicts[WARN], 'warning')}, {verdicts[FAIL]} failed")
        sys.stdout.flush()
        _wait_until_read(sys.stdout.fileno())
        code = 1 if verdicts[FAIL] else 0
    ddp.destroy_process_group()
    return code


def _examine() -> Counter[str]:
    """Collective: prints the findings on rank 0, and returns how many there are of each verdict."""
    group = resolve(None)
    ranks = group.exchange(facts.gather())
    verdicts: Counter[str] = Counter()

    def report(findings: list[Finding]) -> None:
        verdicts.update(finding.verdict for finding in findings)
        if group.rank == 0 and findings:
            print("\n".join(map(as_text, findings)), flush=True)

    for judge in JUDGEMENTS:
        report(judge(ranks))
    for trial in TRIALS:
        with group.meeting(f"ddp.doctor's trial of {trial.__name__.replace('_', ' ')}"):
            findings = trial(group, ranks)
        report(findings)
    return verdicts


def _wait_until_read(descriptor: int) -> None:
    """Return when mpirun has read what is in the pipe, after a second at most: what is there when a rank ends with an
    error may be lost.
    """
    deadline = time.monotonic() + 1.0
    try:
        while any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))) and time.monotonic() < deadline:
            time.sleep(0.001)
    except OSError:  # not a pipe: written through
        return


if __name__ == "__main__":
    sys.exit(main())
