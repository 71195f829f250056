"""Every variant of every raw CUDA source compiles by g++ with the header of the CPU driver, and every text, where it is
installed, by NVRTC to machine code for GPUs of compute capability 8.0 or 9.0, without a GPU or a driver. A text whose
machine code is known, from `for_gpus.json`, is not compiled again.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.kernels.cuda import warm
from engine.kernels.cuda.launch import SOURCES, Source
from tests.cuda_driver import nvrtc
from tests.engine.kernels.cuda.for_gpus import RECORD, REGISTERS, WITHOUT_NVRTC, registers_of_block, texts, variants_of
from tests.mpi_job import ROOT

ENGINE = Path(engine.__file__).parent
warm.sources()

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
    assert sorted(nvrtc.largest_blocks(source.code(), source.options(source.variants[0]))) == sorted(source.kernels)


@every_source
def test_variants_differ(source: Source):
    assert source.variants
    assert len({tuple(sorted(macros.items())) for macros in source.variants}) == len(source.variants)


@every_source
def test_compiles_for_the_host(source: Source):
    code = source.code()
    assert not problems(nvrtc.syntax_error, [(code, source.options(macros)) for macros in source.variants])


def test_registers_of_a_block():
    assert registers_of_block(255, nvrtc.UNDECLARED) == REGISTERS < registers_of_block(255, nvrtc.UNDECLARED + 1)
    assert registers_of_block(64, 1024) == REGISTERS < registers_of_block(65, 1024)


def test_variants_that_differ_in_the_type_of_16_bits_are_one_text():
    single, half, brain = ({"ELEMENT": element, "WIDTH": "8"} for element in ("float", "float16", "bfloat16"))
    assert texts([single, half, brain]) == [single, half]
    assert texts([single, {}, half, brain]) == [single, {}, brain]
    ways = [{"SOURCE": "float16", "ELEMENT": "bfloat16"}, {"SOURCE": "bfloat16", "ELEMENT": "float16"}]
    assert texts(ways) == ways


def test_what_is_recorded_is_of_texts_that_exist():
    sizes = json.loads(RECORD.read_text(encoding="utf-8"))["sizes"]
    gone = sizes.keys() - {variant.digest() for source in SOURCES for variant in variants_of(source)}
    assert not gone, "a source was changed: run `python -m tests.engine.kernels.cuda.for_gpus --record`"


def test_all_that_a_compiler_is_given_tells_texts_apart():
    variant = variants_of(SOURCES[0])[0]
    other_options, other_text = copy.copy(variant.source), copy.copy(variant.source)
    other_options.contract = not variant.source.contract
    other_text.headers = ()
    others = [
        variant._replace(architecture="sm_90"),
        variant._replace(macros={**variant.macros, "ELEMENT": "double"}),
        variant._replace(source=other_options),
        variant._replace(source=other_text),
    ]
    assert len({each.digest() for each in (variant, *others)}) == 5


@contextmanager
def compiling(said: Path, *options: str) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Compiles a file. In a process of its own, as here another NVRTC is in its place, and in one for all files, as its
    start is 0.6 s of a processor.
    """
    command = [sys.executable, "-m", "tests.engine.kernels.cuda.for_gpus", *options]
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as done,
    ):
        assert done.stdin is not None
        assert done.stdout is not None
        ask, answers = done.stdin, done.stdout

        def compile(file: str) -> dict[str, Any]:
            with suppress(BrokenPipeError):  # it has ended: what it said is told below
                print(file, file=ask, flush=True)
            if answer := answers.readline():
                return dict(json.loads(answer))
            if done.wait() == WITHOUT_NVRTC:
                pytest.skip(f"compiling for GPUs needs NVRTC (pip install -e '.[nvrtc]'): {said.read_text()}")
            return pytest.fail(f"{file}: exit code {done.returncode}\n{said.read_text()}")

        yield compile


@pytest.fixture(scope="module")
def for_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, Any]]]:
    with compiling(tmp_path_factory.mktemp("for_gpus") / "stderr") as compile:
        yield compile


@every_source
def test_compiles_for_gpus(source: Source, for_gpus):
    """To machine code that keeps its values in registers, and can be launched."""
    found = for_gpus(source.file)
    assert found["problems"] == [], "\n".join(found["problems"])
    assert len(found["sizes"]) == len(texts(source.variants))


def test_what_is_recorded_is_what_is_compiled(for_gpus, tmp_path):
    """Seen with two files that are compiled in an instant."""
    with compiling(tmp_path / "stderr", "--anew") as anew:
        for file in ("ops/attention/attention_draws.cu", "ops/rnn/rnn.cu"):
            found = anew(file)
            assert found["compiled"] == len(found["sizes"])
            assert found["sizes"] == for_gpus(file)["sizes"]
