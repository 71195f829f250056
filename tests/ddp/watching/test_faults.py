"""A program that goes wrong on one rank ends on all of them, soon, and says why. Whole programs, real processes."""

import re

import pytest

from tests.mpi_job import run_job

PROGRAM = """
import sys
import ddp, engine, engine.nn as nn
from engine.optim import SGD
from ddp import DistributedDataParallel

site = sys.argv[1]
ddp.init_process_group()
last = ddp.get_rank() == ddp.get_world_size() - 1

def fail(here, *_):
    if last and here == site:
        raise KeyError("lost at " + here)

if site == "model":
    width = 5 if last else 4
    DistributedDataParallel(nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)))

fail("before wrapping")
net = DistributedDataParallel(nn.Sequential(*[nn.Linear(50, 50) for _ in range(10)]), bucket_cap_mb=0.01)
net.module[4].weight.register_hook(lambda gradient: fail("a hook of backward"))
optimizer = SGD(net.parameters(), lr=0.1)

def batches():
    for step in range(1000):
        if step == 3:
            fail("the data")
        yield step, engine.ones(2, 50)

net.module[2].register_forward_pre_hook(lambda module, inputs: fail("forward"))
for step, inputs in batches():
    optimizer.zero_grad()
    loss = net(inputs).sum()
    if step == 2:
        fail("between forward and backward")
    loss.backward()
    if step == 2:
        fail("after backward")
    optimizer.step()
print("the end")
"""


@pytest.mark.parametrize(
    ("site", "ranks"),
    [
        pytest.param("before wrapping", 2, marks=pytest.mark.full),
        pytest.param("the data", 2, marks=pytest.mark.full),
        ("forward", 3),
        pytest.param("between forward and backward", 3, marks=pytest.mark.full),
        pytest.param("a hook of backward", 2, marks=pytest.mark.full),
        pytest.param("a hook of backward", 4, marks=pytest.mark.full),
        pytest.param("after backward", 3, marks=pytest.mark.full),
    ],
)
def test_an_exception_on_one_rank_ends_all_with_its_traceback(site: str, ranks: int) -> None:
    result = run_job(PROGRAM, ranks, timeout=90, args=[site], runner=())
    assert result.returncode != 0
    assert "the end" not in result.stdout
    # the first that is to be read, after what may be said of kernels, and the only one: the others did nothing wrong
    said = re.sub(r"\A(allstride: compiling .*\n)+", "", result.stderr)
    assert said.startswith(f"rank {ranks - 1} of {ranks} raised:\nTraceback (most recent call last):\n")
    assert f"KeyError: 'lost at {site}'" in result.stderr
    assert result.stderr.count("Traceback") == 1


IN_A_SUM = """
import sys
import ddp, engine, engine.nn as nn
from ddp.transport import background
from ddp.transport.mpi import MpiTransport

by_thread = sys.argv[1] == "a thread"
background.with_better_progress = lambda made, comm: background.BackgroundTransport(made, by_thread)
waits, post, poll = [], MpiTransport._post_scatter, MpiTransport.poll

def failing(self, buffer, chunk):
    if ddp.get_rank() == 1 and len(waits) == 1 and buffer is not waits[0]:
        raise KeyError("lost in a sum")
    post(self, buffer, chunk)

def wait(self, buffer, wait=MpiTransport.wait):
    waits.append(buffer)
    wait(self, buffer)

ddp.init_process_group(transport="mpi")
net = ddp.DistributedDataParallel(nn.Sequential(*[nn.Linear(50, 50) for _ in range(4)]), bucket_cap_mb=0.01)
MpiTransport._post_scatter, MpiTransport.wait = failing, wait
MpiTransport.poll = lambda self: waits and poll(self)
net(engine.ones(2, 50)).sum().backward()
"""


@pytest.mark.full
@pytest.mark.parametrize("progress", ["polling", "a thread"])
def test_an_exception_while_several_sums_are_under_way_is_told_at_once(progress: str) -> None:
    """What the rank has not sent the others wait for: it does not wait for its other sums first."""
    result = run_job(IN_A_SUM, 2, timeout=60, args=[progress], runner=())
    assert result.returncode != 0
    assert result.stderr.startswith("rank 1 of 2 raised:\nTraceback (most recent call last):\n")
    assert "KeyError: 'lost in a sum'" in result.stderr


WORKER = """
import ddp, engine, engine.nn as nn
from engine.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if self.bad and index == 6:
            raise KeyError("lost in a worker")
        return engine.ones(4)

if __name__ == "__main__":
    ddp.init_process_group()
    net = ddp.DistributedDataParallel(nn.Linear(4, 4))
    for inputs in DataLoader(Data(ddp.get_rank() == 1), batch_size=2, num_workers=1):
        net(inputs).sum().backward()
"""


@pytest.mark.full
def test_an_exception_in_a_worker_of_a_data_loader_ends_all() -> None:
    result = run_job(WORKER, 2, timeout=60, runner=())
    assert result.returncode != 0
    assert "rank 1 of 2 raised:\nTraceback (most recent call last):\n" in result.stderr
    assert "KeyError: 'lost in a worker'" in result.stderr
    assert "rank 0 of 2 raised" not in result.stderr


@pytest.mark.full
def test_models_that_differ_end_the_job_with_the_difference() -> None:
    result = run_job(PROGRAM, 3, timeout=90, args=["model"], runner=())
    assert result.returncode != 0
    assert (
        "ValueError: DistributedDataParallel: parameters differ between ranks: rank 2 has 0.weight (5, 3) float32 "
        "where rank 0 has (4, 3) float32; build the same model on every rank" in result.stderr
    )


LATE = """
import datetime, os, sys, time
import ddp, engine, engine.nn as nn
from ddp import DistributedDataParallel

site, timeout = sys.argv[1], float(sys.argv[2])
ddp.init_process_group()
last = ddp.get_rank() == ddp.get_world_size() - 1
net = DistributedDataParallel(nn.Linear(4, 4))
x = engine.ones(3)
ddp.all_reduce(x)
impatient = ddp.new_group(timeout=datetime.timedelta(seconds=timeout))
ddp.barrier(impatient)

def backward():
    net(engine.ones(2, 4)).sum().backward()

def oversleep():
    time.sleep(100)  # here

if site == "exits before a collective":
    if last:
        sys.exit(0)
    ddp.all_reduce(x)
elif site == "exits before backward":
    if last:
        sys.exit("enough")
    backward()
elif site == "leaves":
    if last:
        ddp.destroy_process_group()
    else:
        ddp.barrier()
elif site == "sleeps before a collective":
    oversleep() if last else ddp.broadcast(x, 0, impatient)
elif site == "sleeps in a hook":
    net = DistributedDataParallel(nn.Linear(4, 4), process_group=impatient)
    net.module.weight.register_hook(lambda gradient: oversleep() if last else None)
    backward()
elif site == "sleeps for a while":
    if last:
        time.sleep(3)
    backward()
    print("the end")
elif site == "a collective for backward":
    ddp.all_reduce(x) if last else backward()
elif site == "in the midst of a collective":
    work = ddp.all_reduce(engine.ones(3_000_000), group=impatient, async_op=True)
    oversleep() if last else work.wait()
elif site == "another order":
    ddp.broadcast(x, 0) if last else ddp.all_reduce(x)
elif site == "groups in another order":
    groups = [ddp.new_group(), ddp.new_group()]
    for group in groups[::-1] if last else groups:
        ddp.barrier(group)
elif site == "messages that nobody sends":
    ddp.recv(x, (ddp.get_rank() + 1) % ddp.get_world_size())
elif site == "one wraps a model":
    if not last:
        DistributedDataParallel(nn.Linear(4, 4))
    else:
        ddp.barrier()
elif site == "stopped":
    if last:
        os.kill(os.getpid(), 19)
    ddp.barrier(impatient)
"""


@pytest.mark.parametrize(
    ("site", "ranks", "words"),
    [
        (
            "exits before a collective",
            3,
            r"rank 2 has ended, but ranks 0, 1 wait for it in all_reduce \(number \d+ of the default group\); the job",
        ),
        pytest.param(
            "exits before backward",
            2,
            r"rank 1 has ended, but rank 0 waits for it in gradient bucket 1 of 1 \(bias to weight\) \(number 1 of",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "leaves",
            2,
            r"rank 1 has (left the process group|ended), but rank 0 waits for it in barrier",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "a collective for backward",
            3,
            r"ranks 0, 1, 2 wait for each other, and that would never end",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "groups in another order",
            2,
            r"ranks 0, 1 wait for each other, and that would never end; the job is ended",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "messages that nobody sends",
            2,
            r"ranks 0, 1 wait for each other, (.|\n)*rank 1 waits in recv from rank 0 ",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "one wraps a model",
            2,
            r"ranks 0, 1 wait for each other, (.|\n)*rank 0 waits in an exchange of objects",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_rank_that_others_wait_for_in_vain_ends_the_job(site: str, ranks: int, words: str) -> None:
    result = run_job(LATE, ranks, timeout=90, args=[site, "4"], runner=())
    assert result.returncode != 0
    assert re.search(words, result.stderr), result.stderr
    assert 'program.py", line' in result.stderr  # where each of them is


@pytest.mark.full
def test_another_order_of_collectives_is_an_error_that_names_both() -> None:
    result = run_job(LATE, 3, timeout=90, args=["another order", "4"], runner=())
    assert result.returncode != 0
    assert re.search(
        r"RuntimeError: Detected mismatch between collectives on ranks: ranks 0, 1 are in all_reduce "
        r"\(.*program.py:\d+\), rank 2 is in broadcast \(.*program.py:\d+\); every rank must call the same",
        result.stderr,
    ), result.stderr


@pytest.mark.parametrize(
    ("site", "label", "whom"),
    [
        ("sleeps before a collective", "broadcast", "rank 1"),
        pytest.param(
            "sleeps in a hook", r"gradient bucket 1 of 1 \(bias to weight\)", "rank 1", marks=pytest.mark.full
        ),
        pytest.param("in the midst of a collective", "all_reduce", "bytes to arrive, .* here", marks=pytest.mark.full),
    ],
)
def test_who_sleeps_is_named_with_its_python_line_and_then_the_job_ends(site: str, label: str, whom: str) -> None:
    result = run_job(LATE, 2, timeout=90, args=[site, "4"], runner=())
    assert result.returncode != 0
    waiting = (
        rf"ddp watchdog on \S+: rank 0 has been waiting in {label} \(number \d+ of .*\) for \d+ s, for {whom}; (.*)"
    )
    soft, hard = re.findall(waiting, result.stderr)
    assert soft == "after 4 s this ends the job"
    assert hard == "that is longer than the timeout of 4 s; the job is ended"
    assert result.stderr.count("in oversleep\n    time.sleep(100)  # here\n") == 2
    assert re.search(r"rank 1 is elsewhere, at\n", result.stderr)


@pytest.mark.full
def test_a_rank_that_is_late_but_comes_disturbs_nobody() -> None:
    result = run_job(LATE, 2, timeout=90, args=["sleeps for a while", "4"], runner=())
    assert (result.returncode, result.stdout, result.stderr) == (0, "the end\nthe end\n", "")


@pytest.mark.full
def test_a_rank_that_was_stopped_does_not_answer() -> None:
    result = run_job(LATE, 2, timeout=90, args=["stopped", "6"], runner=())
    assert result.returncode != 0
    assert re.search(r"rank 1 does not answer since \d s \(stopped, or in code that holds the GIL\)", result.stderr)


SLOW_TO_READ = """
import time
import ddp

class Slow:
    def __reduce__(self):
        return time.sleep, (3.0,)

ddp.init_process_group()
gathered = [None, None]
if ddp.get_rank() == 0:
    ddp.gather_object(Slow(), None, dst=1)
else:
    ddp.gather_object(1, gathered, dst=1)
    assert gathered == [None, 1]
ddp.destroy_process_group()
print("done")
"""


@pytest.mark.full
def test_a_rank_that_has_done_its_part_may_leave_while_another_still_reads() -> None:
    result = run_job(SLOW_TO_READ, 2, timeout=60, runner=())
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\ndone\n", "")
