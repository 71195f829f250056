"""`python -m ddp.checkpoint ls|verify|consolidate|diff PATH`: looks after checkpoints, without any ranks."""

import argparse
import sys
from collections.abc import Sequence

from ddp.checkpoint import tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 where something is damaged, differs, or is not there."""
    parser = argparse.ArgumentParser(prog="python -m ddp.checkpoint", description="Looks after checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("ls", "lists the checkpoints in a directory"),
        ("verify", "reads every byte and says what is damaged"),
        ("consolidate", "makes one safetensors file of a checkpoint, which engine.load reads"),
        ("diff", "says in what two checkpoints differ"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("path", metavar="PATH", help="a checkpoint, or a directory of them")
        if name == "consolidate":
            command.add_argument("file", metavar="FILE", help="the file to be written")
        if name == "diff":
            command.add_argument("other", metavar="OTHER", help="another one")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except (OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "ls":
        for name, step, ranks, size, state in tools.rows(options.path):
            print(f"{name}  step {step or '-':>8}  {ranks or '-':>4} ranks  {size or '-':>17} bytes  {state}")
        return 0
    if options.command == "consolidate":
        tools.consolidate(options.path, options.file)
        return 0
    if options.command == "diff":
        found = tools.difference(options.path, options.other)
        print(*found, sep="\n", end="\n" if found else "")
        return 1 if found else 0
    wrong = False
    for generation in tools.generations(options.path):
        found = tools.verify(generation)
        print(*found or [f"{generation} is whole"], sep="\n", flush=True)
        wrong = wrong or bool(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
