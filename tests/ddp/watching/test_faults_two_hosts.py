"""A program that goes wrong on one of two hosts ends on both, and what the ranks of the other host do is known."""

import re
import threading
import time
from pathlib import Path

import pytest

from tests.ddp.two_hosts import NotPossibleError, two_hosts
from tests.ddp.watching.test_faults import LATE
from tests.launch.jobs import this_mpi


def test_a_rank_of_another_host_is_named_with_its_python_line(tmp_path: Path) -> None:
    """The last rank is on the second host."""
    program = tmp_path / "program.py"
    program.write_text(LATE)
    try:
        with two_hosts() as hosts:
            results = {
                site: hosts.run([str(program), site, "10"], ranks=4, timeout=180)
                for site in ("exits before a collective", "sleeps before a collective")
            }
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")
    for site, words in {
        "exits before a collective": r"rank 3 has ended, but ranks 0, 1, 2 wait for it in all_reduce",
        "sleeps before a collective": r"rank 0 has been waiting in broadcast .* for rank 3; that is longer than the "
        r"timeout of 10 s; the job is ended\n(.|\n)*in oversleep\n    time.sleep\(100\)  # here\n",
    }.items():
        assert results[site].returncode != 0
        assert re.search(words, results[site].stderr), results[site].stderr


CUT = """
import datetime, sys, time
from pathlib import Path
import ddp, engine
from ddp.watching import watchdog
from ddp.watching.board import Board
from engine import nn

folder, what = Path(sys.argv[1]), sys.argv[2]
heard, hear = set(), Board._hear  # of each rank that has answered anything, as a page on which nothing stands yet
Board._hear = lambda board, rank: (hear(board, rank), heard.add(rank))
ddp.init_process_group(host_timeout=datetime.timedelta(seconds=4), lost_host=what)
net = ddp.DistributedDataParallel(nn.Linear(4, 4))
for _ in range(3):
    net(engine.ones(2, 4)).sum().backward()
board, until = watchdog._watchdog._board, time.monotonic() + 10
while heard < set(board.others) and time.monotonic() < until:
    time.sleep(0.1)
assert heard == set(board.others), "a rank of the other host was not asked while the network was there"
(folder / f"trains {ddp.get_rank()}").touch()
if what == "report" and ddp.get_rank() >= 2:  # the first host asks after it, the kernel acknowledges, nobody answers
    answer, Board._answer_all = Board._answer_all, lambda board: None
    time.sleep(6)
    Board._answer_all = answer
healed = engine.zeros(1)
while not healed.item():
    net(engine.ones(2, 4)).sum().backward()
    healed.fill_((folder / "healed").exists())
    ddp.all_reduce(healed, ddp.ReduceOp.MAX)
print("the end")
"""


@pytest.mark.parametrize("what", ["end", "report"])
def test_a_cable_that_is_cut_is_told_with_the_names_of_the_hosts(tmp_path: Path, what: str) -> None:
    """The job ends, though the launcher's daemons cannot reach each other; or it goes on when the cable is back, also
    where the other host had been asked before, and has acknowledged that.
    """
    program = tmp_path / "program.py"
    program.write_text(CUT)

    def cut() -> None:
        while len(list(tmp_path.glob("trains *"))) < 4:
            time.sleep(0.1)
        if what == "report":
            time.sleep(2.5)  # a wait is looked into after a second
        hosts.set_cable("down")
        if what == "report":
            time.sleep(8)  # the fault itself: for so long it is cut
            hosts.set_cable("up")
            (tmp_path / "healed").touch()

    try:
        with two_hosts() as hosts:
            threading.Thread(target=cut, daemon=True).start()
            result = hosts.run([str(program), str(tmp_path), what], ranks=4, timeout=300)
            deadline = time.monotonic() + 20
            while (left := hosts.processes()) and time.monotonic() < deadline:
                time.sleep(0.1)
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")
    told = (
        rf"ddp watchdog on {hosts.names[0]}: host {hosts.names[1]} \(ranks 2, 3\) has not been heard of for \d+ s on "
        rf"{hosts.names[0]}: it is dead, or the network between them is cut; 10.213.7.2 acknowledges nothing; the job "
    )
    ends = {"end": "is ended", "report": "goes on, as asked"}[what]
    # Told again where it was heard of in between, as when one connection is back before the other.
    # MPICH has been told that each rank is a node, by NETWORK: then both of this host tell.
    times = (1,) if what == "end" and this_mpi().name != "MPICH" else (1, 2)
    assert len(re.findall(told + ends, result.stderr)) in times, result.stderr
    assert (result.returncode == 0) == (what == "report"), result.stderr
    assert result.stdout.count("the end") == (4 if what == "report" else 0)
    assert left == []
