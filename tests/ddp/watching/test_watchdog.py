"""From what ranks report of themselves to who keeps whom waiting."""

import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import ddp
from ddp import losses
from ddp.watching.record import Place, Record, Waiting, stack_of_main_thread
from ddp.watching.sockets import unacknowledged
from ddp.watching.telling import OWN_CODE, Teller
from ddp.watching.verdict import (
    describe_awaited,
    describe_lost,
    describe_ranks,
    describe_wait,
    format_stack,
    gone_ranks,
    late_ranks,
    speaker,
    stuck_ranks,
)
from ddp.world import bootstrap
from engine.calls import listening

OWN = ("/lib/ddp/",)
HERE = (Place("/home/train.py", 12, "main"), Place("/lib/ddp/collectives.py", 3, "all_reduce"))
WORLD = (0, 1, 2)


def waits(channel: str, number: int, ranks: tuple[int, ...] = WORLD, anybody: bool = False, **done: int) -> Record:
    """A rank that has contributed `done` and waits."""
    waiting = Waiting(channel, number, f"meeting of {channel}", 10.0, ranks, 60.0, anybody)
    return Record(20.0, {channel: number, **done}, waiting, HERE, "")


def works(ended: str = "", **done: int) -> Record:
    """A rank that does something else."""
    return Record(20.0, done, None, (Place("/home/train.py", 30, "load"),), ended)


@pytest.mark.parametrize(
    ("records", "late", "gone", "stuck"),
    [
        ([waits("a", 3), works(a=2), works(a=3)], [1], [], []),
        ([waits("a", 3), works(a=3), works(a=4)], [], [], []),  # the bytes are on their way
        ([waits("a", 3), works("has ended", a=2), works(a=3)], [1], [1], []),
        ([waits("a", 3), works("has ended", a=3), works(a=2)], [2], [], []),  # it had done its part
        ([waits("a", 3), waits("b", 1, a=2), works(a=2, b=0)], [1, 2], [], [0, 1]),  # rank 2 cannot help
        ([waits("a", 3), waits("b", 1, (1, 2), a=2), works(a=2)], [1, 2], [], []),  # rank 2 may set both free
        ([waits("a", 3), waits("b", 1, a=2), waits("c", 5, a=3, b=1)], [1], [], [0, 1, 2]),
        ([waits("a", 1), waits("b", 1, (0, 1)), works(a=1)], [1], [], [0, 1]),
        ([waits("a", 1), waits("b", 1, (1, 2)), waits("b", 1, (1, 2))], [1, 2], [], []),  # b can go on
        ([waits("x", 1, anybody=True), waits("b", 1), works()], [1, 2], [], []),  # rank 2 may write to rank 0
        ([waits("x", 1, anybody=True), waits("b", 1), waits("b", 1)], [1, 2], [], [0, 1, 2]),
        ([waits("x", 1, anybody=True), works("has ended"), works()], [1, 2], [], []),
        ([waits("x", 1, anybody=True), works("has ended"), works("has ended")], [1, 2], [1, 2], []),
        ([waits("a", 3), waits("a", 3)], [], [], []),  # rank 2 is on another node
        ([waits("a", 3), works("has ended")._replace(contributed=None), works(a=3)], [], [], []),
    ],
)
def test_who_keeps_rank_0_waiting(records, late, gone, stuck) -> None:
    found = dict(enumerate(records))
    waiting = found[0].waiting
    assert (late_ranks(waiting, found), gone_ranks(waiting, found), stuck_ranks(found)) == (late, gone, stuck)


def test_who_is_stopped_is_named_and_leaves_speaking_to_others() -> None:
    """Also where it has begun its part, as the others have: nothing says how far it came."""
    stopped = waits("a", 3)
    records = {0: stopped, 1: waits("a", 3)._replace(beat=27.0), 2: waits("a", 3)._replace(beat=27.0)}
    own = records[1].waiting._replace(since=11.0)
    records[1] = records[1]._replace(waiting=own)
    assert speaker(own, records, 22.0) == 0
    assert describe_awaited(own, records, 22.0) == "bytes to arrive, or ranks that cannot be seen from here"
    assert speaker(own, records, 27.0) == 1
    assert describe_awaited(own, records, 27.0) == "rank 0, which does not answer"
    late = {**records, 2: works(a=2)}
    assert describe_awaited(own, late, 27.0) == "rank 2"


def test_who_is_late_because_it_waits_itself_is_not_named_beside_who_holds_it_up() -> None:
    """Rank 0 is still in what comes before, and waits there for the stopped rank 2."""
    before = waits("a", 1)
    records = {0: before._replace(beat=27.0), 1: waits("b", 1, a=1)._replace(beat=27.0), 2: before}
    own = records[1].waiting
    assert late_ranks(own, records) == [0, 2]
    assert describe_awaited(own, records, 27.0) == "rank 2"
    assert describe_awaited(own, records, 22.0) == "ranks 0, 2"  # nobody has been silent for long yet
    assert describe_awaited(own, {**records, 2: works()}, 22.0) == "rank 2"  # it computes


def test_ranks_in_words() -> None:
    records = {0: waits("a", 3), 1: waits("a", 3), 2: works(a=2), 4: works("has ended")}
    text = describe_ranks([0, 1, 2, 3, 4], records, 21.0, OWN)
    assert text.splitlines() == [
        "ranks 0, 1 wait in meeting of a (number 3 of a), at",
        '  File "/home/train.py", line 12, in main',
        "rank 2 is elsewhere, at",
        '  File "/home/train.py", line 30, in load',
        "rank 3 is on another node, and what it does is not known here",
        "rank 4 has ended",
    ]
    assert describe_wait(records[0].waiting, 22.4) == "meeting of a (number 3 of a) for 12 s"


def test_a_rank_that_does_not_answer() -> None:
    text = describe_ranks([0], {0: works()}, 27.0, OWN)
    assert text.startswith(
        "rank 0 does not answer since 7 s (stopped, or in code that holds the GIL); then it was at\n"
    )


def test_a_stack_ends_where_the_package_was_called_and_shows_the_lines(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("first\nddp.all_reduce(x)\n")
    stack = (Place(str(script), 2, "<module>"), Place("/lib/ddp/work.py", 9, "wait"))
    assert format_stack(stack, OWN) == f'  File "{script}", line 2, in <module>\n    ddp.all_reduce(x)'
    stack = (stack[0], Place(listening.__file__, 74, "told"), Place(ddp.__file__, 9, "run"))
    assert format_stack(stack, OWN_CODE) == f'  File "{script}", line 2, in <module>\n    ddp.all_reduce(x)'
    inside = (Place("/lib/ddp/bench.py", 1, "main"),)
    assert format_stack(inside, OWN) == '  File "/lib/ddp/bench.py", line 1, in main'


LOOKED_AT = """
import gc, sys, threading, time
from ddp.watching.record import stack_of_main_thread

class Garbage:
    alive = collected = 0

    def __init__(self):
        self.itself = self
        Garbage.alive += 1

    def __del__(self):
        Garbage.alive -= 1
        Garbage.collected += 1
        time.sleep(0)  # lets the other thread run

def note(phase, info):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is stack_of_main_thread.__code__ and phase == "start":
            inside.append(info)
        frame = frame.f_back

def look():
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert stack_of_main_thread()[-1].function
    ended.append(True)

def call(depth, *others):
    garbage = Garbage()
    return call(depth - 1, garbage, *others) if depth else others

ended, inside = [], []
sys.setswitchinterval(1e-6)
gc.set_threshold(3, 2, 2)
gc.freeze()
gc.callbacks.append(note)
threading.Thread(target=look).start()
while not ended:
    call(30)
    while Garbage.alive > 1000 and not ended:  # the other thread may be collecting: not more than it can
        gc.collect()
        time.sleep(0)
print(gc.isenabled(), len(inside) if sys.version_info < (3, 12) else 0, Garbage.collected > 1000)
"""


def test_garbage_may_be_collected_while_it_looks_at_the_main_thread() -> None:
    """Before Python 3.12 not by the thread that looks: it would take another object for the frame that it holds."""
    done = subprocess.run([sys.executable, "-c", LOOKED_AT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True 0 True\n", "")


def test_a_frame_between_two_lines_has_that_of_its_function() -> None:
    """As a frame is seen at an instruction of the compiler's own, which stands in no line."""

    def look() -> tuple[Place, ...]:
        return stack_of_main_thread()

    look.__code__ = look.__code__.replace(co_linetable=b"")
    place = next(place for place in look() if place.function == "look")
    assert place.line == look.__code__.co_firstlineno


def test_what_cannot_be_told_ends_the_job_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(bootstrap, "abort", ended.append)
    with pytest.raises(AttributeError):
        Teller(0, ["here"], []).end_job("a reason", {0: object()})  # type: ignore[dict-item]
    assert ended == [1]


def test_where_a_rank_is_lost_already_this_one_ends_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where that cannot be told, too: then with the error that is the reason."""
    ended: list[str] = []
    monkeypatch.setattr(bootstrap, "end_alone", lambda: ended.append("alone"))
    noticed = threading.Event()
    noticed.set()
    monkeypatch.setattr(losses, "watching", lambda: SimpleNamespace(noticed=noticed))
    with pytest.raises(AttributeError):
        Teller(0, ["here"], []).give_up("a reason", True, {0: object()})  # type: ignore[dict-item]
    assert ended == ["alone"]
    assert "AttributeError: 'object' object has no attribute" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_nobody_reads_what_it_says(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def write(text: str) -> None:
        raise failure

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write))
    Teller(0, ["here"], []).say("a headline", [0], {0: works()})


def test_hosts_are_named_where_there_are_several() -> None:
    records = {0: waits("a", 3), 1: waits("a", 3), 2: works("has ended")}
    text = describe_ranks([0, 1, 2], records, 21.0, OWN, ["left", "right", "right"])
    assert [line for line in text.splitlines() if line.startswith("rank")] == [
        "rank 0 on left waits in meeting of a (number 3 of a), at",
        "rank 1 on right waits in meeting of a (number 3 of a), at",
        "rank 2 on right has ended",
    ]
    assert " on " not in describe_ranks([2], records, 21.0, OWN, ["one", "one", "one"])


def test_lost_hosts_in_words() -> None:
    assert describe_lost({"b": [2, 3]}, "a", 61.2, ["10.0.0.2"]) == (
        "host b (ranks 2, 3) has not been heard of for 61 s on a: it is dead, or the network between them is cut; "
        "10.0.0.2 acknowledges nothing"
    )
    assert describe_lost({"b": [2], "c": [3]}, "a", 61.2, []) == (
        "hosts b (rank 2), c (rank 3) have not been heard of for 61 s on a: they are dead, or the network between them "
        "is cut"
    )


def test_a_report_comes_again_only_when_the_time_has_doubled() -> None:
    teller = Teller(0, ["here"], [])
    said: list[str] = []
    teller.say = lambda headline, *_: said.append(headline)  # type: ignore[method-assign]
    for wait in ("a wait", "another"):
        for seconds in range(1800):
            teller.report(wait, float(seconds), 1800.0, f"{wait}: {seconds}", (), {})
    assert said == [f"{wait}: {seconds}" for wait in ("a wait", "another") for seconds in (61, 121, 241, 481, 961)]


def test_connections_to_this_host_itself_say_nothing_of_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert unacknowledged(0.0) is None
