"""Is the transport that nobody chose as good as the best one?

    python -m tests.campaigns.transports                        # as root; one to four hosts, two ranks on each
    python -m tests.campaigns.transports --hosts 2 3 --ranks-each 1 --links 1gbit,1ms --workloads traffic

Ranks train by each transport that can serve them in turn, and by the one that is chosen where none is given: on this
host, and on several behind a switch (`tests.ddp.switched_hosts`). Printed is a JSON line for each run, then the
medians over the best one's; exit code 1 where the chosen one takes over 3 % more than the best.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict

from tests.campaigns.steps import step_timer
from tests.launch.on_two_hosts import ROOT

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
            with step_timer(count, link, ranks) as step_ms:
                for workload in given.workloads:
                    times = defaultdict(list)
                    for _ in range(given.rounds):
                        for name in [*_BETWEEN_HOSTS, *(["shared"] if count == 1 else [])]:
                            words = [str(ROOT / "benchmarks/training.py"), workload, "--samples", given.samples]
                            words += ["--warmup", "4", "--steps", "12"]
                            words += [] if name == _CHOSEN else ["--transport", name]
                            step = step_ms(words)
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
