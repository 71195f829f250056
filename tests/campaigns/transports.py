"""Is the transport that nobody chose as good as the best one?

    python -m tests.campaigns.transports                        # as root; one to four hosts, two ranks on each
    python -m tests.campaigns.transports --hosts 2 3 --ranks-each 1 --links 1gbit,1ms --workloads traffic

Ranks train by each transport that can serve them in turn, and by the one that is chosen where none is given: on this
host, and on several behind a switch (`tests.ddp.switched_hosts`). Printed is a JSON line for each run, then the
medians over the best one's; exit code 1 where the chosen one takes over 3 % more than the best.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from ddp.forecast import parse_link
from tests.campaigns.buckets import here
from tests.campaigns.forecast import ONE_THREAD, measured
from tests.ddp.switched_hosts import switched_hosts
from tests.launch.on_two_hosts import ROOT, prepare

_CHOSEN = "chosen"
_BETWEEN_HOSTS = [_CHOSEN, "mpi", "hierarchical"]
_LINKS = ["100mbit,0us", "1gbit,0us", "1gbit,1ms"]
_WITHIN = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--ranks-each", type=int, default=2)
    parser.add_argument("--links", nargs="+", default=_LINKS, metavar="LINK", help="between hosts")
    parser.add_argument("--workloads", nargs="+", default=["mlp"], metavar="NAME")
    parser.add_argument("--samples", default="8", help="of a rank's batch: with few, communication is all that counts")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    wrong = False
    for count in given.hosts:
        ranks = count * given.ranks_each
        for link in given.links if count > 1 else ["none"]:
            with contextlib.ExitStack() as exits:
                if count > 1:
                    hosts = exits.enter_context(switched_hosts(count, parse_link(link)))
                    folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
                    environment = prepare(hosts, folder) | ONE_THREAD
                for workload in given.workloads:
                    times = defaultdict(list)
                    for _ in range(given.rounds):
                        for name in [*_BETWEEN_HOSTS, *(["shared"] if count == 1 else [])]:
                            words = [str(ROOT / "benchmarks/training.py"), workload, "--samples", given.samples]
                            words += ["--warmup", "4", "--steps", "12"]
                            words += [] if name == _CHOSEN else ["--transport", name]
                            if count == 1:
                                step = here(words, ranks)
                            else:
                                step = measured(hosts, folder, environment, words, ranks)["step_ms"]
                            times[name].append(step)
                            case = {"hosts": count, "ranks": ranks, "link": link, "workload": workload}
                            print(json.dumps({**case, "transport": name, "step_ms": step}), flush=True)
                    medians = {name: statistics.median(each) for name, each in times.items()}
                    best = min(medians.values())
                    over = {name: round(median / best, 3) for name, median in medians.items()}
                    print(count, "hosts", ranks, "ranks", link, workload, over, flush=True)
                    wrong |= medians[_CHOSEN] > (1 + _WITHIN) * best
    sys.exit(wrong)


if __name__ == "__main__":
    main()
