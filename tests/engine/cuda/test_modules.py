"""Every layer and loss of engine.nn on the device beside the CPU: outputs, gradients of inputs and parameters, buffers
afterwards; and modules that move between devices.
"""

from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from tests.data import nn_cases
from tests.engine.cuda.comparison import all_of, assert_same, assert_values, flattened, weights

pytestmark = pytest.mark.usefixtures("full_precision")

GROUPS = 8


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides", "ignore:Support for mismatched")
@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_layers(group: int, kind: str, cuda: engine.device) -> None:
    chosen = nn_cases.CASES[group::GROUPS]
    all_of((case.name, lambda case=case: compare(case, getattr(engine, kind), cuda)) for case in chosen)


def compare(case: nn_cases.Case, kind: engine.dtype, cuda: engine.device) -> None:
    here, there = (case.build(nn).to(kind).train(not case.eval) for _ in range(2))
    for number, tensor in enumerate(here.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(engine.from_numpy(nn_cases.fill(tuple(tensor.shape), number)))
    there.load_state_dict(here.state_dict())
    there.to(cuda)
    expected, leaves = run(case, here, kind, engine.device("cpu"))
    with cuda:  # tensors that a layer makes for itself
        found, leaves_there = run(case, there, kind, cuda)
    tolerance = 1e-8 if kind is engine.float64 else 2e-4
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same(one, other, f"output {number}", tolerance)
    for number, (leaf, other) in enumerate(zip(leaves_there, leaves, strict=True)):
        assert_values(leaf.grad, other.grad, f"gradient {number}", tolerance)
        if leaf.grad is not None and leaf.numel():
            assert leaf.grad.stride() == other.grad.stride()
    for name, buffer in here.named_buffers():
        assert_same(there.get_buffer(name), buffer, name, tolerance)


def run(
    case: nn_cases.Case, module: nn.Module, kind: engine.dtype, device: engine.device
) -> tuple[list[engine.Tensor], list[engine.Tensor]]:
    """Outputs, and the inputs and parameters after backward of a fixed projection of them."""
    leaves: list[engine.Tensor] = []

    def prepared(value: Any, position: int) -> Any:
        if isinstance(value, tuple):
            return tuple(prepared(each, position) for each in value)
        if not isinstance(value, np.ndarray):
            return value
        tensor = engine.from_numpy(value.copy())
        tensor = (tensor.to(kind) if tensor.is_floating_point() else tensor).to(device)
        if tensor.is_floating_point() and position not in case.fixed and position >= 0:
            leaves.append(tensor.requires_grad_())
        return tensor

    inputs = [prepared(value, position) for position, value in enumerate(case.inputs)]
    outputs = flattened(module(*inputs, **{name: prepared(value, -1) for name, value in case.keywords.items()}))
    recorded = [output for output in outputs if output.requires_grad]
    if recorded:
        engine.autograd.backward(recorded, [each.to(device) for each in weights(recorded, 1)])
    return outputs, [*leaves, *module.parameters()]


def test_moving_keeps_parameter_objects_and_takes_gradients_along(cuda: engine.device) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(memory_format=engine.channels_last)
    model(engine.randn(2, 2, 5, 5)).sum().backward()
    before = dict(model.named_parameters())
    values = {name: each.detach().clone() for name, each in model.state_dict().items()}
    slopes = {name: each.grad.clone() for name, each in before.items() if each.grad is not None}
    assert model.cuda() is model
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert_same(parameter.detach(), values[name], name)
        assert parameter.grad is not None
        assert_same(parameter.grad, slopes[name], name)
    assert all(buffer.is_cuda for buffer in model.buffers())
    model.cpu()
    assert all(each.is_cpu for each in model.state_dict().values())
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), values[name].numpy())


def test_state_goes_between_devices(cuda: engine.device) -> None:
    there, here = nn.Linear(3, 2, device=cuda), nn.Linear(3, 2)
    here.load_state_dict(there.state_dict())
    np.testing.assert_array_equal(here.weight.detach().numpy(), there.weight.detach().cpu().numpy())
    with engine.no_grad():
        here.weight.fill_(2.0)
    there.load_state_dict(here.state_dict())
    assert there.weight.is_cuda
    assert there.weight.tolist() == here.weight.tolist()


def test_modules_made_on_the_device_are_ones_made_there(cuda: engine.device) -> None:
    for module in (
        nn.Linear(3, 2, device=cuda),
        nn.Conv2d(2, 3, 3, device=cuda),
        nn.BatchNorm2d(3, device=cuda),
        nn.Embedding(5, 3, device=cuda),
        nn.LSTM(3, 4, device=cuda),
    ):
        assert all(each.is_cuda for each in module.state_dict().values())
