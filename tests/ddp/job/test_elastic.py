"""Jobs that lose ranks (`ddprun --elastic`), with real processes: the others go on, and end with the same digest."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.campaigns import elastic, soak
from tests.launch.jobs import this_mpi
from tests.mpi_job import python_path, run_ddprun

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True, scope="module")
def an_mpi_that_goes_on() -> None:
    if not this_mpi().elastic:
        pytest.skip("this MPI ends the job when a rank is lost")


# What is told by arguments happens to one rank; "all" raises on each.
JOB = """
import ctypes, functools, json, os, signal, sys, datetime, time
from pathlib import Path
import ddp, engine, engine.nn.functional as F
from ddp import checkpoint
from ddp.checkpoint import shard
from ddp.losses import calls, roles, watching
from engine import nn
from engine.data import DataLoader, TensorDataset

kind, folder = sys.argv[1], sys.argv[2]
spawned = "ALLSTRIDE_SPAWNED" in os.environ
replaces = spawned or int(os.environ["PMIX_RANK"]) >= int(os.environ["ALLSTRIDE_NPROC"])


def die(*_):
    if replaces and not Path(f"{folder}-died").exists():
        Path(f"{folder}-died").touch()
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stops" else signal.SIGKILL)


def die_before(function):
    def call(*arguments):
        die()
        return function(*arguments)
    return call


if kind == "relieved":
    roles.MOST_MET = 0
if kind == "starting":
    die()
if kind == "ready":
    calls.say_ready = die_before(calls.say_ready)
if kind in ("joining", "stops"):
    ddp.Job.leave_behind = die_before(ddp.Job.leave_behind)
if kind == "taking":
    ddp.Job.load_state_dict = die_before(ddp.Job.load_state_dict)
if kind == "raises" and replaces:
    raise OSError("no such data")
ddp.init_process_group(host_timeout=datetime.timedelta(seconds=3))
me = ddp.get_rank()
job = ddp.Job(6, seed=0)
x = engine.randn(48, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, 24, job))
module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
net = ddp.DistributedDataParallel(module, job=job)
optimizer = engine.optim.AdamW(net.parameters(), lr=1e-2)
schedule = engine.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
state = {"job": job, "net": net, "optimizer": optimizer, "schedule": schedule}
if kind == "unknown":
    del state["optimizer"]
UNKILLED = ("none", "last", "apart", "one", "all", "native", "talk", "late", "deadlock", "once", "always")


def kill(step, rank):
    if kind not in UNKILLED and (job.step, me) == (step, rank) and not replaces:
        os.kill(os.getpid(), signal.SIGKILL)


def deadlock():
    # Open MPI's own: rank 1 ends with a long message on its way, which rank 0 has not received, over TCP.
    comm, long = job.process_group.comm, engine.ones(1_000_000).numpy()
    if me == 1:
        sum, until = comm.Iallreduce(long, long.copy()), time.monotonic() + 0.5
        while time.monotonic() < until:
            sum.Test()
        os.kill(os.getpid(), signal.SIGKILL)
    exec(compile("while True: comm.Iprobe()", calls.__file__, "exec"), {"comm": comm})


def train_step():
    losses = []
    for inputs, targets in job.shards(loader):
        if kind == "talk":
            job.process_group.exchange(0)
        loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        losses.append(loss.detach())
        kill(5, 1)
        if (kind == "one" and (job.step, me) == (5, 1)) or (kind == "all" and job.step == 5):
            raise ArithmeticError("a bad sample")
        if kind == "native" and (job.step, me) == (5, 1) and not replaces:
            ctypes.CDLL(None)._exit(3)
    # Until one is there that is to be let in when the next step begins, or to join; or all are, two in reserve.
    if (kind == "entry" and job.step == 8) or (kind == "relieved" and job.step == 6):
        until = time.monotonic() + 60
        all_there = ddp.get_world_size() == 3 and len(watching().members) == 3 + roles.ENOUGH
        while not (all_there or [*Path(os.environ["DDPRUN_REPORT"]).glob("ready-*")]) and time.monotonic() < until:
            time.sleep(0.01)
    if kind == "deadlock" and job.step == 5 and len(losses) == 2 and me < 2:
        deadlock()
    if job.step == 5 and ((kind, me) == ("once", 0) or (kind == "always" and ddp.get_rank() == 0)):
        Path(f"{folder}-job").write_text(os.environ["DDPRUN_JOB"])
        ddp.barrier()  # the others do not come
    if kind != "relieved":
        kill(7, 0 if kind == "replaced" else 2)
    optimizer.step()
    schedule.step()
    if kind == "talk":
        job.mean(losses)
    return losses


if kind == "last" and me == 1:  # it is lost while it writes the last checkpoint, after which no step comes
    shard._write_all = lambda file, content: os.kill(os.getpid(), signal.SIGKILL)


def leave_late(barrier):
    barrier()
    watching().noticed.wait()
    barrier()  # of which it hears as if it had not been over yet


if kind == "apart":  # rank 2 is lost when rank 0 has made its manager, and rank 1 is still in what comes before that
    comm = job.process_group.comm
    if me == 1:
        comm.Barrier = functools.partial(leave_late, comm.Barrier)
    job.between(int)
    while me == 2 and not Path(f"{folder}-made").exists():
        time.sleep(0.01)
    if me == 2:
        os.kill(os.getpid(), signal.SIGKILL)
with checkpoint.Manager(folder, state, every=10 if kind == "last" else 4) as saving:
    if me == 0:
        Path(f"{folder}-made").touch()
    resumes = kind in ("replaced", "joining", "stops")
    for _ in range(saving.restore(), 10) if resumes else iter(lambda: job.step, 10):
        job.run(train_step)
        saving.step(job.step)
if ddp.get_rank() == 0:
    print(json.dumps([ddp.get_world_size(), ddp.digest(net, optimizer, schedule)]), flush=True)
    Path(f"{folder}-job").write_text(os.environ["DDPRUN_JOB"])
if kind == "late":
    if me == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.0)
ddp.destroy_process_group()
"""

# Python runs this first in each process. The first that is to come into the reserve, or a rank that is to let it in,
# does what is told.
ENTRY = """
import importlib.abc, importlib.util, os, signal, sys
from pathlib import Path

mark = Path(os.environ["ENTRY_MARK"])


def change(nursery):
    nursery._NURSE = 2.0  # not 10: in MPI_Intercomm_create, the others turn in a circle for so long
    comes = os.environ["ENTRY_OF"] == "who comes"
    name = "_enter" if comes else "_let_in"
    is_concerned = comes or os.environ["PMIX_RANK"] == "0"

    def struck(*arguments):
        if is_concerned and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), getattr(signal, os.environ["ENTRY_SIGNAL"]))
        return function(*arguments)

    function = getattr(nursery, name)
    setattr(nursery, name, struck)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "ddp.losses.nursery":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change
        return spec


sys.meta_path.insert(0, Finder())
"""


def run(folder: Path, kind: str, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_ddprun(folder, JOB, options, kind, str(folder / "states"), **environment)


def told(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """What ddp and ddprun say of losses; a cold cache and mpirun's libevent have words of their own."""
    lines = done.stderr.splitlines()
    return [line for line in lines if line.startswith(("ddp: rank", "ddprun: rank"))]


def test_two_ranks_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """At 4 ranks, of 6 shards; the first line says who, at which step, why, and with how many it goes on."""
    (tmp_path / "alone").mkdir()
    alone = run(tmp_path / "alone", "none", "-n", "1")
    done = run(tmp_path, "kill", "-n", "4", "--elastic", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("[2,", "[1,") == alone.stdout
    said = told(done)
    assert said == [
        "ddp: rank 1 was lost at step 6 (killed, or crashed); the job goes on with 3 ranks",
        "ddp: rank 2 was lost at step 8 (killed, or crashed); the job goes on with 2 ranks",
        said[-1],
    ]
    assert re.fullmatch("ddprun: ranks 1, 2 on .* were lost on the way", said[-1])
    assert max(path.name for path in (tmp_path / "states").iterdir()) == "step-00000008"


def test_the_last_checkpoint_is_written_by_those_that_are_left(tmp_path: Path, undisturbed: str) -> None:
    done = run(tmp_path, "last", "-n", "2", "--elastic", "1")
    assert digest_of(done) == undisturbed
    assert "ddp: rank 1 was lost at step 11" in done.stderr
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["step-00000010"]


def test_a_rank_is_lost_when_only_some_have_made_their_manager(tmp_path: Path, undisturbed: str) -> None:
    done = run(tmp_path, "apart", "-n", "3", "--elastic", "1")
    assert digest_of(done) == undisturbed
    assert told(done)[0] == "ddp: rank 2 was lost at step 1 (killed, or crashed); the job goes on with 2 ranks"
    assert "rank 0 was lost" not in done.stderr
    assert "rank 1 was lost" not in done.stderr
    check_that_nothing_is_left(tmp_path)


def test_below_the_minimum_the_job_ends_with_a_checkpoint(tmp_path: Path) -> None:
    done = run(tmp_path, "kill", "-n", "3", "--elastic", "3")
    assert done.returncode == 1
    assert (
        f"ddp: error: 2 of at least 3 ranks are left (--elastic): the job ends after step 5; step 5 is saved in "
        f"{tmp_path / 'states'}" in done.stderr
    )
    assert (tmp_path / "states" / "step-00000005").is_dir()
    assert "MPI_ABORT" not in done.stderr


def test_more_losses_than_are_allowed_end_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    done = run(tmp_path, "kill", "-n", "3", "--elastic", "3:3", "--max-failures", "1/60")
    assert done.returncode == 1
    words = "ddp: error: more than 1 rank was lost in 60 s (--max-failures): the job ends after step 7; step 7 is saved"
    assert f"{words} in {tmp_path / 'states'}" in done.stderr
    assert "rank 1 is replaced" in done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest, in JSON."""
    return digest_of(run(tmp_path_factory.mktemp("alone"), "none", "-n", "1"))


def digest_of(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)[1])


def check_that_nothing_is_left(folder: Path) -> None:
    """No process of a job, and no file in memory."""
    job = (folder / "states-job").read_text()
    assert not Path(f"/dev/shm/ddprun-{job}").exists()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert f"DDPRUN_JOB={job}".encode() not in (process / "environ").read_bytes()


def test_lost_ranks_are_replaced(tmp_path: Path, undisturbed: str) -> None:
    """With 3 ranks at least the others wait for the replacement; two are lost, rank 0 among them."""
    done = run(tmp_path, "replaced", "-n", "3", "--elastic", "3:3")
    assert digest_of(done) == undisturbed
    assert json.loads(done.stdout)[0] == 3
    assert told(done) == [
        "ddp: rank 1 was lost at step 6 (killed, or crashed); the job goes on with 2 ranks, and more are starting",
        "ddp: rank 1 is replaced from step 6 on; the job goes on with 3 ranks",
        "ddp: rank 0 was lost at step 8 (killed, or crashed); the job goes on with 2 ranks, and more are starting",
        "ddp: rank 0 is replaced from step 8 on; the job goes on with 3 ranks",
    ]
    # That of step 8, or a later one: where another process comes into the reserve meanwhile, it is written anew.
    assert max(path.name for path in (tmp_path / "states").iterdir()) >= "step-00000008"
    check_that_nothing_is_left(tmp_path)


@pytest.mark.parametrize("when", ["starting", "ready", "joining", "taking", "stops"])
def test_a_replacement_is_lost_before_it_has_joined(tmp_path: Path, undisturbed: str, when: str) -> None:
    done = run(tmp_path, when, "-n", "2", "--elastic", "2:2")
    assert digest_of(done) == undisturbed
    assert json.loads(done.stdout)[0] == 2
    assert (tmp_path / "states-died").exists()
    assert told(done)[-1] == "ddp: rank 1 is replaced from step 6 on; the job goes on with 2 ranks"
    check_that_nothing_is_left(tmp_path)


def test_a_rank_that_has_seen_many_come_gives_its_place_to_another(tmp_path: Path, undisturbed: str) -> None:
    """That is no failure: no more are allowed than the one that there is."""
    done = run(tmp_path, "relieved", "-n", "3", "--elastic", "1:3", "--max-failures", "1")
    assert digest_of(done) == undisturbed
    said = told(done)
    assert "rank 1 was lost at step 6 (killed, or crashed)" in said[0]
    # Once or more often, from the second step with three ranks on: the first hands the state over.
    given = re.compile(r"rank \d was lost at step \d+ \(it gives its place to a new process: MPI keeps memory of the")
    assert any(given.search(line) for line in said[1:]), done.stderr


@pytest.mark.parametrize("of", ["who comes", "who lets it in"])
@pytest.mark.parametrize("by", ["SIGKILL", "SIGSTOP"])
def test_a_process_is_lost_while_one_comes_into_the_reserve(tmp_path: Path, undisturbed: str, by: str, of: str) -> None:
    """Two ranks are lost and replaced by what is left of the reserve; the next process is to come into that."""
    (tmp_path / "sitecustomize.py").write_text(ENTRY)
    mark = tmp_path / "struck"
    path = os.pathsep.join([str(tmp_path), python_path()])
    told = {"ENTRY_SIGNAL": by, "ENTRY_MARK": str(mark), "ENTRY_OF": of}
    done = run(tmp_path, "entry", "-n", "3", "--elastic", "3:3", PYTHONPATH=path, **told)
    assert mark.exists(), done.stderr
    assert digest_of(done) == undisturbed
    assert json.loads(done.stdout)[0] == 3
    check_that_nothing_is_left(tmp_path)


def test_the_job_goes_on_where_no_replacement_starts(tmp_path: Path, undisturbed: str) -> None:
    done = run(tmp_path, "raises", "-n", "3", "--elastic", "1:3")
    assert digest_of(done) == undisturbed
    assert "OSError: no such data" in done.stderr
    check_that_nothing_is_left(tmp_path)


def test_an_optimizer_that_a_replacement_would_not_get_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "unknown", "-n", "2", "--elastic", "1:2")
    assert done.returncode == 1
    assert "this AdamW is in the state of no checkpoint.Manager" in done.stderr


@pytest.mark.parametrize(("ranks", "asked", "words"), [("2", "2:3", "it does not grow"), ("1", "1:1", "the only rank")])
def test_what_cannot_be_replaced(tmp_path: Path, ranks: str, asked: str, words: str) -> None:
    done = run(tmp_path, "none", "-n", ranks, "--elastic", asked)
    assert done.returncode == 2
    assert words in done.stderr


FORKS = """
import multiprocessing, ddp
ddp.init_process_group()
process = multiprocessing.get_context("fork").Process(target=ddp.is_initialized)
process.start()
process.join()
print("ended with", process.exitcode)
"""


def test_what_a_rank_forks_ends_as_it_likes(tmp_path: Path) -> None:
    done = run_ddprun(tmp_path, FORKS, ["-n", "2", "--elastic", "1"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ended with 0"] * 2


def test_an_exception_of_one_rank_is_a_loss_and_of_all_a_bug(tmp_path: Path) -> None:
    done = run(tmp_path, "one", "-n", "2", "--elastic", "1")
    assert done.returncode == 0, done.stderr
    words = "ddp: rank 1 was lost at step 6 (ArithmeticError: a bad sample); the job goes on with 1 rank"
    assert words in done.stderr
    assert done.stderr.index("[rank 1] ArithmeticError: a bad sample") < done.stderr.index(words)
    (tmp_path / "bug").mkdir()
    done = run(tmp_path / "bug", "all", "-n", "2", "--elastic", "1")
    assert done.returncode == 1
    assert re.match(r"\[rank \d\] Traceback", [line for line in done.stderr.splitlines() if line][1])
    assert "ArithmeticError: a bad sample" in done.stderr


def test_ranks_that_wait_for_each_other_lose_one(tmp_path: Path, undisturbed: str) -> None:
    words = "ranks 0, 1, 2 wait for each other, and that would never end"
    done = run(tmp_path, "once", "-n", "3", "--elastic", "1")
    assert digest_of(done) == undisturbed
    assert told(done)[0] == f"ddp: rank 0 was lost at step 6 ({words}); the job goes on with 2 ranks"
    assert json.loads(done.stdout)[0] == 2
    assert f"{words}; rank 0 ends, and the others go on without it" in done.stderr


@pytest.mark.parametrize("elastic", ["1", "1:3"])
def test_ranks_that_wait_for_each_other_again_end_the_job(tmp_path: Path, elastic: str) -> None:
    done = run(tmp_path, "always", "-n", "3", "--elastic", elastic)
    assert done.returncode == 1
    assert "wait for each other, and that would never end; the job is ended" in done.stderr
    check_that_nothing_is_left(tmp_path)


@pytest.mark.parametrize("elastic", ["1", "1:3"])
def test_the_others_go_on_after_an_end_of_which_the_launcher_does_not_tell(
    tmp_path: Path, undisturbed: str, elastic: str
) -> None:
    done = run(tmp_path, "native", "-n", "3", "--elastic", elastic)
    assert digest_of(done) == undisturbed
    assert "ddp: rank 1 was lost at step 6 (killed, or crashed)" in done.stderr


def test_a_rank_that_mpi_has_brought_to_a_standstill_is_lost_too(tmp_path: Path, undisturbed: str) -> None:
    """In which MPI gets where it hears of the end from the connection before the launcher tells it: mostly so."""
    words = "rank 0: in a deadlock inside of MPI after another loss, for 5 s; rank 1: killed"
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = run(folder, "deadlock", "-n", "3", "--elastic", "1", OMPI_MCA_btl="self,tcp")
        assert digest_of(done) == undisturbed
        if words in done.stderr:
            break
    assert words in done.stderr, done.stderr
    assert "the job goes on with 1 rank" in done.stderr


def test_a_rank_that_is_lost_when_all_is_done_changes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "late", "-n", "3", "--elastic", "2")
    assert done.returncode == 0, done.stderr
    assert re.search("ddprun: rank 0 on .* was lost on the way", done.stderr)


def test_who_talks_after_the_step_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "talk", "-n", "2", "--elastic", "1")
    assert done.returncode == 1
    assert "this talks to other ranks after optimizer.step()" in done.stderr


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> elastic.Reference:
    return elastic.undisturbed("shared", 3, tmp_path_factory.mktemp("three_ranks"))


@pytest.mark.parametrize("fault", ["SIGSTOP", "os._exit", "segfault"])
def test_a_fault_in_the_midst_of_a_backward(fault: str, three_ranks: elastic.Reference) -> None:
    ending = elastic.judge(elastic.Strike(fault, (2,), len(three_ranks.places[2]) // 2), "shared", 3, three_ranks)
    assert ending.places
    assert not ending.problem, ending.output


def test_a_sample_of_the_campaign(capfd: pytest.CaptureFixture[str]) -> None:
    wrong = elastic.main(["--every", "400", "--begin", "20", "--ranks", "2", "--transports", "mpi"])
    table = capfd.readouterr().out
    assert not wrong, table
    rows = [line.split("|") for line in table.splitlines()[3:]]
    assert sum(int(row[3]) for row in rows) >= 4, f"ranks were struck:\n{table}"


def test_a_storm_of_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So fast that they fall into recoveries, and into the coming of new processes; also the oldest rank is lost."""
    assert soak.soak(ranks=3, failures=10, period=1.0, storm=True, launcher=64 << 10, folder=tmp_path), (
        capsys.readouterr()
    )


def test_a_launcher_that_has_grown_is_exchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So little is allowed here that this happens with each process that comes."""
    assert soak.soak(ranks=2, failures=3, period=1.0, storm=False, launcher=300, folder=tmp_path), capsys.readouterr()
    found = json.loads(capsys.readouterr().out)
    assert found["started again"] == found["of these with another mpirun"] >= 2


def test_the_rank_that_completes_the_last_checkpoint_is_lost_over_it(three_ranks: elastic.Reference) -> None:
    """When all others have written their parts, and wait to hear that it is complete."""
    names = three_ranks.places[0]
    put_in_place = len(names) - 1 - names[::-1].index("replace")
    ending = elastic.judge(elastic.Strike("SIGKILL", (0,), put_in_place), "shared", 3, three_ranks)
    assert ending.places == ["replace"]
    assert not ending.problem, ending.output


def test_places_of_a_campaign_that_no_earlier_one_is_like() -> None:
    assert elastic.unlike("abcabcabd", before=0) == [0, 1, 2, 8]
    assert elastic.unlike("abcabcabd", before=2) == [0, 1, 2, 3, 4, 8]
    assert elastic.unlike("", before=2) == []


def test_a_job_that_ends_badly_before_its_fault_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = elastic.Reference([["Barrier"], ["Barrier"]], "digest", Path())
    monkeypatch.setattr(elastic, "undisturbed", lambda *_: reference)
    monkeypatch.setattr(elastic, "run", lambda *_: subprocess.CompletedProcess([], 1, "", "SyntaxError"))
    assert elastic.main(["--ranks", "2", "--faults", "SIGKILL"]) == 1
    assert "| SIGKILL | 2 | 0 | 0 |" in capsys.readouterr().out
