"""PyTorch's own tests of torch.distributed and DistributedDataParallel, run on this project.

    python tests/data/distributed_suite.py SITE_PACKAGES [-k WORDS]

SITE_PACKAGES is a folder with PyTorch's files, of which one is read and nothing is imported:
torch/testing/_internal/distributed/distributed_test.py. `import torch` in it is answered by `engine` and `ddp`. Tests
of GPUs run in host memory, as do their tensors: `.cuda()` and `device=` are taken out of the source. Tests of CUDA
itself, of NCCL and of the profiler are left out by name.

Each test runs on two ranks, in one job for as long as they pass, for two minutes at most: `--limit SECONDS` gives it
more, which it needs where others work on the machine. `distributed_suite.json` beside this file names the
tests that are known to fail, with the reason. Exit code 1 where another one fails.
"""

import argparse
import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "torch/testing/_internal/distributed/distributed_test.py"
LEFT_OUT = ("cuda", "nccl", "profil", "_gpu")
RANKS = 2
# environment variables: which tests a job is to run, and how many seconds it gives each
_TESTS, _LIMIT = "ALLSTRIDE_TESTS", "ALLSTRIDE_TEST_LIMIT"
LIMIT = float(os.environ.get(_LIMIT, "120"))

# --- import torch -----------------------------------------------------------------------------------------------------

_NAMES = (
    ("torch.utils.data.distributed", "ddp"),
    ("torch.nn.parallel", "ddp"),
    ("torch.distributed", "ddp"),
    ("torch.utils.data", "engine.data"),
    ("torch", "engine"),
)


class _Absent(types.ModuleType):
    """A module of PyTorch that the project has not: its names can be imported, and raise where they are used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"

        def absent(*_: object, **__: object) -> Any:
            raise NotImplementedError(f"the project has no {path}")

        return absent


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        theirs, ours = next(pair for pair in _NAMES if spec.name == pair[0] or spec.name.startswith(f"{pair[0]}."))
        module = sys.modules.get(f"{ours}{spec.name[len(theirs) :]}")
        if module is None:
            try:
                module = importlib.import_module(f"{ours}{spec.name[len(theirs) :]}")
            except ModuleNotFoundError:
                module = _Absent(spec.name)
                module.__path__ = []
        self._kept = module, module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        kept, spec = self._kept
        if kept is module and spec is not None:
            module.__spec__ = spec  # importlib has written its own into it


# --- what the tests' own infrastructure is replaced by ----------------------------------------------------------------


def _check_equal(first: Any, second: Any, message: str, tolerances: dict[str, Any]) -> None:
    """As PyTorch's assertEqual: tensors and floats to within rounding, containers by what is in them."""
    import numpy as np

    import engine

    if isinstance(first, engine.Tensor) or isinstance(second, engine.Tensor):
        arrays = [value.detach().numpy() if isinstance(value, engine.Tensor) else value for value in (first, second)]
        exact = not any(np.issubdtype(np.asarray(array).dtype, np.inexact) for array in arrays)
        near = {} if exact else {"rtol": tolerances.get("rtol") or 1.3e-6, "atol": tolerances.get("atol") or 1e-5}
        np.testing.assert_allclose(*arrays, err_msg=message, **near)
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
        assert len(first) == len(second), message
        for one, other in zip(first, second, strict=True):
            _check_equal(one, other, message, tolerances)
    elif isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys(), message
        for key, value in first.items():
            _check_equal(value, second[key], message, tolerances)
    elif isinstance(first, float) or isinstance(second, float):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, err_msg=message)
    else:
        assert first == second, message


class MultiProcessTestCase(unittest.TestCase):
    """The assertions; a job of MPI is started once, not by each test."""

    rank = 0
    file_name = "unused"

    def assertEqual(self, first: Any, second: Any, msg: Any = None, **tolerances: Any) -> None:
        _check_equal(first, second, str(msg or ""), tolerances)

    def assertNotEqual(self, first: Any, second: Any, msg: Any = None, **tolerances: Any) -> None:
        try:
            _check_equal(first, second, "", tolerances)
        except AssertionError:
            return
        raise self.failureException(msg or f"{first!r} == {second!r}")

    def assertGreaterAlmostEqual(self, first: float, second: float, delta: float = 0.0, **_: Any) -> None:
        assert first >= second - delta


def _decorator(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function


def _skip(reason: str) -> Callable[[Any], Any]:
    return unittest.skip(reason)


def _debug_levels(levels: list[str]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def at_each_level(*arguments: Any, **keywords: Any) -> None:
            for level in levels:
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
                function(*arguments, **keywords)
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "OFF"

        return at_each_level

    return decorate


def world_size_over(least: int) -> Callable[[Any], Any]:
    return unittest.skipIf(least > RANKS, f"needs more than {RANKS} ranks")


@contextmanager
def _no_profile(*_: Any, **__: Any) -> Iterator[Any]:
    yield types.SimpleNamespace(function_events=[])


@contextmanager
def _captured() -> Iterator[Any]:
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def _infrastructure() -> None:
    """Puts stand-ins in the place of torch.testing._internal and of what tests ask of a GPU."""

    def module(name: str, **names: Any) -> None:
        made = sys.modules[name] = _Absent(name)
        made.__path__ = []
        vars(made).update(names)

    cases = types.SimpleNamespace(
        skip_collective={
            name: set() for name in ("allgather_coalesced", "reduce", "sendrecv anysource", "cpu barrier")
        },
        backend_feature={name: {"nccl", "gloo"} for name in ("gpu", "cuda", "ddp", "subgroup")} | {"plugin": set()},
    )
    plain = dict.fromkeys(
        ["skip_if_no_gpu", "skip_if_rocm_multiprocess", "skip_if_odd_worldsize"], lambda function: function
    )
    made = dict.fromkeys(
        ["nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend", "requires_nccl_version", "skip_if_lt_x_gpu"],
        _decorator,
    )
    module("torch.testing")
    module("torch.testing._internal")
    module(
        "torch.testing._internal.common_distributed",
        MultiProcessTestCase=MultiProcessTestCase,
        DistTestCases=cases,
        captured_output=_captured,
        init_multigpu_helper=lambda size, backend: {rank: [rank] for rank in range(size)},
        skip_if_small_worldsize=world_size_over(3),
        with_dist_debug_levels=_debug_levels,
        with_nccl_blocking_wait=lambda function: function,
        TEST_SKIPS={},
        verify_ddp_error_logged=lambda *_: None,
        **plain,
        **made,
    )
    module(
        "torch.testing._internal.common_utils",
        FILE_SCHEMA="file://",
        instantiate_parametrized_tests=lambda kind: kind,
        skip_but_pass_in_sandcastle=_skip,
        skip_but_pass_in_sandcastle_if=lambda condition, reason: unittest.skipIf(condition, reason),
        **dict.fromkeys(["IS_FBCODE", "IS_MACOS", "IS_SANDCASTLE", "IS_WINDOWS", "TEST_WITH_ROCM"], False),
        IS_LINUX=True,
    )
    module("torch._utils_internal", TEST_MASTER_ADDR="127.0.0.1", TEST_MASTER_PORT=29500)
    module("torch.utils._python_dispatch", TorchDispatchMode=object)
    import engine

    engine.autograd.DeviceType = _Absent("torch.autograd.DeviceType")
    engine.autograd.profiler = types.SimpleNamespace(profile=_no_profile)
    for kind in (engine.Tensor, engine.nn.Module):
        kind.to = kept_in_host_memory(kind.to)
    for name, answer in (("set_device", None), ("synchronize", None), ("device_count", RANKS), ("current_device", 0)):
        setattr(engine.cuda, name, lambda *_, answer=answer: answer)
    engine.cuda.manual_seed = engine.manual_seed


def kept_in_host_memory(to: Any) -> Any:
    def moved(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if arguments and (type(arguments[0]) is int or str(arguments[0]).startswith("cuda")):
            arguments = arguments[1:]
        return to(self, *arguments, **keywords) if arguments or keywords else self

    return moved


def _fill_in(tree: ast.Module) -> None:
    """Gives modules of the project the names that a test file imports from them and that it has not."""
    import ddp

    ddp.Backend.UCC = ddp.Backend.XCCL = "none of the project's"
    sys.modules["ddp"]._get_default_group = lambda: ddp.groups.group.WORLD
    sys.modules["ddp"]._get_pg_config = lambda group=None: {"ranks": ddp.get_process_group_ranks(group)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    setattr(module, alias.name, getattr(_Absent(node.module or ""), alias.name))


class InHostMemory(ast.NodeTransformer):
    """`x.cuda(...)` is x, and nobody is told of devices."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            return node.func.value
        node.keywords = [word for word in node.keywords if word.arg not in ("device", "device_ids", "output_device")]
        return node


def load_tests(site_packages: Path) -> type:
    """The class of all tests; `import torch` is answered by the project from now on."""
    sys.meta_path.insert(0, _Finder())
    _infrastructure()
    path = site_packages / SOURCE
    _fill_in(ast.parse(path.read_text()))
    tree = ast.fix_missing_locations(InHostMemory().visit(ast.parse(path.read_text())))
    module = types.ModuleType("distributed_test")
    module.__file__ = str(path)
    sys.modules["distributed_test"] = module
    exec(compile(tree, str(path), "exec"), vars(module))
    module.PROFILING_SUPPORTED_BACKENDS = []  # what is profiled is not looked at
    base = module.TestDistBackend
    return type(
        "Suite", (base, module.DistributedTest._DistTestBase), {"setUp": lambda _: None, "tearDown": lambda _: None}
    )


# --- on the ranks -----------------------------------------------------------------------------------------------------


def run_rank(site_packages: Path, names: list[str], results: Path) -> None:
    """Runs tests until one fails, and writes a line for each."""
    suite = load_tests(site_packages)
    import ddp

    run_tests(suite, names, results, lambda: ddp.init_process_group("gloo", timeout=timedelta(seconds=LIMIT / 2)), ddp)


def run_tests(suite: type, names: list[str], results: Path, init: Callable[[], None], distributed: Any) -> None:
    """The same, of a class of tests. init: enters the world; distributed: torch.distributed, or what answers for it."""
    import faulthandler

    for name in names:
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        init()
        rank = distributed.get_rank()
        case = suite(name)
        case.rank = int(rank)
        outcome, text = "passed", ""
        function = getattr(case, name)
        try:
            if getattr(function, "__unittest_skip__", False):  # what unittest's own runner looks at
                raise unittest.SkipTest(function.__unittest_skip_why__)
            function()
        except unittest.SkipTest as why:
            outcome, text = "skipped", str(why)
        except BaseException as error:  # noqa: BLE001 - whatever a test ends in is its outcome
            outcome, text = "failed", f"{type(error).__name__}: {error}"
            traceback.print_exc()
        with results.open("a") as file:
            file.write(json.dumps({"test": name, "rank": int(rank), "outcome": outcome, "text": text[:400]}) + "\n")
        if outcome == "failed":
            sys.stderr.flush()
            time.sleep(1.0)  # the other rank's own line, if it comes to that
            os._exit(3)
        case._barrier(wait_for=RANKS, timeout=60)
        if distributed.is_initialized():
            distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


# --- the job ----------------------------------------------------------------------------------------------------------


def test_names(site_packages: Path, words: list[str]) -> list[str]:
    """All but those that are left out."""
    tree = ast.parse((site_packages / SOURCE).read_text())
    found = [
        function.name
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and kind.name == "_DistTestBase"
        for function in kind.body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
    ]
    found = [name for name in dict.fromkeys(found) if not any(word in name.lower() for word in LEFT_OUT)]
    return [name for name in found if not words or any(word in name for word in words)]


def run_job(
    site_packages: Path, names: list[str], log: Path, script: str = __file__, backend: str = "gloo"
) -> dict[str, tuple[str, str]]:
    """One job of `script`: the outcome of its tests, up to and with the first that did not pass."""
    from tests.mpi_job import end_process, mpirun_command, start_process

    with tempfile.TemporaryDirectory(prefix="allstride-suite-") as folder:
        for inside in ("barrier", "test_dir", "init_dir"):
            Path(folder, inside).mkdir()
        results = Path(folder, "results")
        command = [*mpirun_command(RANKS), sys.executable, script, str(site_packages), "--rank", str(results)]
        environment = {
            "BACKEND": backend,
            "WORLD_SIZE": str(RANKS),
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/init",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            _TESTS: " ".join(names),
        }
        with log.open("ab") as file:
            process = start_process(command, file.fileno(), file.fileno(), environment)
            try:
                process.wait()
            finally:
                end_process(process)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    outcomes: dict[str, tuple[str, str]] = {}
    for name in names:
        own = [line for line in lines if line["test"] == name]
        failed = [line for line in own if line["outcome"] == "failed"]
        if failed:
            outcomes[name] = "failed", failed[0]["text"]
            break
        if len(own) < RANKS:
            outcomes[name] = "failed", "the job ended, or took too long"
            break
        outcomes[name] = own[0]["outcome"], own[0]["text"]
    return outcomes


def main(
    description: str | None = __doc__,
    script: str = __file__,
    backend: str = "gloo",
    rank: Callable[[Path, list[str], Path], None] = run_rank,
) -> int:
    """Returns the exit code. rank: what each rank of a job of `script` does; what it may fail lies beside `script`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site_packages", type=Path)
    parser.add_argument("-k", dest="words", action="append", default=[])
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.rank is not None:
        rank(options.site_packages, os.environ[_TESTS].split(), options.rank)
        return 0
    os.environ[_LIMIT] = str(options.limit)
    names = test_names(options.site_packages, options.words)
    outcomes: dict[str, tuple[str, str]] = {}
    while left := [name for name in names if name not in outcomes]:
        outcomes |= run_job(options.site_packages, left, options.log, script, backend)
        print(f"{len(outcomes)} of {len(names)} tests", file=sys.stderr, flush=True)
    list_of_known = Path(script).with_suffix(".json")
    expected = json.loads(list_of_known.read_text()) if list_of_known.exists() else {}
    failed = {name: text for name, (outcome, text) in outcomes.items() if outcome == "failed"}
    for name, text in failed.items():
        print(f"{'expected' if name in expected else 'NEW     '} {name}: {text.splitlines()[0] if text else ''}")
    for name in sorted(expected.keys() & outcomes.keys() - failed.keys()):
        print(f"mended   {name}: {outcomes[name][0]}; take it out of {list_of_known.name}")
    counts = {
        kind: sum(outcome == kind for outcome, _ in outcomes.values()) for kind in ("passed", "skipped", "failed")
    }
    print(f"{len(outcomes)} tests: {counts['passed']} passed, {counts['skipped']} skipped, {counts['failed']} failed")
    return int(bool(failed.keys() - expected.keys()))


if __name__ == "__main__":
    sys.exit(main())
