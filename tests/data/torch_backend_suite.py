"""PyTorch's own tests of torch.distributed and DistributedDataParallel, run on `ddp.torch_backend`.

    python tests/data/torch_backend_suite.py SITE_PACKAGES [-k WORDS]

In an environment with PyTorch, expecttest and what ddp needs. SITE_PACKAGES is where PyTorch is installed. Tests that
PyTorch means for its MPI backend run, on "allstride"; tests of GPUs run in host memory, as `distributed_suite.py` has
it, which also says what is left out, and how tests run. The pictures of test_ddp_uneven_inputs are made smaller: its
network takes a core 12 s a pass, and there are 135. `torch_backend_suite.json` beside this file names the tests that
are known to fail, with the reason. Exit code 1 where another one fails.
"""

import ast
import itertools
import os
import sys
import types
import unittest
from datetime import timedelta
from pathlib import Path

from distributed_suite import LIMIT, RANKS, SOURCE, InHostMemory, kept_in_host_memory, main, run_tests, world_size_over


def load_tests(site_packages: Path) -> type:
    """The class of all tests."""
    import torch
    import torch.testing._internal.common_distributed as common

    import ddp.torch_backend

    common.skip_if_no_gpu = common.skip_if_rocm_multiprocess = lambda function: function
    common.skip_if_lt_x_gpu = common.require_n_gpus_for_nccl_backend = lambda *_, **__: lambda function: function
    common.skip_if_small_worldsize = world_size_over(3)
    common.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}
    for kind in (torch.Tensor, torch.nn.Module):
        kind.to = kept_in_host_memory(kind.to)
    for name, answer in (("set_device", None), ("synchronize", None), ("device_count", RANKS), ("current_device", 0)):
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    torch.accelerator.synchronize = lambda *_: None
    torch.distributed.is_mpi_available = lambda: True  # a wheel of PyTorch has no MPI, and this stands for it
    common.DistTestCases.backend_feature |= {name: {"mpi"} for name in ("gpu", "cuda", "ddp", "subgroup")}
    path = site_packages / SOURCE
    source = path.read_text().replace("dim = 1000", "dim = 50")
    tree = ast.fix_missing_locations(InHostMemory().visit(ast.parse(source)))
    module = types.ModuleType("distributed_test")
    module.__file__ = str(path)
    sys.modules["distributed_test"] = module
    exec(compile(tree, str(path), "exec"), vars(module))
    module.BACKEND = ddp.torch_backend.NAME  # the decorators have asked already
    module.PROFILING_SUPPORTED_BACKENDS = []
    base = module.TestDistBackend
    return type(
        "Suite",
        (base, module.DistributedTest._DistTestBase),
        {
            "setUp": lambda _: None,
            "tearDown": lambda _: None,
            "file_name": "unused",
            "__init__": unittest.TestCase.__init__,
        },
    )


def run_rank(site_packages: Path, names: list[str], results: Path) -> None:
    """Runs tests until one fails, and writes a line for each."""
    suite = load_tests(site_packages)
    import torch
    import torch.distributed as dist

    numbers = itertools.count()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def init() -> None:
        place = f"file://{os.environ['TEMP_DIR']}/store{next(numbers)}"  # a port would be that of the test before
        torch.manual_seed(0)  # as the setUp of PyTorch's tests
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)  # a level that the test before has set would change texts
        dist.set_debug_level(dist.DebugLevel.OFF)
        dist.init_process_group("allstride", place, timedelta(seconds=LIMIT / 2), size, rank)

    run_tests(suite, names, results, init, dist)


if __name__ == "__main__":
    sys.exit(main(__doc__, __file__, "mpi", run_rank))
