"""Every variant of every raw CUDA source compiles: by g++ with the header of the simulated device and, where it is
installed, by NVRTC to machine code for GPUs of compute capability 8.0 or 9.0, without a GPU or a driver.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.kernels.cuda import warm
from engine.kernels.cuda.launch import SOURCES, Source
from tests.cuda_simulator import kernels

ENGINE = Path(engine.__file__).parent
warm.sources()

# In turns, one a variant: what two dtypes make of one text is then compiled for either, in half of the six minutes of a
# processor that both for each take, and nothing in a source asks for which it is compiled.
ARCHITECTURES = ("sm_80", "sm_90")
AS_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy adds to the options
SPILLED_AT_MOST = 64  # bytes a thread; a register or two depends on the compiler's release
REGISTERS = 65536  # of a block

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.file)


def problems(check: Callable[..., str | None], jobs: list[tuple[object, ...]]) -> str:
    """What `check` says of any job; several are checked at once, in threads, as compilers are not Python."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        said = threads.map(lambda job: check(*job), jobs)
        return "\n\n".join(text for text in said if text)


def test_warming_compiles_every_variant_for_the_gpu_in_use(cuda, monkeypatch):
    """What `ddprun --warm-cache` does besides."""
    asked = []
    monkeypatch.setattr(Source, "get", lambda source, kernel, **macros: asked.append((source.file, kernel, macros)))
    told = []
    assert warm.warm(lambda *progress: told.append(progress)) == len(asked) == len(told)
    expected = [(each.file, each.kernels[0], macros) for each in SOURCES for macros in each.variants]
    assert sorted(map(str, asked)) == sorted(map(str, expected))


def test_every_file_belongs_to_one_source():
    found = sorted(str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*.cu"))
    assert found == sorted(each.file for each in SOURCES)
    used = {header if "/" in header else f"kernels/cuda/{header}" for each in SOURCES for header in each.headers}
    assert {str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*.cuh")} == used


@every_source
def test_names_of_kernels(source: Source):
    assert sorted(kernels.kernel_names(source.code())) == sorted(source.kernels)


@every_source
def test_variants_differ(source: Source):
    assert source.variants
    assert len({tuple(sorted(macros.items())) for macros in source.variants}) == len(source.variants)


@every_source
@pytest.mark.skipif(kernels.why_not() is not None, reason=kernels.why_not() or "")
def test_compiles_for_the_host(source: Source):
    code = source.code()
    assert not problems(kernels.syntax_error, [(code, source.options(macros)) for macros in source.variants])


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Iterator[dict[str, list[Future[str | None]]]]:
    """By file, what NVRTC says of each variant; those of all files that are tested are compiled side by side."""
    if os.environ.get("ALLSTRIDE_CUDA_DRIVER"):
        pytest.skip("compiling for GPUs needs the real NVRTC, in whose place the CPU driver has another")
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as cause:
        pytest.skip(f"compiling for GPUs needs CuPy and NVRTC (pip install -e '.[nvrtc]'): {cause}")
    wanted = [
        item.callspec.params["source"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_compiles_for_gpus.__name__
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = {
            source.file: [
                threads.submit(compiled, nvrtc, source, macros, ARCHITECTURES[number % len(ARCHITECTURES)])
                for number, macros in enumerate(source.variants)
            ]
            for source in wanted
        }
        yield found
        threads.shutdown(cancel_futures=True)


def compiled(nvrtc: Any, source: Source, macros: dict[str, str], architecture: str) -> str | None:
    """What is wrong with a variant: it does not compile, its values do not fit into registers, or a device refuses to
    launch the largest block that the simulated device lets its callers launch.
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
    blocks = kernels.largest_blocks(source.code(), options)
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


def test_registers_of_a_block():
    assert registers_of_block(255, kernels.UNDECLARED) == REGISTERS < registers_of_block(255, kernels.UNDECLARED + 1)
    assert registers_of_block(64, 1024) == REGISTERS < registers_of_block(65, 1024)


@every_source
def test_compiles_for_gpus(source: Source, findings: dict[str, list[Future[str | None]]]):
    """To machine code that keeps its values in registers, and can be launched."""
    said = "\n\n".join(text for future in findings[source.file] if (text := future.result()))
    assert not said, said
