"""Packages written for PyTorch, the real ones, under `import engine.torch`. What needs PyTorch to be installed by pip
(torchvision, torchmetrics: `pip install --no-deps`) is skipped where it is not there.
"""

from importlib.util import find_spec

import pytest

from tests.engine.test_torch import run

pytestmark = pytest.mark.full


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@needs("torchvision")
def test_torchvision() -> None:
    run("""
import engine.torch, torch, torchvision
import torchvision.transforms as T, torchvision.transforms.v2 as V2
from PIL import Image
model = torchvision.models.resnet18(num_classes=10)
model(torch.randn(2, 3, 32, 32)).square().sum().backward()
assert model.fc.weight.grad.shape == (10, 512) and model.conv1.weight.grad.abs().sum() > 0
red = Image.new("RGB", (40, 30), (255, 0, 0))
prepare = T.Compose([T.Resize(24), T.CenterCrop(20), T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)])
assert prepare(red).shape == (3, 20, 20) and prepare(red).mean((1, 2)).tolist() == [1.0, -1.0, -1.0]
x = torch.arange(192.0).reshape(3, 8, 8)
assert torch.equal(T.RandomHorizontalFlip(1.0)(x), x.flip(-1)) and V2.RandomHorizontalFlip is not None
assert torchvision.utils.make_grid(torch.ones(4, 3, 8, 8)).shape == (3, 12, 42)
try:
    torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except RuntimeError as error:
    assert "Couldn't load custom C++ ops" in str(error)
else:
    raise AssertionError
""")


@needs("torchmetrics")
def test_torchmetrics_functions() -> None:
    """The values are PyTorch's."""
    run("""
import engine.torch, torch
import torchmetrics.functional as M
p = torch.tensor([[0.1, 0.7, 0.2], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]])
t = torch.tensor([1, 0, 1, 2])
kind = dict(task="multiclass", num_classes=3)
assert M.accuracy(p, t, **kind).item() == 0.5
assert M.f1_score(p, t, average="macro", **kind).item() == 0.5
assert M.confusion_matrix(p, t, **kind).tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 0]]
assert abs(M.mean_squared_error(p[:, 0], p[:, 1]).item() - 0.2175) < 1e-6
assert M.auroc(p[:, 0], (t == 0).long(), task="binary").item() == 1.0
""")


def test_safetensors() -> None:
    """safetensors.numpy writes what `torch.load` reads here, and reads what `torch.save` wrote."""
    run("""
import engine.torch, torch, os, tempfile
from safetensors.numpy import load_file, save_file
layer = torch.nn.Linear(3, 2)
path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
save_file({name: value.detach().numpy() for name, value in layer.state_dict().items()}, path)
other = torch.nn.Linear(3, 2)
other.load_state_dict(torch.load(path))
assert torch.equal(other.weight, layer.weight) and torch.equal(other.bias, layer.bias)
torch.save(layer.state_dict(), path)
assert (load_file(path)["weight"] == layer.weight.detach().numpy()).all()
""")


def test_numpy_shares_memory_and_takes_part() -> None:
    run("""
import engine.torch, torch, numpy as np
a = np.arange(6.0).reshape(2, 3)
x = torch.from_numpy(a)
a[0, 0] = 7.0
assert x[0, 0] == 7.0 and x.numpy() is not None and np.shares_memory(x.numpy(), a)
assert isinstance(np.float64(3) - x, torch.Tensor) and torch.equal(np.sqrt(64) * x, 8 * x)
assert np.asarray(x.float()).dtype == np.float32 and float(np.mean(x.numpy())) == x.mean().item()
x = torch.ones(3, requires_grad=True)
(x * np.float32(2)).sum().backward()
assert x.grad.tolist() == [2.0] * 3
assert torch.as_tensor(a).data_ptr() == a.ctypes.data and torch.tensor(a).data_ptr() != a.ctypes.data
""")


def test_a_loop_with_what_training_scripts_bring_along() -> None:
    """A bare loop as of Fabric or Accelerate: autocast, clipping, a schedule, the profiler, selective checkpoints."""
    run("""
import engine.torch, torch
from functools import partial
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.autograd.profiler import record_function as older
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, TensorDataset
assert record_function is older and CheckpointPolicy.MUST_SAVE
torch.manual_seed(0)
x = torch.randn(32, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
first, second = nn.Sequential(nn.Linear(8, 16), nn.GELU()), nn.Linear(16, 1)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.02)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
keep = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
losses = []
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as profiler:
    for epoch in range(20):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with record_function("step"), torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                loss = nn.functional.mse_loss(
                    second(checkpoint(first, inputs, use_reentrant=False, context_fn=keep)), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(first.parameters(), 1.0)
            optimizer.step()
            profiler.step()
        scheduler.step()
        losses.append(loss.item())
assert losses[-1] < 0.2 * losses[0]
assert {event.key: event.count for event in profiler.key_averages()}["step"] == 2
layer = nn.Embedding(5, 2, sparse=True)
layer(torch.tensor([1])).sum().backward()
torch.optim.SparseAdam(layer.parameters()).step()
assert torch.futures.wait_all([]) == [] and not isinstance(x, torch.cuda.FloatTensor)
with torch.backends.cuda.sdp_kernel(enable_flash=False):
    pass
assert torch.types._dtype is torch.dtype and torch.sparse.mm is torch.spmm
""")
