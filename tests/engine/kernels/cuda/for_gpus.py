"""Compiles raw CUDA sources to machine code for GPUs, by NVRTC: no GPU is needed, and no driver.

    echo ops/copy/copy.cu | python -m tests.engine.kernels.cuda.for_gpus
    python -m tests.engine.kernels.cuda.for_gpus --record

The first reads names of files, one a line, and answers each with a line of JSON: how many of its variants were
compiled, what their kernels need, and what is wrong with which. Of two variants that differ only in the type of 16
bits, which are one text, one is compiled, in turns that of float16 and that of bfloat16.

All of them take three minutes of a processor, and the same text becomes the same code: `for_gpus.json` has the
registers of each, so that a text is compiled where it is not there, where NVRTC is another release, and with `--anew`.
The second writes that file.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from engine.kernels.cuda import warm
from engine.kernels.cuda.launch import Source
from tests.cuda_driver.nvrtc import largest_blocks

# In turns, one a variant: what two dtypes make of one text is then compiled for either, in half of the six minutes of a
# processor that both for each take, and nothing in a source asks for which it is compiled.
ARCHITECTURES = ("sm_80", "sm_90")
AS_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy adds to the options
SPILLED_AT_MOST = 64  # bytes a thread; a register or two depends on the compiler's release
REGISTERS = 65536  # of a block
WITHOUT_NVRTC = 2  # exit code
RECORD = Path(__file__).with_suffix(".json")

Sizes = dict[str, list[int]]  # of each kernel: registers of a thread, bytes of them that are spilled to memory


class Variant(NamedTuple):
    """A text and what it is compiled for."""

    source: Source
    macros: dict[str, str]
    architecture: str

    def options(self) -> tuple[str, ...]:
        return (*self.source.options(self.macros), *AS_CUPY, f"-arch={self.architecture}")

    def digest(self) -> str:
        """Of all that a compiler is given."""
        return hashlib.sha256("\0".join((*self.options(), self.source.code())).encode()).hexdigest()[:16]


def variants_of(source: Source) -> list[Variant]:
    """Those that are compiled."""
    named = zip(texts(source.variants), cycle(ARCHITECTURES), strict=False)
    return [Variant(source, macros, architecture) for macros, architecture in named]


def compiled(nvrtc: Any, variant: Variant) -> Sizes | str:
    """What the machine code needs; where a variant does not compile, the compiler's words."""
    program = nvrtc.createProgram(variant.source.code(), variant.source.file, [], [])
    try:
        nvrtc.compileProgram(program, [*variant.options(), "--ptxas-options=-v"])
        assert nvrtc.getCUBIN(program)[1:4] == b"ELF"
        log = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError:
        return str(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)
    found = re.findall(
        r"Compiling entry function '(\w+)'.*\n.*\n.*, (\d+) bytes spill stores.*\n.* Used (\d+) registers", log
    )
    return {kernel: [int(registers), int(spilled)] for kernel, spilled, registers in found}


def problem(variant: Variant, sizes: Sizes | str) -> str | None:
    """What is wrong with a variant: it does not compile, its values do not fit into registers, or a device refuses to
    launch the largest block that the CPU driver lets its callers launch.
    """
    source, macros, architecture = variant
    what = f"{source.file} {macros} {architecture}"
    if isinstance(sizes, str):
        return f"{what}:\n{sizes}"
    assert sorted(sizes) == sorted(source.kernels)
    spilled = {kernel: size for kernel, (_, size) in sizes.items() if size > SPILLED_AT_MOST}
    if spilled:
        return f"{what}: bytes of registers spilled to memory: {spilled}"
    blocks = largest_blocks(source.code(), source.options(macros))
    refused = {
        kernel: (registers, blocks[kernel])
        for kernel, (registers, _) in sizes.items()
        if registers_of_block(registers, blocks[kernel]) > REGISTERS
    }
    return f"{what}: too many registers a thread for so many threads: {refused}" if refused else None


def recorded(release: str) -> dict[str, Sizes]:
    """By digest: what this release of NVRTC is known to make."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return dict(record["sizes"]) if record["NVRTC"] == release else {}


def write(release: str, sizes: dict[str, Sizes]) -> None:
    """The record, a line a text."""
    lines = ",\n".join(f"{json.dumps(digest)}: {json.dumps(sizes[digest])}" for digest in sorted(sizes))
    RECORD.write_text(f'{{"NVRTC": {json.dumps(release)}, "sizes": {{\n{lines}\n}}}}\n', encoding="utf-8")


def registers_of_block(registers: int, threads: int) -> int:
    """What a block takes of an SM: 256 at a time for each warp, and of four warps at a time, one a part of the SM.

    Source: NVIDIA's occupancy calculator, compute capability 8.0 and 9.0.
    """
    of_warp = -(-registers * 32 // 256) * 256
    return of_warp * -(-threads // 128) * 4


def texts(variants: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """One variant of each text: of those that differ only in the type of 16 bits the first or the last."""
    alike: dict[tuple[tuple[str, str], ...], list[dict[str, str]]] = {}
    for macros in variants:
        text = tuple(macros.items())
        if "float16" not in macros.values():  # which turns one of the two types into the other
            text = tuple((name, value.replace("bfloat16", "float16")) for name, value in text)
        alike.setdefault(text, []).append(macros)
    return [found[-(number // 2 % 2)] for number, found in enumerate(alike.values())]


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        release = "{}.{}".format(*nvrtc.getVersion())
    except (ImportError, RuntimeError) as cause:
        print(cause, file=sys.stderr)
        return WITHOUT_NVRTC
    record = "--record" in arguments
    sizes: dict[str, Sizes | str] = {} if record or "--anew" in arguments else dict(recorded(release))
    sources = {source.file: source for source in warm.sources()}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # NVRTC lets other threads run
        for line in sources if record else sys.stdin:
            variants = variants_of(sources[line.strip()])
            new = [variant for variant in variants if variant.digest() not in sizes]
            sizes.update(zip(map(Variant.digest, new), threads.map(partial(compiled, nvrtc), new), strict=True))
            found = [sizes[variant.digest()] for variant in variants]
            problems = [text for text in threads.map(problem, variants, found) if text]
            print(json.dumps({"compiled": len(new), "problems": problems, "sizes": found}), flush=True)
    if record:
        write(release, {digest: each for digest, each in sizes.items() if not isinstance(each, str)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
