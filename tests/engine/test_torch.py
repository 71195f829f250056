"""`import engine.torch`: from then on `import torch` is answered. Each in a process of its own: it is for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.compat_scripts import SCRIPTS
from tests.data.torch_names import names_in
from tests.examples.running import environment

ROOT = Path(__file__).resolve().parents[2]


SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(backend="gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((1, 2), 2.0 * dist.get_rank())).sum().backward()
print(f"{dist.get_rank()}:{model.module.weight.grad[0, 0].item()}")
dist.destroy_process_group()
"""


WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, row):
        return torch.full((2,), float(row))

if __name__ == "__main__":
    torch.distributed.init_process_group(backend="gloo")
    print(sum(float(batch.sum()) for batch in DataLoader(Rows(), batch_size=2, num_workers=1)))
    torch.distributed.destroy_process_group()
"""


def run(code: str, *more: Path) -> str:
    path = os.pathsep.join([*map(str, (ROOT, *more)), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_names_are_those_of_the_project() -> None:
    run("""
import engine.torch
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist, torch.multiprocessing
import torch.utils._pytree as pytree
assert pytree.tree_map(lambda x: x + 1, {"a": [1]}) == {"a": [2]}
import torch.backends.cudnn as cudnn, torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import DistributedDataParallel as again
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.optim.lr_scheduler import StepLR
import ddp, engine
assert torch.Tensor is engine.Tensor and nn.Linear is engine.nn.Linear and F.relu is engine.nn.functional.relu
assert DataLoader is engine.data.DataLoader and StepLR is engine.optim.lr_scheduler.StepLR
assert DistributedSampler is torch.utils.data.distributed.DistributedSampler is ddp.DistributedSampler
assert DistributedDataParallel is again is nn.parallel.DistributedDataParallel is ddp.DistributedDataParallel
assert hooks.allreduce_hook is ddp.hooks.allreduce_hook and dist.all_reduce is ddp.all_reduce
assert torch.version.cuda is None and torch.nn is nn and "Linear" in dir(nn)
cudnn.benchmark = True
assert engine.backends.cudnn.benchmark is True
""")


def test_the_version_is_one_that_checks_accept() -> None:
    run("""
import engine.torch, torch
assert torch.__version__.startswith("2.13.0")
assert torch.__version__ >= "2.2" and torch.__version__ > (1, 8) and not torch.__version__ < "2.13"
assert torch.__version__ <= "2.13.0" and torch.__version__ < "10.0"
assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 0)
""")


def test_what_is_not_there_is_named() -> None:
    run("""
import engine.torch, torch
def error(text):
    try:
        exec(text)
    except (AttributeError, ImportError) as caught:
        return f"{type(caught).__name__}: {caught}"
assert error("torch.nn.Nonsense") == (
    "AttributeError: allstride answers for PyTorch here, and has no torch.nn.Nonsense")
assert error("torch.func.vmap").endswith("no torch.func.vmap: there is no vmap; write the batch as an axis")
assert error("import torch.distributed.nonsense") == (
    "ModuleNotFoundError: allstride answers for PyTorch here, and has no torch.distributed.nonsense")
assert error("from torch import nonsense") == (
    "ModuleNotFoundError: allstride answers for PyTorch here, and has no torch.nonsense")
assert error("from torch.distributed.fsdp import FullyShardedDataParallel").startswith(
    "ModuleNotFoundError: allstride answers for PyTorch here, and has no torch.distributed.fsdp: every rank keeps")
""")


def test_what_public_files_use_and_is_not_there_says_what_to_use_instead() -> None:
    run("""
import json
from tests.data import torch_names
import engine.torch, torch
for name in json.loads(torch_names.RESULT.read_text())["missing"]:
    parent, _, child = name.rpartition(".")
    try:
        exec(f"from {parent} import {child}")
    except ImportError as error:
        head, _, advice = str(error).partition(": ")
        lacked = head.rpartition(" ")[2]
        assert lacked == torch_names.first_missing(name) or lacked == name, (name, head)
        assert advice, name
    else:
        raise AssertionError(f"{name} is there: python tests/data/torch_names.py")
""")


def test_names_are_found_in_imports_and_attributes() -> None:
    source = """
import numpy as np, torch.nn as nn, torch.utils.data
from torch import optim as o
from .torch import nothing
nn.functional.relu(torch.zeros(2).sum(), np.torch.no)
class A(nn.Module):
    step = o.SGD
"""
    assert names_in(source) == {
        *("torch.nn", "torch.utils.data", "torch.optim", "torch.nn.functional", "torch.nn.functional.relu"),
        *("torch.zeros", "torch.nn.Module", "torch.optim.SGD"),
    }


def test_small_things_that_public_files_use() -> None:
    run("""
import engine.torch, torch
net = torch.nn.Linear(2, 1)
x = torch.ones(3, 2)
assert torch.equal(torch.nn.parallel.data_parallel(net, x, None), net(x))
torch.testing.assert_allclose(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]).double())
""")


def test_nothing_is_answered_without_it() -> None:
    run("""
import sys, engine, ddp
assert not any(name.split(".")[0] == "torch" for name in sys.modules)
assert not any(type(each).__module__ == "engine.torch" for each in sys.meta_path)
""")


def test_an_installed_pytorch_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '1.0'\n")
    assert run("import torch; print(torch.__version__)", tmp_path) == "1.0\n"
    assert run("import engine.torch, torch; print(torch.__version__)", tmp_path).startswith("2.13.0")
    late = "try:\n    import engine.torch\nexcept ImportError as error:\n    print(error)"
    assert run(f"import torch\n{late}", tmp_path).startswith("PyTorch is imported already: import engine.torch before")


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt", "residual"])
def test_an_unchanged_script_trains(name: str) -> None:
    """The very losses that the script has with its import lines changed."""
    (path,) = (each for each in SCRIPTS if each.stem == name)
    code = "from pathlib import Path; from tests.data import compat_scripts as scripts\n"
    show = f"print(scripts.run(Path({str(path)!r}), "
    assert run(f"import engine.torch\n{code}{show}str))") == run(f"{code}{show}scripts.converted))")


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "expected"), [(SCRIPT, ["0:1.0", "1:1.0"]), (WORKERS, ["12.0", "12.0"])], ids=["ddp", "workers"]
)
def test_under_ddprun(code: str, expected: list[str], tmp_path: Path) -> None:
    """Workers of a DataLoader, which a fork server starts there, import the script, and so torch, too."""
    script = tmp_path / "train.py"
    script.write_text(code)
    command = [sys.executable, "-m", "launch", "--torch", "-n", "2", str(script)]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split()) == expected


@pytest.mark.full
def test_einops() -> None:
    run("""
import engine.torch, torch
from einops import rearrange, reduce, repeat
from einops.layers.torch import Rearrange
x = torch.randn(2, 3, 4, 6, requires_grad=True)
split = rearrange(x, "b c (h s) w -> b (c s) h w", s=2)
assert torch.equal(split, x.reshape(2, 3, 2, 2, 6).permute(0, 1, 3, 2, 4).reshape(2, 6, 2, 6))
reduce(x, "b c h w -> b c", "mean").sum().backward()
assert torch.allclose(x.grad, torch.full_like(x, 1 / 24))
assert repeat(x, "b c h w -> r b c h w", r=2).shape == (2, 2, 3, 4, 6)
assert torch.nn.Sequential(Rearrange("b c h w -> b (c h w)"), torch.nn.Linear(72, 3))(x).shape == (2, 3)
""")
