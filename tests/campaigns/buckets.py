"""Is the size of buckets that nobody chose as good as the best one?

    python -m tests.campaigns.buckets                                   # as root; two ranks, one host and several links
    python -m tests.campaigns.buckets --workloads gpt --links here 1gbit,1ms --rounds 5

Two ranks train with buckets of several sizes in turn, and with those that are chosen where `bucket_cap_mb` is not
given: on this host ("here"), and on two hosts behind a switch (`tests.ddp.switched_hosts`). Printed is a JSON line for
each run, then the medians; exit code 1 where the chosen one takes over 3 % more than the best.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict

from tests.campaigns.steps import step_timer
from tests.launch.on_two_hosts import ROOT

_CAPS = ["chosen", "0.25", "1", "2", "4", "8", "25", "100"]
_LINKS = ["here", "100mbit,0us", "1gbit,1ms", "10gbit,0us"]
_WITHIN = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["mlp", "cnn", "gpt"], metavar="NAME")
    parser.add_argument("--links", nargs="+", default=_LINKS, metavar="LINK")
    parser.add_argument("--caps", nargs="+", default=_CAPS, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    wrong = False
    for link in given.links:
        with step_timer(1 if link == "here" else 2, link, 2) as step_ms:
            for workload in given.workloads:
                times = defaultdict(list)
                for _ in range(given.rounds):
                    for cap in given.caps:
                        chosen = [] if cap == "chosen" else ["--bucket-cap-mb", cap]
                        words = [str(ROOT / "benchmarks/training.py"), workload, "--warmup", "6", *chosen]
                        words += ["--steps", str(given.steps)]
                        step = step_ms(words)
                        times[cap].append(step)
                        print(json.dumps({"link": link, "workload": workload, "cap": cap, "step_ms": step}), flush=True)
                medians = {cap: statistics.median(each) for cap, each in times.items()}
                best = min(medians.values())
                print(link, workload, {cap: round(each / best, 3) for cap, each in medians.items()}, flush=True)
                wrong |= medians.get("chosen", best) > (1 + _WITHIN) * best
    sys.exit(wrong)


if __name__ == "__main__":
    main()
