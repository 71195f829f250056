"""Trains the jobs of tests/ddp/job/runs.py on any number of ranks, over every transport, and compares their digests.

    python -m tests.campaigns.shards                             # all of it: 20 steps, 1 to 12 ranks
    python -m tests.campaigns.shards --ranks 3 5 --steps 8       # a part
    python -m tests.campaigns.shards --transports hierarchical   # two hosts of network namespaces (as root)

Each job has 12 shards: an MLP, a channels-last CNN with batch norm and dropout, a GPT with clipping and groups of
weight decay, an LSTM; in float32, float64 and under bfloat16 autocast; with buckets of 1 KiB, 64 KiB and 25 MiB; with
one and two backward passes a shard. Parameters, optimizer, scheduler, buffers and losses are one digest, which is to be
that of one rank. Prints a table; exit code 1 where a digest is another one, or a job did not end well.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from launch.testing.process import mpirun_command
from tests.ddp.two_hosts import NotPossibleError, two_hosts
from tests.mpi_job import ROOT, python_path

PROGRAM = ["-m", "tests.ddp.job.matrix"]
RANKS = (1, 2, 3, 4, 5, 7, 12)
TRANSPORTS = ("shared", "mpi", "hierarchical")
SETTINGS = ("1024:1", "65536:1", "26214400:1", "1024:2", "26214400:2")  # bytes of a bucket, backward passes of a shard
_LIMIT = 3600.0

Digests = dict[str, str]


def train(ranks: int, transport: str, steps: int, settings: Sequence[str]) -> Digests:
    """The digest of each job. Raises RuntimeError where one does not end well, NotPossibleError without two hosts."""
    program = [*PROGRAM, transport, str(steps), *settings]
    if transport == "hierarchical":
        with two_hosts() as hosts:
            done = hosts.run(program, ranks, _LIMIT)
    else:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx"}
        mpi |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
        mpi |= {"PRTE_MCA_hwloc_default_binding_policy": "none", "PYTHONPATH": python_path()}
        command = [*([] if ranks == 1 else mpirun_command(ranks)), sys.executable, *program]
        environment = {**os.environ, **one, **mpi}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks, {transport}: exit code {done.returncode}\n{done.stderr}")
    found: Digests = json.loads(done.stdout.splitlines()[-1])
    return found


def expected_of(alone: Digests) -> Digests:
    """By model, precision and passes: what buckets of any size are to give. alone: one rank's digests."""
    return {_without_bucket(name): digest for name, digest in reversed(alone.items())}


def wrong(found: Digests, expected: Digests) -> list[str]:
    """The jobs whose digest is another one."""
    return [name for name, digest in found.items() if expected[_without_bucket(name)] != digest]


def _without_bucket(name: str) -> str:
    model, precision, setting = name.split()
    return f"{model} {precision} {setting.partition(':')[2]}"


def campaign(ranks: Sequence[int], transports: Sequence[str], steps: int, settings: Sequence[str]) -> bool:
    """Prints the table; returns whether every digest is the one rank's."""
    print(f"| ranks | transport | digests after {steps} steps | equal | seconds |\n|---|---|---|---|---|", flush=True)
    right, expected = True, {}
    cases = [(1, "loopback"), *((size, each) for size in ranks if size > 1 for each in transports)]
    for size, transport in cases:
        began = time.monotonic()
        try:
            found = train(size, transport, steps, settings)
        except NotPossibleError as why:
            print(f"| {size} | {transport} | none: {why} | | |", flush=True)
            continue
        except RuntimeError as why:
            print(f"| {size} | {transport} | none: {str(why).splitlines()[0]} | | |", flush=True)
            print(why, file=sys.stderr, flush=True)
            right = False
            continue
        expected = expected or expected_of(found)
        others = wrong(found, expected)
        seconds = time.monotonic() - began
        print(f"| {size} | {transport} | {len(found)} | {len(found) - len(others)} | {seconds:.0f} |", flush=True)
        if others:
            print(f"{size} ranks, {transport}: another digest of {', '.join(others)}", flush=True)
        right = right and not others
    return right


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, metavar="BYTES:PASSES")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    return not campaign(options.ranks, options.transports, options.steps, options.settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
