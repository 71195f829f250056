"""Compiles raw CUDA sources to machine code for GPUs, by NVRTC: no GPU is needed, and no driver.

    echo ops/copy/copy.cu | python -m tests.engine.kernels.cuda.for_gpus

Reads names of files, one a line, and answers each with a line of JSON: how many variants were compiled, and what is
wrong with which. Of two variants that differ only in the type of 16 bits, which are one text, one is compiled, in turns
that of float16 and that of bfloat16.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from typing import Any

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


def compiled(nvrtc: Any, source: Source, macros: dict[str, str], architecture: str) -> str | None:
    """What is wrong with a variant: it does not compile, its values do not fit into registers, or a device refuses to
    launch the largest block that the CPU driver lets its callers launch.
    """
    what = f"{source.file} {macros} {architecture}"
    options = source.options(macros)
    program = nvrtc.createProgram(source.code(), source.file, [], [])
    try:
        nvrtc.compileProgram(program, [*options, *AS_CUPY, f"-arch={architecture}", "--ptxas-options=-v"])
        assert nvrtc.getCUBIN(program)[1:4] == b"ELF"
        log = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError:
        return f"{what}:\n{nvrtc.getProgramLog(program)}"
    finally:
        nvrtc.destroyProgram(program)
    found = re.findall(
        r"Compiling entry function '(\w+)'.*\n.*\n.*, (\d+) bytes spill stores.*\n.* Used (\d+) registers", log
    )
    assert sorted(kernel for kernel, _, _ in found) == sorted(source.kernels)
    spilled = {kernel: int(size) for kernel, size, _ in found if int(size) > SPILLED_AT_MOST}
    if spilled:
        return f"{what}: bytes of registers spilled to memory: {spilled}"
    blocks = largest_blocks(source.code(), options)
    refused = {
        kernel: (int(registers), blocks[kernel])
        for kernel, _, registers in found
        if registers_of_block(int(registers), blocks[kernel]) > REGISTERS
    }
    return f"{what}: too many registers a thread for so many threads: {refused}" if refused else None


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


def main() -> int:
    """The exit code."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as cause:
        print(cause, file=sys.stderr)
        return WITHOUT_NVRTC
    sources = {source.file: source for source in warm.sources()}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # NVRTC lets other threads run
        for line in sys.stdin:
            source = sources[line.strip()]
            variants = texts(source.variants)
            said = threads.map(partial(compiled, nvrtc, source), variants, cycle(ARCHITECTURES))
            print(json.dumps({"variants": len(variants), "problems": list(filter(None, said))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
