"""The command: runs the script, measures, and prints what a step takes on 1, 2, 4, ... nodes."""

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import ddp
from ddp.forecast.filling import Gradients, fill, limits_between
from ddp.forecast.measuring import measure_local, measure_software
from ddp.forecast.network import parse_link
from ddp.forecast.prediction import NO_TIME, Prediction, Workload, predict
from ddp.forecast.recording import Step, record
from ddp.gradients.plan import choose_limits
from ddp.groups.group import resolve
from ddp.transport.nodes import count_nodes
from ddp.transport.timing import SumTimes

_HEADING = " nodes   ranks     step       own   slowest   exposed  efficiency  limited by"


def main(arguments: list[str] | None = None) -> None:
    """The command. Its own arguments may stand on either side of the script; all others are the script's."""
    parser = argparse.ArgumentParser(
        prog="ddprun -n RANKS -m ddp.forecast", description="Step time on more nodes than there are."
    )
    parser.add_argument("script", help="a program that trains with DistributedDataParallel")
    parser.add_argument("--nodes", type=_count, required=True, help="up to how many")
    parser.add_argument("--link", required=True, help="of a node, as bandwidth and latency: 25gbit,2us")
    parser.add_argument("--ranks-per-node", type=_count, help="1, or as many as run here (so it is without)")
    parser.add_argument("--measure", type=_count, default=50, metavar="STEPS", help="then the script is ended (50)")
    parser.add_argument("--json", action="store_true", help="a JSON line for each number of nodes instead of the table")
    parser.add_argument("--plot", metavar="FILE.html", help="efficiency over nodes, a page; needs plotly")
    options, rest = parser.parse_known_args(arguments)
    try:
        link = parse_link(options.link)
    except ValueError as error:
        parser.error(str(error))
    if options.plot and not options.plot.endswith(".html"):
        parser.error(f"--plot: expected a file name that ends in .html, got {options.plot!r}")
    if not Path(options.script).is_file():
        parser.error(f"there is no file {options.script!r}")
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    steps, limits = record(options.script, rest, options.measure)
    if not ddp.is_initialized():
        ddp.init_process_group()
    group = resolve(None)
    if group.comm is None:
        parser.error("it takes at least 2 ranks to measure messages: ddprun -n 2 -m ddp.forecast ...")
    per_node = options.ranks_per_node or group.size()
    if per_node not in (1, group.size()):
        parser.error(f"--ranks-per-node: expected 1 or the {group.size()} ranks that run here, got {per_node}")
    with group.meeting("a measurement of ddp.forecast"):
        if count_nodes(group.comm) > 1:
            parser.error("it measures the ranks of one host, and these are on several")
        everyones = group.comm.allgather(steps)
        local = measure_local(group.comm) if per_node > 1 else NO_TIME
        software = measure_software(group.comm, chain=per_node > 1)
    workload, gradients = _workload(everyones, local, per_node)
    nbytes, predictions = sum(nbytes for _, nbytes in gradients), []
    nobodys = limits == choose_limits(nbytes, None)  # choice: then it is made for the network
    for nodes in _doubling(options.nodes):
        there = limits_between(nodes, per_node, link, software, nbytes) if nobodys else limits
        predictions.append(predict(replace(workload, buckets=fill(gradients, there)), nodes, link, software))
    if group.rank == 0:
        head = f"link {options.link}, {len(steps)} steps measured on {group.size()} ranks"
        _show(workload, predictions, options.json, head)
        if options.plot:
            from ddp.forecast.page import page

            Path(options.plot).write_text(page(predictions, _table(workload, predictions), options.link))
    ddp.destroy_process_group()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def _doubling(largest: int) -> list[int]:
    return [*(2**power for power in range((largest - 1).bit_length())), largest]


def _workload(everyones: list[list[Step]], local: SumTimes, ranks: int) -> tuple[Workload, Gradients]:
    """What ranks and steps have in common, without buckets. Noise is what ranks do not share: all of them evaluate at
    the same time.
    """
    last = [size for _, size in everyones[0][-1].gradients]
    alike = [step for own in everyones for step in own if [size for _, size in step.gradients] == last]
    gradients = [(median(step.gradients[place][0] for step in alike), nbytes) for place, nbytes in enumerate(last)]
    noise = []
    for together in zip(*everyones, strict=True):
        mean = fmean(step.own for step in together)
        spread = math.sqrt(len(together) / (len(together) - 1))  # the mean follows each of so few
        noise += [spread * (step.own - mean) for step in together]
    every = [step for own in everyones for step in own]
    own, seconds = fmean(step.own for step in every), fmean(step.seconds for step in every)
    return Workload(own, noise, [], local, ranks, seconds), sorted(gradients)


def _table(workload: Workload, predictions: list[Prediction]) -> str:
    rows = [_HEADING]
    for found in predictions:
        times = "".join(f"{1e3 * value:>10.3f}" for value in found[2:6])
        rows.append(f"{found.nodes:>6}  {found.ranks:>6}{times}  {found.efficiency:>10.1%}  {found.limit}")
    return "\n".join([*rows, f"ms; the step measured here: {1e3 * workload.step:.3f}"])


def _show(workload: Workload, predictions: list[Prediction], as_json: bool, head: str) -> None:
    if as_json:
        for found in predictions:
            print(json.dumps(found._asdict()), flush=True)
    else:
        print(f"{head}\n{_table(workload, predictions)}", flush=True)
