"""Is a step on several hosts what `ddp.forecast` says on one?

    python -m tests.campaigns.forecast                                    # as root; three workloads, ten minutes
    python -m tests.campaigns.forecast --workloads mlp --hosts 2 --links 1gbit,1ms
    python -m tests.campaigns.forecast --waiting                          # layers that wait where others compute

The hosts are network namespaces behind a switch (`tests.ddp.switched_hosts`), a rank on each. The forecast is made of
the same number of ranks on one host: all of them share this machine's cores either way, and with more ranks than cores
those that compute wait for one another, too. With ``--waiting`` no rank computes (`waiting_training.py`), as if each
had cores of its own. *Weak*: each rank has the workload's batch. *Strong*: they share that of
two. Printed is a JSON line for each case, then a table; exit code 1 where a step is further from its forecast than a
tenth.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp.forecast import parse_link
from tests.ddp.switched_hosts import switched_hosts
from tests.ddp.two_hosts import Hosts
from tests.launch.on_two_hosts import ROOT, ddprun, prepare

BATCHES = {"mlp": 128, "cnn": 64, "traffic": 32}  # of a rank, weak; samples that may be divided
_WAITING = {"even": 64, "late": 64}
_LINKS = ["100mbit,0us", "300mbit,0us", "1gbit,0us", "1gbit,1ms", "3gbit,0us"]
_WITHIN = 0.10
_TRAININGS = dict.fromkeys(BATCHES, ROOT / "benchmarks" / "training.py")
_TRAININGS |= dict.fromkeys(_WAITING, ROOT / "tests" / "campaigns" / "waiting_training.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_STEPS = {"warmup": 22, "steps": 30}


def training(workload: str, samples: int) -> list[str]:
    """The program that both sides run."""
    counts = [word for name, count in _STEPS.items() for word in (f"--{name}", str(count))]
    return [str(_TRAININGS[workload]), workload, "--samples", str(samples), *counts]


def forecast(workload: str, samples: int, ranks: int, link: str) -> dict[str, Any]:
    """What is said on one host of a step on `ranks` hosts with a rank each, in ms: all of it, and its parts."""
    command = [sys.executable, "-m", "launch", "-n", str(ranks), "-m", "ddp.forecast", "--json", "--nodes", str(ranks)]
    command += ["--link", link, "--ranks-per-node", "1", "--measure", str(_STEPS["steps"])]
    environment = {**os.environ, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}  # as between the hosts
    done = subprocess.run(
        [*command, *training(workload, samples)], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith('{"nodes"')][-1])
    return found


def measured(
    hosts: Hosts, folder: Path, environment: Mapping[str, str], words: list[str], ranks: int
) -> dict[str, Any]:
    """The line of `benchmarks/training.py` with a rank on each host."""
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{name} slots={ranks // len(hosts.names)}\n" for name in hosts.names))
    command = ddprun(hosts, ["-n", str(ranks), "--hostfile", str(hostfile), *words])
    done = subprocess.run(command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """A line a case."""
    lines = [
        "| workload | scaling | hosts | link | forecast, ms | measured, ms | measured / forecast |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        cells = (row["workload"], row["scaling"], row["hosts"], row["link"], f"{row['forecast_ms']:.1f}")
        ratio = row["measured_ms"] / row["forecast_ms"]
        lines.append(f"| {' | '.join(map(str, cells))} | {row['measured_ms']:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", action="store_true", help="layers wait where others compute")
    parser.add_argument("--workloads", nargs="+", choices=BATCHES, default=[*BATCHES], metavar="NAME")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 3, 4], metavar="N")
    parser.add_argument("--links", nargs="+", default=_LINKS, metavar="LINK")
    parser.add_argument("--scaling", nargs="+", choices=("weak", "strong"), default=["weak", "strong"])
    given = parser.parse_args()
    batches = _WAITING if given.waiting else {name: BATCHES[name] for name in given.workloads}
    rows = []
    for count in given.hosts:
        for link in given.links:
            with switched_hosts(count, parse_link(link)) as hosts, tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                environment = prepare(hosts, folder) | ONE_THREAD
                for workload, batch in batches.items():
                    for scaling in given.scaling:
                        samples = batch if scaling == "weak" else 2 * batch // count
                        if scaling == "strong" and count == 2:
                            continue  # the same as weak
                        said = forecast(workload, samples, count, link)
                        seen = measured(hosts, folder, environment, training(workload, samples), count)
                        row = {"workload": workload, "scaling": scaling, "hosts": count, "link": link}
                        row |= {"forecast_ms": 1e3 * said["seconds"], "measured_ms": seen["step_ms"]}
                        parts = {f"{part}_ms": round(1e3 * said[part], 2) for part in ("own", "slowest", "exposed")}
                        print(json.dumps(row | parts), flush=True)
                        rows.append(row)
    print(table(rows))
    sys.exit(any(abs(row["measured_ms"] / row["forecast_ms"] - 1) > _WITHIN for row in rows))


if __name__ == "__main__":
    main()
