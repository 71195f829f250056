"""A program for any number of ranks: every job of `runs`, over the transport and with the buckets that are asked for.

    mpirun -n 3 python -m tests.ddp.job.matrix TRANSPORT STEPS BUCKET_BYTES:ACCUMULATE...

Rank 0 prints one JSON object: the digest of each job.
"""

import json
import sys
from itertools import product

import ddp
from tests.ddp.job.runs import MODELS, PRECISIONS, Run


def main() -> None:
    transport, steps, *settings = sys.argv[1:]
    ddp.init_process_group(transport=transport)
    found = {}
    for model, precision, setting in product(MODELS, PRECISIONS, settings):
        run = Run(model, precision, *map(int, setting.split(":")))
        found[f"{model} {precision} {setting}"] = run.train(int(steps))
    if ddp.get_rank() == 0:
        print(json.dumps(found))
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
