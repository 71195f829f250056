"""One digest for each job, whatever the ranks, the transport, the buckets and the accumulation are."""

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from launch.testing.process import mpirun_command
from tests.ddp.job.runs import MODELS, PRECISIONS
from tests.ddp.two_hosts import NotPossibleError, two_hosts
from tests.examples.running import ROOT, environment

pytestmark = pytest.mark.full

STEPS = 8  # one more than an epoch has
MANY_STEPS = 20
SETTINGS = SMALL, LARGE = ("1024:1", "26214400:2")  # bytes of a bucket, backward passes of a shard
ARGUMENTS = ["-m", "tests.ddp.job.matrix"]

Digests = dict[str, str]


def on_one_host(ranks: int, transport: str, settings: Iterable[str] = SETTINGS, steps: int = STEPS) -> Digests:
    """Of all jobs."""
    words = [*([] if ranks == 1 else mpirun_command(ranks)), sys.executable, *ARGUMENTS, transport, str(steps)]
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx"}
    mpi |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    words += settings
    return told(subprocess.run(words, cwd=ROOT, env=environment(**mpi), capture_output=True, text=True, timeout=600))


def told(done: subprocess.CompletedProcess[str]) -> Digests:
    """What rank 0 printed."""
    assert done.returncode == 0, done.stderr
    found: Digests = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def alone() -> Digests:
    """One rank's."""
    found = on_one_host(1, "loopback")
    assert len(set(found.values())) == len(found) == len(MODELS) * len(PRECISIONS) * len(SETTINGS)
    return found


def test_buckets_of_any_size_give_the_same_bits(alone: Digests) -> None:
    others = on_one_host(1, "loopback", ["26214400:1", "16384:2", "65536:2"])
    assert {others[name.replace("1024:1", "26214400:1")] for name in alone if name.endswith(":1")} == {
        alone[name] for name in alone if name.endswith(":1")
    }
    for name in alone:
        if name.endswith(":2"):
            assert {others[name.replace("26214400", size)] for size in ("16384", "65536")} == {alone[name]}


@pytest.mark.parametrize(
    ("ranks", "transport", "setting"),
    # Every number of ranks, both transports, and either setting with each of these; two hosts have both settings, and
    # two ranks with shared memory three epochs.
    [
        *((2, "mpi", LARGE), (3, "shared", LARGE), (3, "mpi", SMALL), (4, "shared", SMALL)),
        *((5, "mpi", LARGE), (7, "shared", LARGE), (12, "mpi", SMALL)),
    ],
)
def test_any_number_of_ranks_gives_the_same_bits(alone: Digests, ranks: int, transport: str, setting: str) -> None:
    found = on_one_host(ranks, transport, [setting])
    assert len(found) == len(MODELS) * len(PRECISIONS)
    assert found.items() <= alone.items()


def test_three_epochs_give_the_same_bits() -> None:
    settings = SETTINGS[:1]
    assert on_one_host(2, "shared", settings, MANY_STEPS) == on_one_host(1, "loopback", settings, MANY_STEPS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_hosts_give_the_same_bits(alone: Digests, ranks: int) -> None:
    try:
        with two_hosts() as hosts:
            found = told(hosts.run([*ARGUMENTS, "hierarchical", str(STEPS), *SETTINGS], ranks, timeout=280))
    except NotPossibleError as reason:
        pytest.skip(f"two hosts: {reason}")
    assert found == alone
