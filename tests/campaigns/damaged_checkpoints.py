"""Loads checkpoints that are damaged or hostile: cut, mutated at random, and crafted with right checksums.

    python -m tests.campaigns.damaged_checkpoints --mutations 5000

Each must end in one clear error that names a file, and change nothing, or give what was saved; within a limit on the
memory of the process. Prints a table; exit code 1 where something else came.
"""

import argparse
import json
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine
from ddp import checkpoint
from ddp.checkpoint import manifest
from ddp.testing import run_ranks
from tests.campaigns.damaged_files import data, limit_memory, mutations, same, truncations


def written(folder: Path) -> dict[str, Any]:
    """A small checkpoint of two ranks with every kind of data; returns what it holds."""
    held: dict[str, Any] = {"data": data(), "large": engine.arange(1 << 10)}
    run_ranks(2, lambda: checkpoint.save(held, folder))
    return held


def outcome(folder: Path, original: dict[str, Any]) -> str:
    """What loading gave: "refused", "equal", or what was wrong."""
    state: dict[str, Any] = {"data": None, "large": None}
    try:
        checkpoint.load(state, folder)
    except (RuntimeError, ValueError, OSError) as error:
        if str(folder) not in str(error):
            return f"an error that names no file: {error!r:.200}"
        changed = any(value is not None for value in state.values())
        return "half loaded" if changed else "refused"
    except BaseException as error:  # noqa: BLE001 - whatever else comes is what is looked for
        return f"{type(error).__name__}: {error!s:.200}"
    return "equal" if same(state, original) else f"other content: {state!r:.200}"


def crafted(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Manifests that say what is not so, with the right checksum."""

    def signed(fields: Any) -> bytes:
        plain = json.dumps({**fields, "checksum": "00000000"}, separators=(",", ":")).encode()
        return plain.replace(b'"checksum":"00000000"', f'"checksum":"{zlib.crc32(plain):08x}"'.encode(), 1)

    whole = json.loads(text)
    name = next(name for name, entry in whole["tensors"].items() if entry["pieces"])

    def changed(*path: Any, value: Any) -> bytes:
        fields = json.loads(text)
        at = fields
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return signed(fields)

    pieces = ("tensors", name, "pieces")
    yield "signed anew", signed(whole)
    yield "a newer version", changed("version", value=2)
    yield "another format", changed("format", value="x")
    yield "a path out of the folder", changed(*pieces, 0, "file", value="../../etc/passwd")
    yield "a file outside", changed("files", "../x", value={"size": 1, "header": 1, "checksum": ""})
    for field in ("offset", "size"):
        for value in (-1, 1 << 62, 1 << 40, 1.5, True, None, "1"):
            yield f"{field} {value}", changed(*pieces, 0, field, value=value)
    for value in ([1 << 50], [-1], [0, 1 << 61], [1] * 65, [1 << 61, 8], "x", None, [True]):
        yield f"shape {value}"[:40], changed("tensors", name, "shape", value=value)
    for value in ([9], [0, 0], "x", None):
        yield f"order {value}", changed("tensors", name, "order", value=value)
    for value in ("float4", "object", None, 3):
        yield f"dtype {value}", changed("tensors", name, "dtype", value=value)
    yield "no pieces", changed(*pieces, value=[])
    yield "a piece twice", changed(*pieces, value=[*whole["tensors"][name]["pieces"]] * 2)
    yield "no tensors", changed("tensors", value={})
    for value in (None, 1, [], {"data": 1}, {"data": {"tensor": "nothing"}}, {"data": {"list": {"a": 1}}},
                  {"data": {"object": [1, 2]}, "large": 1}, {"data": {"import": "os"}, "large": 1}):  # fmt: skip
        yield f"state {value}", changed("state", value=value)
    yield "nested very deeply", b'{"format":' + b"[" * 100_000
    yield "digits", b'{"format":' + b"9" * 100_000 + b"}"


def campaign(count: int, seed: int) -> dict[str, Counter[str]]:
    """How often each kind of damage had which outcome."""
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="damaged-") as name:
        folder = Path(name, "step-00000001")
        original = written(folder)
        assert outcome(folder, original) == "equal"
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            damages = {
                f"{path.name}, mutated": mutations(content, count, seed),
                f"{path.name}, cut": (each for at, each in enumerate(truncations(content)) if at % 16 == 0),
            }
            if path.name == manifest.NAME:
                damages["manifest.json, crafted"] = crafted(content)
            for kind, changes in damages.items():
                table[kind] = Counter()
                for words, changed in changes:
                    path.write_bytes(changed)
                    found = outcome(folder, original)
                    table[kind][found if found in ("equal", "refused") else f"{words}: {found}"] += 1
            path.write_bytes(content)
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=5000, help="of each file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    campaign(1, 0)  # everything is imported and warm
    limit_memory()
    table = campaign(options.mutations, options.seed)
    for kind, results in table.items():
        print(f"{kind:34}", ", ".join(f"{count} {result}" for result, count in results.most_common(4)))
    wrong = [result for results in table.values() for result in results if result not in ("equal", "refused")]
    print(*wrong[:20], f"{sum(map(Counter.total, table.values()))} files, {len(wrong)} wrong outcomes", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
