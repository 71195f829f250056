"""What steps cost that nothing happens to, where ranks may be lost (`ddprun --elastic`), beside those of the same job
without: started in turns, each as a job of its own.

    python benchmarks/elastic_cost.py mlp cnn gpt

One JSON line a workload: medians over the jobs, each of which gives the median of its steps. plain_ms: `ddprun -n 2`;
elastic_ms: `--elastic 1`; replaced_ms: `--elastic 1:2`. cost and cost_replaced are the medians of the rounds'
quotients, less 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

KINDS: dict[str, list[str]] = {"plain": [], "elastic": ["--elastic", "1"], "replaced": ["--elastic", "1:2"]}
ROOT = Path(__file__).resolve().parents[1]


def train(name: str, seconds: float) -> None:
    """One job: rank 0 prints the median of its steps, in ms."""
    import workloads
    from workloads import F, library

    import ddp
    from ddp import checkpoint

    ddp.init_process_group()
    job = ddp.Job()
    model, inputs, targets = workloads.WORKLOADS[name](library.Generator().manual_seed(ddp.get_rank()))
    net = ddp.DistributedDataParallel(model, job=job)
    optimizer = library.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    saving = checkpoint.Manager(os.environ["TMPDIR"], {"job": job, "net": net, "optimizer": optimizer}, every=10**9)

    def body() -> None:
        for _ in job.shards():
            F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    def times_of(steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            began = time.perf_counter()
            job.run(body)
            found.append(time.perf_counter() - began)
        return found

    times_of(5)
    own = statistics.median(times_of(5))
    took = job.between(lambda: max(job.process_group.exchange(own)))
    times = times_of(max(5, int(seconds / took)))
    saving.close()
    if ddp.get_rank() == 0:
        print(json.dumps(statistics.median(times) * 1e3), flush=True)
    ddp.destroy_process_group()


def measure(name: str, rounds: int, seconds: float) -> dict[str, object]:
    """The line of one workload."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    for number in range(rounds):
        for kind in sorted(KINDS, reverse=bool(number % 2)):
            command = [sys.executable, "-m", "launch", "-n", "2", *KINDS[kind], __file__, name, "--train", str(seconds)]
            environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
            times[kind].append(json.loads(done.stdout.splitlines()[-1]))
    quotients = {kind: [own / plain for own, plain in zip(times[kind], times["plain"], strict=True)] for kind in KINDS}
    return {
        "workload": name,
        "rounds": rounds,
        **{f"{kind}_ms": round(statistics.median(each), 3) for kind, each in times.items()},
        "cost": round(statistics.median(quotients["elastic"]) - 1, 4),
        "cost_replaced": round(statistics.median(quotients["replaced"]) - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of the steps of one job")
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.workloads:
        if args.train:
            train(name, args.train)
        else:
            print(json.dumps(measure(name, args.rounds, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
