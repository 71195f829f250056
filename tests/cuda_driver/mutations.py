"""Mistakes put into the GPU sources and transports, one at a time: the tests on the CPU driver have to notice each.

    python -m tests.cuda_driver.mutations [NAME ...]

Works on a copy of the checkout; prints what noticed a mistake, or MISSED, and exits with the number of those missed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = "tests/engine/kernels/cuda/"
NORM = f"{KERNELS}test_norm.py -k accesses"
CONV = f"{KERNELS}test_conv.py -k accesses"
CONV_VALUES = f"{KERNELS}test_conv.py -k several_tiles"
ATTENTION = f"{KERNELS}test_attention.py -k accesses"
ATTENTION_HALF = f"{KERNELS}test_attention.py -k float16"
STREAMS = "tests/engine/cuda/test_streams.py -k freed"
PEERS = "tests/engine/cuda/test_autograd.py -k two_devices"
PREFETCH = "tests/engine/cuda/test_data_movement.py -k another_stream"
TRANSPORTS = "tests/ddp/cuda/test_cuda_transport.py -k other_streams or stragglers"
BARRIER = "__syncthreads();"


@dataclass(frozen=True)
class Mutation:
    """`old`, where it stands for the `which`-th time in a file, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    which: int = 1


MMA, CONVOLUTION, ATTENDING = "engine/kernels/cuda/mma.cuh", "engine/ops/conv/conv.cu", "engine/ops/attention/"
MUTATIONS = (
    Mutation("over_block, first barrier", "engine/kernels/cuda/common.cuh", BARRIER, "", NORM),
    Mutation("over_block, second barrier", "engine/kernels/cuda/common.cuh", BARRIER, "", NORM, 2),
    Mutation("conv, barrier of the table", CONVOLUTION, BARRIER, "", CONV),
    Mutation("conv, barrier of the loop", CONVOLUTION, BARRIER, "", CONV, 2),
    Mutation("conv_weight, barrier of the table", "engine/ops/conv/conv_weight.cu", BARRIER, "", CONV),
    Mutation("conv_weight, barrier of the loop", "engine/ops/conv/conv_weight.cu", BARRIER, "", CONV, 2),
    Mutation("attention, barrier of the keys", f"{ATTENDING}attention.cu", BARRIER, "", ATTENTION),
    Mutation("attention, barrier of the values", f"{ATTENDING}attention.cu", BARRIER, "", ATTENTION, 2),
    Mutation("attention_backward, first barrier", f"{ATTENDING}attention_backward.cu", BARRIER, "", ATTENTION),
    Mutation("attention_backward, barrier of keys", f"{ATTENDING}attention_backward.cu", BARRIER, "", ATTENTION, 3),
    Mutation("Simt, __syncwarp before", MMA, "        __syncwarp();\n", "", ATTENTION),
    Mutation("Simt, __syncwarp after", MMA, "        __syncwarp();\n", "", ATTENTION, 2),
    Mutation(
        "wait for copies",
        MMA,
        'asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");',
        "",
        ATTENTION_HALF,
    ),
    Mutation(
        "copies are read without a bound",
        MMA,
        '"r"(inside ? 16 : 0) : "memory"',
        '"r"(16) : "memory"',
        f"{CONV_VALUES} or accesses",
    ),
    Mutation("operands of mma, float16", MMA, '"r"(a[1]), "r"(a[2])', '"r"(a[2]), "r"(a[1])', ATTENTION_HALF),
    Mutation("operands of mma, TF32", MMA, '"r"(a[1]), "r"(a[2])', '"r"(a[2]), "r"(a[1])', CONV_VALUES, 3),
    Mutation("second operand of mma", MMA, '"r"(first), "r"(second)', '"r"(second), "r"(first)', ATTENTION_HALF),
    Mutation("order of a packed pair", MMA, '"f"(high), "f"(low)', '"f"(low), "f"(high)', ATTENTION_HALF),
    Mutation("ldmatrix not turned", MMA, "x4.trans.shared", "x4.shared", ATTENTION_HALF),
    Mutation(
        "shared memory without permission",
        "engine/kernels/cuda/limits.py",
        "driver.funcSetAttribute(launch.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)",
        "pass",
        f"{KERNELS}test_attention.py -k wide_rows",
    ),
    Mutation(
        "wide accesses of misaligned rows",
        "engine/kernels/cuda/rows.py",
        "array is not None and array.data.ptr % (elements * array.dtype.itemsize)",
        "array is not None and False",
        f"{KERNELS}test_embedding.py -k aligned",
    ),
    Mutation("peer copy, wait before", "engine/memory/guard.py", "stream.wait_event(free)", "pass", PEERS),
    Mutation("peer copy, wait after", "engine/memory/guard.py", "theirs.wait_event(written)", "pass", PEERS),
    Mutation(
        "peer copy, the wrong stream's event",
        "engine/memory/guard.py",
        "written.record(stream)",
        "runtime.setDevice(index); written = cupy.cuda.Event(disable_timing=True); written.record(theirs)",
        PEERS,
    ),
    Mutation("prefetcher, wait", "engine/data/pinning.py", "current.wait_event(arrived)", "pass", PREFETCH),
    Mutation("memory given away early", "engine/memory/blocks.py", "event.record(raw)", "event.record()", STREAMS),
    *(
        Mutation(name, f"ddp/transport/cuda/{file}.py", old, new, TRANSPORTS)
        for name, file, old, new in (
            ("cuda_ipc, wait for the arrays", "ipc", "self._wait_for(self._stream, work.block, _FILLED)", "pass"),
            ("cuda_ipc, wait for the sums", "ipc", "self._wait_for(self._results, work.block, _SUMMED)", "pass"),
            ("cuda_ipc, arrays of a wrong stream", "ipc", "[_FILLED].record(self._stream)", "[_FILLED].record()"),
            ("cuda_ipc, sums of a wrong stream", "ipc", "[_SUMMED].record(self._stream)", "[_SUMMED].record()"),
            ("a transport, wait for who wrote", "common", "self._stream.wait_event(buffer.ready)", "pass"),
            ("a transport, wait for the result", "common", "self._current().wait_event(buffer.done)", "pass"),
            ("MPI gets an array early", "gpu_mpi", "has_passed(self._queue[0][0].work.filled)", "True"),
            ("MPI gets a sum early", "gpu_mpi", "has_passed(self._adding[0][1].total)", "True"),
            ("staged, summed before it is there", "staged", "not has_passed(chunk.copied)", "False"),
        )
    ),
)


def _replaced(text: str, mutation: Mutation) -> str:
    at = -1
    for _ in range(mutation.which):
        at = text.find(mutation.old, at + 1)
        if at < 0:
            raise ValueError(f"{mutation.file} has no {mutation.old!r} ({mutation.which})")
    return text[:at] + mutation.new + text[at + len(mutation.old) :]


def noticed(mutation: Mutation, copy: Path) -> str | None:
    """The first failure of the tests with a mistake in the copy; None where they pass.

    Raises: RuntimeError where they did not run.
    """
    path = copy / mutation.file
    right = path.read_text()
    path.write_text(_replaced(right, mutation))
    try:
        return first_failure(mutation.tests, copy)
    finally:
        path.write_text(right)


def first_failure(tests: str, copy: Path) -> str | None:
    """The first failure of tests on the copy as it is; None where they pass.

    Raises: RuntimeError where they did not run.
    """
    files, _, chosen = tests.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *files.split()]
    done = subprocess.run(
        [*command, "-o", "faulthandler_timeout=1800", *(["-k", chosen] if chosen else [])],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tests}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    if done.returncode == 0:
        return None
    said = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, flags=re.MULTILINE)
    return said[0] if said else done.stdout[-300:]


def main(names: Sequence[str]) -> int:
    """Tries those named, or all, after their tests without a mistake; returns how many nothing noticed."""
    missed, right = 0, dict[str, str | None]()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "out"))
        for mutation in MUTATIONS:
            if names and mutation.name not in names:
                continue
            if mutation.tests not in right:
                right[mutation.tests] = first_failure(mutation.tests, copy)
            if right[mutation.tests] is not None:
                print(f"{mutation.name}: its tests fail without it: {right[mutation.tests]}", flush=True)
                missed += 1
                continue
            found = noticed(mutation, copy)
            missed += found is None
            print(f"{mutation.name}: {found or 'MISSED'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
