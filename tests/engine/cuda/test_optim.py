"""Optimizers on a GPU: the same numbers as on the CPU, counted on the device, without waiting for it."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.nn import Parameter
from engine.nn.utils import clip_grad_norm_, clip_grad_value_
from tests import cuda_device
from tests.data import optim_cases

# big, odd and aligned, a matrix, a scalar, nothing, channels-last
SHAPES = ((9001,), (64, 3), (), (0, 4), (2, 3, 4, 5))


def parameters(where: Any, dtype: Any = engine.float32, seed: int = 0) -> list[Parameter]:
    rng = np.random.default_rng(seed)
    made = []
    for shape in SHAPES:
        tensor = engine.from_numpy(rng.standard_normal(shape).astype(np.float32).reshape(shape)).to(dtype)
        if tensor.ndim == 4:
            tensor = tensor.to(memory_format=engine.channels_last)
        made.append(Parameter(tensor.to(where)))
    return made


def set_gradients(params: list[Parameter], step: int, skip: int | None = None, scale: float = 1.0) -> None:
    rng = np.random.default_rng(100 + step)
    for number, param in enumerate(params):
        values = np.asarray(rng.standard_normal(tuple(param.shape)) * scale, np.float32)
        gradient = engine.from_numpy(values).to(param.dtype)
        if number == 4:
            gradient = gradient.to(memory_format=engine.channels_last)
        param.grad = None if number == skip else gradient.to(param.device)


def train(
    name: str, options: dict[str, Any], where: Any, dtype: Any = engine.float32, steps: int = 4, scale: float = 1.0
) -> tuple[list[Parameter], Any]:
    params = parameters(where, dtype)
    optimizer = getattr(optim, name)(params, **options)
    for step in range(steps):
        set_gradients(params, step, skip=1 if step == 2 else None, scale=scale)
        optimizer.step()
    return params, optimizer


def assert_close(ours: list[Any], theirs: list[Any], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.stride() == other.stride()
        mine, other = mine.detach().cpu().double().numpy(), other.detach().cpu().double().numpy()
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


ON_DEVICE = [case for case in optim_cases.OPTIMIZERS if case[0] != "Adafactor"]
every_case = pytest.mark.parametrize("case", ON_DEVICE, ids=optim_cases.optimizer_name)


@every_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(engine.float32, 2e-6), (engine.float64, 1e-12)], ids=str)
def test_the_numbers_of_the_cpu(cuda: engine.device, case: Any, dtype: Any, tolerance: float) -> None:
    ours, optimizer = train(*case, cuda, dtype)
    theirs, reference = train(*case, "cpu", dtype)
    assert_close(ours, theirs, tolerance)
    state, expected = optimizer.state_dict()["state"], reference.state_dict()["state"]
    assert state.keys() == expected.keys()
    for number, own in state.items():
        assert list(own) == list(expected[number])
        for key, value in own.items():
            assert value.is_cuda
            np.testing.assert_allclose(
                value.cpu().double().numpy(), expected[number][key].double().numpy(), rtol=2e-6, atol=1e-6
            )


def test_every_optimizer_has_a_case() -> None:
    names = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)}
    assert names - {"Optimizer", "LBFGS", "SparseAdam", "Adafactor", "LARS", "LAMB"} == {name for name, _ in ON_DEVICE}
    assert all(getattr(optim, name).device_algorithm for name, _ in ON_DEVICE)


@pytest.mark.parametrize(
    ("name", "options"), [("Adafactor", {"lr": 0.1}), ("LARS", {}), ("LAMB", {}), ("LBFGS", {"lr": 0.1, "max_iter": 3})]
)
def test_those_of_tensors(cuda: engine.device, name: str, options: dict[str, Any]) -> None:
    found = []
    for where in ("cpu", cuda):
        weight = Parameter(engine.arange(12, dtype=engine.float32).reshape(3, 4).to(where) / 10)
        optimizer = getattr(optim, name)([weight], **options)

        def closure(weight: Parameter = weight, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (weight * weight).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        found.append([weight])
    assert_close(found[1], found[0], 1e-5)


@pytest.mark.parametrize(
    ("name", "options"), [("Adam", {"amsgrad": True, "eps": 1e-3}), ("SGD", {"lr": 0.1, "momentum": 0.9})]
)
@pytest.mark.parametrize("dtype", [engine.bfloat16, engine.float16], ids=str)
def test_half_precision(cuda: engine.device, name: str, options: dict[str, Any], dtype: Any) -> None:
    """State in the parameters' dtype; a step is computed in float32 and rounded once."""
    ours, optimizer = train(name, options, cuda, dtype, scale=0.1)
    assert optimizer.state[ours[0]][next(n for n in optimizer.state[ours[0]] if n != "step")].dtype is dtype
    theirs, _ = train(name, options, "cpu", dtype, scale=0.1)
    assert_close(ours, theirs, 0.05)


@pytest.mark.parametrize("dtype", [engine.bfloat16, engine.float16], ids=str)
def test_master_weights_follow_float32(cuda: engine.device, dtype: Any) -> None:
    rounded = [param.detach().float() for param in parameters("cpu", dtype)]
    exact = [Parameter(param) for param in rounded]
    ours = parameters(cuda, dtype)
    reference = optim.AdamW(exact, lr=1e-3)
    optimizer = optim.AdamW([{"params": ours, "master_weights": True}], lr=1e-3)
    for step in range(6):
        set_gradients(ours, step)
        for mine, theirs in zip(ours, exact, strict=True):
            theirs.grad = mine.grad.cpu().float()
        optimizer.step()
        reference.step()
        if step == 2:  # and all of it is saved
            saved = optimizer.state_dict()
            optimizer = optim.AdamW([{"params": ours, "master_weights": True}])
            optimizer.load_state_dict(saved)
    for mine, theirs in zip(ours, exact, strict=True):
        own = optimizer.state[mine]
        assert {key: value.dtype for key, value in own.items()} == dict.fromkeys(own, engine.float32)
        np.testing.assert_allclose(own["master_weight"].cpu().numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-7)
        assert (mine.detach() == own["master_weight"].to(dtype)).all()


def test_complex_parameters(cuda: engine.device) -> None:
    found = []
    for where in ("cpu", cuda):
        values = np.array([1 + 2j, -3j, 0.5, 2 - 1j, 7], np.complex64)
        weight = Parameter(engine.from_numpy(values.copy()).to(where))
        optimizer = optim.Adam([weight], lr=0.1)
        for step in range(3):
            weight.grad = engine.from_numpy(values * (1j + step)).to(where)
            optimizer.step()
        found.append((weight.detach().cpu().numpy(), optimizer.state[weight]["exp_avg"].cpu().numpy()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "SGD", "NAdam", "ASGD"])
def test_no_step_is_taken_where_an_overflow_was_found(cuda: engine.device, name: str) -> None:
    options = {"momentum": 0.9, "dampening": 0.3} if name == "SGD" else {}
    ours, theirs = parameters(cuda), parameters(cuda)
    optimizer, reference = getattr(optim, name)(ours, **options), getattr(optim, name)(theirs, **options)
    scale, found = engine.full((1,), 8.0, device=cuda), engine.zeros(1, device=cuda)
    optimizer.grad_scale, optimizer.found_inf = scale, found
    for step in range(3):
        found.fill_(1.0)
        set_gradients(ours, 50, scale=np.inf)
        optimizer.step()
        found.zero_()
        set_gradients(ours, step, scale=8.0)
        optimizer.step()
        set_gradients(theirs, step)
        reference.step()
    assert_close(ours, theirs, 0)
    if name != "SGD":
        assert [float(optimizer.state[param]["step"]) for param in ours] == [3.0] * len(ours)


def test_a_learning_rate_on_the_device(cuda: engine.device) -> None:
    found = []
    for where in ("cpu", cuda):
        params = parameters(where)
        lr = engine.tensor(0.1, device=where)
        optimizer = optim.AdamW(params, lr=lr)
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
            lr.mul_(0.5)
        found.append(params)
    assert_close(found[1], found[0], 2e-6)


def test_state_moves_between_devices(cuda: engine.device) -> None:
    """Three steps here, three there: the same numbers as six in one place."""
    there, _ = train("Adam", {}, "cpu", steps=6)
    half, optimizer = train("Adam", {}, "cpu", steps=3)
    ours = [Parameter(param.detach().to(cuda)) for param in half]
    resumed = optim.Adam(ours)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        set_gradients(ours, step)
        resumed.step()
    assert_close(ours, there, 2e-6)
    back = optim.Adam([Parameter(param.detach().cpu()) for param in ours])
    back.load_state_dict(resumed.state_dict())
    assert [float(back.state[param]["step"]) for param in back.param_groups[0]["params"]] == [6.0, 5.0, 6.0, 6.0, 6.0]


def test_a_gradient_that_breaks_the_contract(cuda: engine.device) -> None:
    found = []
    for where in ("cpu", cuda):
        params = parameters(where)
        optimizer = optim.SGD(params, lr=0.1)
        set_gradients(params, 0)
        params[4].grad = params[4].grad.contiguous()
        with pytest.warns(engine.LayoutWarning):
            optimizer.step()
        found.append(params)
    assert_close(found[1], found[0], 1e-6)


def test_parameters_with_gaps_and_other_formulas(cuda: engine.device) -> None:
    """What there is no kernel for is stepped by `update`."""

    class Plain(optim.Adam):
        def update(self, group: Any, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
            p -= g * (step * 0.5)

    found = []
    for where in ("cpu", cuda):
        wide = engine.arange(12, dtype=engine.float32).reshape(3, 4).to(where)
        gappy, plain = Parameter(wide[:, ::2]), Parameter(wide.clone())
        optimizers = optim.Adam([gappy], lr=0.5), Plain([plain])
        for _ in range(2):
            gappy.grad, plain.grad = gappy.detach() * 2, plain.detach() * 3
            for each in optimizers:
                each.step()
        found.append([gappy, plain])
    assert_close(found[1], found[0], 1e-6)
    refused = Plain([{"params": [found[1][1]], "master_weights": True}])
    found[1][1].grad = found[1][1].detach()
    with pytest.raises(RuntimeError, match="Plain: master_weights needs an optimizer with a CUDA kernel"):
        refused.step()


def test_more_parameters_than_a_table_holds(cuda: engine.device) -> None:
    params = [Parameter(engine.full((number % 3 + 1,), float(number), device=cuda)) for number in range(1000)]
    optimizer = optim.SGD(params, lr=0.5)
    for param in params:
        param.grad = param.detach().clone()
    optimizer.step()
    assert all((param.detach() == number / 2).all() for number, param in enumerate(params))


def test_on_a_gpu_that_is_not_the_one_in_use(cuda: engine.device) -> None:
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found = []
    for where in ("cpu", "cuda:1"):
        params = parameters(where)
        optimizers = optim.AdamW(params[:2]), optim.SGD(params[2:], lr=0.1, momentum=0.9)
        for step in range(2):
            set_gradients(params, step)
            clip_grad_norm_(params, 1.0)
            clip_grad_value_(params, 0.1)
            for each in optimizers:
                each.step()
        assert all(value.device == params[0].device for value in optimizers[0].state[params[0]].values())
        found.append(params)
    assert engine.cuda.current_device() == 0
    assert_close(found[1], found[0], 2e-6)


def test_a_step_waits_for_nothing(cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("counts synchronisations of the CPU driver")
    params = parameters(cuda)
    optimizer = optim.AdamW(params, amsgrad=True, capturable=True)
    for step in range(2):  # the first makes the tables
        set_gradients(params, step)
        optimizer.step()
    set_gradients(params, 2)
    with cuda_device.counters() as count:
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        optimizer.zero_grad()
    assert count.synchronizations == 0
    assert [count.names.count(name) for name in ("advance", "update")] == [1, 1]


def test_a_captured_step_counts_on(cuda: engine.device) -> None:
    ours, theirs = parameters(cuda), parameters(cuda)
    optimizer, reference = optim.Adam(ours, capturable=True), optim.Adam(theirs)
    stream = engine.cuda.Stream()
    stream.wait_stream(engine.cuda.current_stream())
    with engine.cuda.stream(stream):
        set_gradients(ours, 0)
        optimizer.step()
    engine.cuda.current_stream().wait_stream(stream)
    graph = engine.cuda.CUDAGraph()
    with engine.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        set_gradients(theirs, 0)
        reference.step()
    assert_close(ours, theirs, 0)
    assert float(optimizer.state[ours[0]]["step"]) == 4


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize(("dtype", "tolerance"), [(engine.float32, 1e-6), (engine.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clip_grad_norm(cuda: engine.device, norm_type: float, dtype: Any, tolerance: float, max_norm: float) -> None:
    found = []
    for where in ("cpu", cuda):
        params = parameters(where, dtype)
        if norm_type == float("inf"):
            params.pop(3)  # without elements there is no largest
        set_gradients(params, 0)
        total = clip_grad_norm_(params, max_norm, norm_type)
        assert total.dtype is dtype
        assert total.device == params[0].device
        found.append([total, *(param.grad for param in params)])
    assert_close(found[1], found[0], tolerance)


def test_clipping_waits_for_nothing(cuda: engine.device) -> None:
    params, theirs = parameters(cuda), parameters("cpu")
    set_gradients(params, 0)
    set_gradients(theirs, 0)
    with cuda_device.counters() as count:
        clip_grad_norm_(params, 1.0)
        clip_grad_value_(params, 0.01)
    assert count.synchronizations == 0
    clip_grad_norm_(theirs, 1.0)
    clip_grad_value_(theirs, 0.01)
    assert_close([param.grad for param in params], [param.grad for param in theirs], 1e-6)
    params[0].grad[5] = np.nan
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
