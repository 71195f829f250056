"""The base class: groups, state dicts, hooks, closures, errors."""

import copy
import importlib
import math
import pickle
import pkgutil
from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.nn import Linear, Parameter
from tests.data import optim_cases


def ones(*shape: int) -> Parameter:
    return Parameter(engine.ones(*shape))


def stepped(optimizer: optim.Optimizer, times: int = 1) -> optim.Optimizer:
    for _ in range(times):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = param.detach() * 0.5 + 1
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("case", optim_cases.OPTIMIZERS, ids=optim_cases.optimizer_name)
def test_state_dict_round_trip_continues_bit_for_bit(case: Any) -> None:
    params = [ones(3, 2), ones(4)]
    optimizer = stepped(getattr(optim, case[0])(params, **case[1]), 3)
    saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
    others = [Parameter(each.detach().clone()) for each in params]
    loaded = getattr(optim, case[0])(others, lr=123.0)
    loaded.load_state_dict(saved)
    stepped(optimizer, 2)
    stepped(loaded, 2)
    for mine, other in zip(params, others, strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())


def test_state_dict_has_pytorchs_form() -> None:
    first, second, third = ones(2), ones(3), ones(4)
    groups: list[dict[str, Any]] = [{"params": [first, second]}, {"params": [third], "lr": 0.5}]
    optimizer = stepped(optim.Adam(groups, lr=0.1))
    state = optimizer.state_dict()
    assert state.keys() == {"state", "param_groups"}
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2]]
    assert [group["lr"] for group in state["param_groups"]] == [0.1, 0.5]
    assert state["state"].keys() == {0, 1, 2}
    step = state["state"][0]["step"]
    assert step.dtype is engine.float32
    assert step.shape == ()
    assert float(step) == 1.0


def test_step_counts_in_double_precision_if_that_is_the_default() -> None:
    engine.set_default_dtype(engine.float64)
    try:
        param = Parameter(engine.ones(2))
        optimizer = stepped(optim.Adam([param]))
        assert optimizer.state[param]["step"].dtype is engine.float64
    finally:
        engine.set_default_dtype(engine.float32)


def test_loading_casts_and_lays_out_as_the_parameter() -> None:
    source = stepped(optim.Adam([Parameter(engine.ones(2, 3, 4, 5, dtype=engine.float64))]))
    param = Parameter(engine.ones(2, 3, 4, 5).contiguous(memory_format=engine.channels_last))
    optimizer = optim.Adam([param])
    optimizer.load_state_dict(source.state_dict())
    moment = optimizer.state[param]["exp_avg"]
    assert moment.dtype is engine.float32
    assert moment.stride() == param.stride()
    assert float(optimizer.state[param]["step"]) == 1.0


def test_loading_is_a_copy() -> None:
    source, target = optim.SGD([ones(2)], momentum=0.9), optim.SGD([ones(2)], momentum=0.9)
    stepped(source)
    saved = source.state_dict()
    target.load_state_dict(saved)
    before = saved["state"][0]["momentum_buffer"].clone()
    stepped(target, 2)
    np.testing.assert_array_equal(saved["state"][0]["momentum_buffer"].numpy(), before.numpy())


def test_loading_something_that_does_not_fit_changes_nothing() -> None:
    optimizer = stepped(optim.Adam([ones(2), ones(3)], lr=0.1))
    moment = optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"]
    fewer = stepped(optim.Adam([ones(2)], lr=0.7)).state_dict()
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        optimizer.load_state_dict(fewer)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"] is moment


def test_adamw_decays_decoupled_whatever_it_loads() -> None:
    optimizer = optim.AdamW([ones(2)])
    optimizer.load_state_dict(optim.Adam([ones(2)]).state_dict())
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True


def test_deep_copies_and_pickles_are_independent() -> None:
    optimizer = stepped(optim.SGD([ones(2)], lr=0.1, momentum=0.9))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        param = other.param_groups[0]["params"][0]
        before = optimizer.param_groups[0]["params"][0].detach().clone()
        assert "momentum_buffer" in other.state[param]
        stepped(other)
        np.testing.assert_array_equal(optimizer.param_groups[0]["params"][0].detach().numpy(), before.numpy())


def test_parameters_without_gradient_are_left_alone() -> None:
    used, unused = ones(2), ones(2)
    optimizer = optim.AdamW([used, unused], lr=0.1, weight_decay=0.5)
    used.grad = engine.zeros(2)
    optimizer.step()
    assert float(used[0]) == pytest.approx(0.95)  # a gradient of zero is a real step: decay happens
    assert float(unused[0]) == 1.0
    assert unused not in optimizer.state


def test_plain_sgd_keeps_no_state() -> None:
    optimizer = stepped(optim.SGD([ones(2)], lr=0.1))
    assert optimizer.state_dict()["state"] == {}


def test_options_changed_between_steps_take_effect() -> None:
    param = ones(2)
    optimizer = stepped(optim.SGD([param], lr=1.0))
    optimizer.param_groups[0].update(lr=0.0, momentum=0.9)
    before = param.detach().clone()
    stepped(optimizer)
    np.testing.assert_array_equal(param.detach().numpy(), before.numpy())
    assert "momentum_buffer" in optimizer.state[param]


def test_learning_rate_may_be_a_tensor() -> None:
    rate = engine.tensor(0.5)
    param = ones(2)
    optimizer = optim.SGD([param], lr=rate)
    param.grad = engine.ones(2)
    optimizer.step()
    assert float(param[0]) == 0.5
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_zero_grad() -> None:
    param = ones(2)
    optimizer = optim.SGD([param])
    param.grad = kept = engine.ones(2)
    optimizer.zero_grad(set_to_none=False)
    assert param.grad is kept
    assert float(kept.sum()) == 0.0
    optimizer.zero_grad()
    assert param.grad is None


def test_closure_is_called_with_grad_and_its_loss_returned() -> None:
    param = ones(2)
    optimizer = optim.SGD([param], lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    with engine.no_grad():
        loss = optimizer.step(closure)
    assert float(loss) == 2.0
    np.testing.assert_allclose(param.detach().numpy(), 0.8)


def test_hooks_run_in_pytorchs_order_and_can_be_removed() -> None:
    calls: list[str] = []
    optimizer = optim.SGD([ones(2)])
    handles = [
        optim.register_optimizer_step_pre_hook(lambda *_: calls.append("global pre")),
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre")),
        optimizer.register_step_post_hook(lambda *_: calls.append("post")),
        optim.register_optimizer_step_post_hook(lambda *_: calls.append("global post")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert calls == ["global pre", "pre", "post", "global post"]


def test_a_pre_hook_may_replace_the_arguments() -> None:
    optimizer = optim.SGD([ones(2)])
    optimizer.register_step_pre_hook(lambda self, args, kwargs: ((), {"closure": lambda: 42}))
    assert optimizer.step() == 42
    optimizer.register_step_pre_hook(lambda self, args, kwargs: "nonsense")
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        optimizer.step()


def test_state_dict_hooks() -> None:
    optimizer = optim.SGD([ones(2)], lr=0.1)
    calls: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda self: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda self, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda self, state: calls.append(f"extra {state['extra']}"))
    optimizer.register_load_state_dict_post_hook(lambda self: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before saving", "extra 1", "loaded"]


def test_own_optimizers_may_define_step_or_the_two_hooks() -> None:
    class Signs(optim.Optimizer):
        """p -= lr sign(g), PyTorch style."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @engine.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for param in group["params"]:
                    param.add_(param.grad.sign(), alpha=-group["lr"])

    class Averaged(optim.Optimizer):
        """p -= lr · mean of all gradients so far."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def start(self, group: Any) -> dict[str, float]:
            return {"total": 0.0}

        def update(self, group: Any, step: int, p: Any, g: Any, s: Any) -> None:
            s["total"] += g
            p -= group["lr"] * s["total"] / step

    for kind, expected in ((Signs, 0.8), (Averaged, 0.4)):
        calls: list[int] = []
        param = ones(2)
        optimizer = kind([param], 0.1)
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        for _ in range(2):
            param.grad = engine.full((2,), 3.0)
            optimizer.step()
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-6)
        assert len(calls) == 2


def test_named_parameters() -> None:
    model = Linear(2, 3)
    optimizer = optim.SGD(model.named_parameters())
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="with/without names"):
        optimizer.add_param_group({"params": [ones(2)]})
    with pytest.raises(ValueError, match="Some param names are missing"):
        optim.SGD([("a", ones(2)), ones(2)])


def test_bad_parameters() -> None:
    shared = ones(2)
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        optim.SGD(shared)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty parameter list"):
        optim.SGD([])
    with pytest.raises(ValueError, match="non-leaf"):
        optim.SGD([shared * 2])
    with pytest.raises(TypeError, match="one of the params is str"):
        optim.SGD(["weight"])
    with pytest.raises(TypeError, match="ordered collections"):
        optim.SGD([{"params": {shared}}])
    with pytest.raises(TypeError, match="must be a dict"):
        optim.SGD([shared]).add_param_group([shared])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optim.SGD([{"params": [shared]}, {"params": [shared]}])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optim.SGD([shared, shared])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("SGD", {"lr": -1.0}, "Invalid learning rate"),
        ("SGD", {"momentum": -1.0}, "Invalid momentum value"),
        ("SGD", {"weight_decay": -1.0}, "Invalid weight_decay value"),
        ("SGD", {"nesterov": True}, "Nesterov momentum requires"),
        ("Adam", {"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0"),
        ("Adam", {"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1"),
        ("Adam", {"eps": -1.0}, "Invalid epsilon value"),
        ("AdamW", {"lr": float("nan")}, "Invalid learning rate"),
        ("RMSprop", {"alpha": -0.1}, "Invalid alpha value"),
        ("Adagrad", {"lr_decay": -0.1}, "Invalid lr_decay value"),
        ("Adadelta", {"rho": 1.1}, "Invalid rho value"),
        ("NAdam", {"momentum_decay": -0.1}, "Invalid momentum_decay value"),
        ("Rprop", {"etas": (1.5, 1.2)}, "Invalid eta values"),
        ("LBFGS", {"lr": -1.0}, "Invalid learning rate"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(optim, name)([ones(2)], **options)


def test_paths_that_do_not_exist_here() -> None:
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        optim.Adam([ones(2)], fused=True, foreach=True)
    with pytest.raises(RuntimeError, match="does not support `differentiable`"):
        optim.Adam([ones(2)], fused=True, differentiable=True)
    on_cpu = ones(2)
    on_cpu.grad = engine.ones(2)
    with pytest.raises(RuntimeError, match="capturable=True is for parameters on CUDA, got one on cpu"):
        optim.Adam([on_cpu], capturable=True).step()
    with pytest.raises(NotImplementedError, match="differentiable"):
        optim.SGD([ones(2)], differentiable=True)
    optim.AdamW([ones(2)], fused=True)
    optim.AdamW([ones(2)], foreach=True)


def test_repr_lists_the_groups() -> None:
    text = repr(optim.SGD([ones(2)], lr=0.25))
    assert text.startswith("SGD (\nParameter Group 0\n    dampening: 0\n")
    assert "    lr: 0.25\n" in text
    assert text.endswith("\n)")


def test_schedulers_refuse_what_is_no_optimizer() -> None:
    with pytest.raises(TypeError, match="is not an Optimizer"):
        optim.lr_scheduler.StepLR([ones(2)], 3)  # type: ignore[arg-type]


def test_scheduler_before_optimizer_warns() -> None:
    scheduler = optim.lr_scheduler.StepLR(optim.SGD([ones(2)]), 3)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()


def test_scheduler_errors() -> None:
    optimizer = optim.SGD([ones(2)], momentum=0.9)
    schedulers = optim.lr_scheduler
    with pytest.raises(KeyError, match="initial_lr"):
        schedulers.StepLR(optimizer, 3, last_epoch=4)
    with pytest.raises(ValueError, match="Expected 1 lr_lambdas, but got 2"):
        schedulers.LambdaLR(optimizer, [float, float])
    with pytest.raises(ValueError, match="milestone"):
        schedulers.SequentialLR(optimizer, [schedulers.StepLR(optimizer, 3)], [1])
    with pytest.raises(ValueError, match="same optimizer"):
        schedulers.ChainedScheduler([schedulers.StepLR(optimizer, 3), schedulers.StepLR(optim.SGD([ones(2)]), 3)])
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        schedulers.ChainedScheduler([schedulers.ReduceLROnPlateau(optimizer)])
    with pytest.raises(ValueError, match="total_steps OR"):
        schedulers.OneCycleLR(optimizer, 0.1)
    with pytest.raises(ValueError, match="support momentum"):
        schedulers.CyclicLR(optim.Adagrad([ones(2)]), 0.1, 0.2)
    with pytest.raises(ValueError, match="Factor"):
        schedulers.ReduceLROnPlateau(optimizer, factor=1.0)


def test_lbfgs_keeps_the_state_of_pytorchs() -> None:
    """Names and kinds, as a checkpoint holds them: products are Tensors, places of the history not in use are None."""
    parameter = engine.tensor([1.0, -2.0], requires_grad=True)
    optimizer = optim.LBFGS([parameter], lr=0.1, max_iter=4, history_size=5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (parameter**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    kept = optimizer.state_dict()["state"][0]
    names = "func_evals n_iter d t old_dirs old_stps ro H_diag al prev_flat_grad prev_loss"
    assert set(kept) == set(names.split())
    assert [isinstance(each, engine.Tensor) for each in kept["al"]] == [True, True, True, False, False]
    assert kept["al"][3:] == [None, None]
    assert all(isinstance(each, engine.Tensor) and each.dim() == 0 for each in [*kept["ro"], kept["H_diag"]])
    again = optim.LBFGS([parameter], lr=0.1, max_iter=4, history_size=5)
    again.load_state_dict(optimizer.state_dict())
    again.step(closure)
    assert again.state_dict()["state"][0]["n_iter"] == 8


@pytest.mark.parametrize(("mode", "worst"), [("min", math.inf), ("max", -math.inf)])
def test_plateau_keeps_the_worst_value_of_its_mode(mode: str, worst: float) -> None:
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([ones(2)]), mode=mode)
    assert scheduler.state_dict()["mode_worse"] == worst
    assert scheduler.best == worst


def test_adafactor_refuses_complex_parameters_before_they_have_a_gradient() -> None:
    optimizer = optim.Adafactor([engine.ones(2, 3, dtype=engine.complex64)])
    with pytest.raises(RuntimeError, match="Adafactor does not support complex parameters"):
        optimizer.step()


def test_lbfgs_minimises_over_complex_parameters_as_over_their_parts() -> None:
    start = engine.tensor([[1.0, -2.0], [0.5, 3.0]])
    target = engine.tensor([[0.25, 1.0], [-1.0, 2.0]])
    runs = []
    for read in (engine.view_as_complex, lambda pairs: pairs):
        parameter = read(start.clone()).detach().clone().requires_grad_()
        optimizer = engine.optim.LBFGS([parameter], lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

        def closure(parameter: Any = parameter, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            parts = engine.view_as_real(parameter) if parameter.is_complex() else parameter
            loss = ((parts - target) ** 2 * engine.tensor([1.0, 3.0])).sum()
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure)) for _ in range(3)]
        found = parameter.detach()
        runs.append((losses, (engine.view_as_real(found) if found.is_complex() else found).tolist()))
    assert runs[0] == runs[1]
    assert runs[0][0][-1] < runs[0][0][0] / 4


@pytest.mark.parametrize("betas", [(0.9, "tensor"), ("tensor", 0.9)])
def test_betas_are_both_numbers_or_both_tensors(betas: Any) -> None:
    given = tuple(engine.tensor(0.9) if beta == "tensor" else beta for beta in betas)
    with pytest.raises(ValueError, match="both floats or both Tensors"):
        engine.optim.Adam([engine.zeros(2, requires_grad=True)], betas=given)


def test_every_optimizer_has_samples() -> None:
    """An optimizer without a case in tests/data/optim_cases.py, exported or not, is compared with nothing."""
    for module in pkgutil.iter_modules(optim.__path__, "engine.optim."):
        importlib.import_module(module.name)
    found, todo = set(), [optim.Optimizer]
    while todo:
        subclasses = [each for each in todo.pop().__subclasses__() if each.__module__.startswith("engine.")]
        found |= {each.__name__ for each in subclasses}
        todo += subclasses
    refused = {"SparseAdam"}  # it says why
    cases = optim_cases.OPTIMIZERS + optim_cases.BEYOND_PYTORCH
    assert found - refused == {name for name, _ in cases} | {"LBFGS"}, "tests/data/optim_cases.py"
    assert optim_cases.LBFGS
