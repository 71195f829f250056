"""Runs PyTorch's own databases of operators, modules and optimizers on the engine.

    PYTHONPATH=.:<folder with numpy, numba and ml_dtypes> python tests/data/peer_databases/run.py [--only NAME ...]

Needs a Python with PyTorch, whose wheel has the databases (torch.testing._internal), and the engine beside it; no test
runs it. Prints a line a database with what passed of what was compared, then each failure that `expected.json` does not
have with a reason, and each reason that no failure asks for any more. Exits with 1 where there is any of either.
"""

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module

from outcome import outcome, told
from report import Expected, Report

DATABASES = ("operators", "modules", "optimizers")


def check(database: str, names: list[str], samples: int) -> Report:
    """One slice, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    report = Report(database)
    for name in names:
        start = time.process_time()
        failure = outcome(import_module(database).check, name, samples, report)
        if isinstance(failure, Exception):  # a result that cannot even be compared
            report.failed(name, "value", "", f"while comparing: {told(failure)}")
        if (took := time.process_time() - start) > 5:
            print(f"{name}: {took:.0f} s", file=sys.stderr, flush=True)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="operators, modules or optimizers of these names")
    parser.add_argument("--database", choices=DATABASES, action="append", help="one of the three; all by default")
    parser.add_argument("--samples", type=int, default=4, help="of each operator and dtype (4)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=1, help="differences to print of each operator and kind (1)")
    parser.add_argument("--write", action="store_true", help="make expected.json what fails now; reasons are kept")
    parser.add_argument("--all", action="store_true", help="print expected failures, too")
    options = parser.parse_args()
    expected = Expected()
    news, totals = 0, []
    start = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for database in options.database or DATABASES:
            names = [n for n in import_module(database).names() if not options.only or n in options.only]
            total = Report(database)
            slices = [names[place::80] for place in range(80)]
            for part in (
                pool.map(check, *zip(*((database, each, options.samples) for each in slices if each), strict=True))
                if names
                else ()
            ):
                total.add(part)
            totals.append(total)
            print(f"{database}: {total.table()}  ({time.time() - start:.0f} s)", flush=True)
            shown: dict[tuple[str, str], list[tuple[str, str]]] = {}
            for failure in sorted(total.failures):
                known = expected.covers(database, failure)
                news += not known
                if not known or options.all:
                    shown.setdefault(failure[:2], []).append(failure[2:])
            for (name, kind), cases in sorted(shown.items()):
                dtypes = " ".join(dict.fromkeys(dtype for dtype, _ in cases))
                print(f"  {name} | {kind} | {len(cases)} | {dtypes}")
                for difference in list(dict.fromkeys(difference for _, difference in cases))[: options.show]:
                    print(f"      {difference}")
            if options.samples >= 4:
                for entry in expected.unmet(database, set(names)):
                    news += 1
                    print(f"  no longer fails, take it out of expected.json: {entry}")
    if options.write and not (options.only or options.database):
        expected.written(totals)
    print(f"{news} to look at")
    return 1 if news else 0


if __name__ == "__main__":
    sys.exit(main())
