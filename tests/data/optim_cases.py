"""Cases that run alike on `engine.optim` and `torch.optim`: every optimizer and every scheduler. Used by
`optim_reference.py` (PyTorch, to write `optim_reference.json`) and by tests/engine/optim.
"""

import importlib
import math
from typing import Any

import numpy as np

STEPS = 8
SHAPES = ((3, 4), (5,), (), (2, 0), (2, 3, 2))

# (optimizer, options)
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.3, 0.8), "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"maximize": True, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"amsgrad": True, "weight_decay": 0.3, "eps": 1e-3}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"maximize": True, "alpha": 0.8}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.7, "weight_decay": 0.1, "lr": 0.5, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("NAdam", {"weight_decay": 0.1, "maximize": True, "momentum_decay": 0.1}),
    ("RAdam", {}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.5, 0.7)}),
    ("RAdam", {"weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.4, 1.3), "step_sizes": (1e-3, 0.05), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 2, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-6, 0.01), "d": 1.5, "weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.5, "maximize": True}),
]

# Those that PyTorch has not; tests/engine/optim/test_layerwise.py states them in NumPy.
BEYOND_PYTORCH: list[tuple[str, dict[str, Any]]] = [
    ("LARS", {"lr": 2.0, "trust_coefficient": 0.02, "weight_decay": 0.1}),
    ("LARS", {"lr": 0.1, "momentum": 0.0, "trust_coefficient": 0}),
    ("LAMB", {}),
    ("LAMB", {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0}),
]


def optimizer_name(case: tuple[str, dict[str, Any]]) -> str:
    """`Adam(lr=0.01)`, for test ids and the reference."""
    return f"{case[0]}({', '.join(f'{key}={value}' for key, value in case[1].items())})"


def run_optimizer(
    case: tuple[str, dict[str, Any]], package: Any, parameter: Any, dtype: str = "float64"
) -> dict[str, Any]:
    """Parameters after `STEPS` steps and the state of the first. The second parameter has no gradient in the third
    step.
    """
    rng = np.random.default_rng(0)
    shapes = [shape for shape in SHAPES if case[0] != "Adafactor" or 0 not in shape]  # it divides by their size
    parameters = [
        parameter(package.from_numpy(rng.standard_normal(shape).astype(dtype).reshape(shape))) for shape in shapes
    ]
    optimizer = getattr(package.optim, case[0])(parameters, **case[1])
    for step in range(STEPS):
        for number, each in enumerate(parameters):
            gradient = rng.standard_normal(shapes[number]).astype(dtype).reshape(shapes[number])
            each.grad = None if (step, number) == (2, 1) else package.from_numpy(gradient)
        optimizer.step()
    state = optimizer.state_dict()["state"]
    return {
        "parameters": [numbers(each) for each in parameters],
        "state": {name: numbers(value) for name, value in state[0].items() if value is not None} if 0 in state else {},
    }


def numbers(tensor: Any) -> list[float]:
    """The elements in row-major order, with twelve digits."""
    return [float(f"{value:.12g}") for value in np.asarray(tensor.detach().numpy()).reshape(-1).tolist()]


def rosenbrock(package: Any, point: Any) -> Any:
    """A curved valley with its minimum 0 at (1, 1, 1)."""
    return (100 * (point[1:] - point[:-1] ** 2) ** 2 + (1 - point[:-1]) ** 2).sum()


LBFGS: list[dict[str, Any]] = [
    {"lr": 0.01, "max_iter": 5},
    {"lr": 1.0, "max_iter": 10, "line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 4, "history_size": 2, "line_search_fn": "strong_wolfe", "max_eval": 20},
]


def run_lbfgs(options: dict[str, Any], package: Any, parameter: Any) -> dict[str, Any]:
    """The losses and points of six calls on the Rosenbrock function in three dimensions."""
    point = parameter(package.from_numpy(np.array([-1.2, 1.0, 0.5])))
    optimizer = package.optim.LBFGS([point], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = rosenbrock(package, point)
        loss.backward()
        return loss

    trace = [[float(optimizer.step(closure)), *numbers(point)] for _ in range(6)]
    return {"trace": trace, "func_evals": optimizer.state_dict()["state"][0]["func_evals"]}


class Halving:
    """A callable object whose attributes belong to the state of a LambdaLR."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.5**epoch


def swa_utils(lr_scheduler: Any) -> Any:
    """The module beside `lr_scheduler` of the same package."""
    return importlib.import_module(lr_scheduler.__name__.replace("lr_scheduler", "swa_utils"))


# (name, how to build it from the package lr_scheduler and the optimizer, whether step wants a metric)
SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, [lambda epoch: 0.95**epoch, lambda epoch: 1 / (epoch + 1)]),
    "LambdaLR object": lambda s, o: s.LambdaLR(o, Halving()),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda epoch: 0.9 + 0.01 * (epoch % 7)),
    "StepLR": lambda s, o: s.StepLR(o, 7, 0.3),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [3, 9, 9, 30], 0.4),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.25, 6),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 0.9, 11),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 30, 2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 12, 0.001),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 2, 0.002),
    "CosineAnnealingWarmRestarts same": lambda s, o: s.CosineAnnealingWarmRestarts(o, 8),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 5, 9),
    "CyclicLR triangular2": lambda s, o: s.CyclicLR(o, [0.01, 0.02], 0.2, 6, mode="triangular2", cycle_momentum=False),
    "CyclicLR exp_range": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 6, mode="exp_range", gamma=0.97),
    "CyclicLR own": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 6, scale_fn=lambda x: 1 / (1 + x), scale_mode="iterations"),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [0.3, 0.2], total_steps=50),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(
        o, 0.3, epochs=5, steps_per_epoch=10, anneal_strategy="linear", three_phase=True
    ),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=3, min_lr=[0.001, 0.01]),
    "ReduceLROnPlateau max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", patience=1, threshold=0.1, threshold_mode="abs"
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=6), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.9)], [6, 30]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9), s.StepLR(o, 9)]
    ),
    "SWALR": lambda s, o: swa_utils(s).SWALR(o, [0.02, 0.5], 7),
    "SWALR linear": lambda s, o: swa_utils(s).SWALR(o, 0.02, 20, "linear"),
    "SWALR at once": lambda s, o: swa_utils(s).SWALR(o, 0.02, 0),
}
EPOCHS = 50


def run_scheduler(
    name: str, package: Any, parameter: Any, optimizer: str = "SGD", interrupt: int = -1
) -> list[list[float]]:
    """Learning rates and momentum of two groups over `EPOCHS` steps.

    After epoch `interrupt` everything is built anew and continues from the state dicts.
    """

    def build() -> tuple[Any, Any]:
        groups = [{"params": [parameter(package.zeros(2))]}, {"params": [parameter(package.zeros(2))], "lr": 0.03}]
        options = {"momentum": 0.5} if optimizer == "SGD" else {}
        made = getattr(package.optim, optimizer)(groups, lr=0.1, **options)
        return made, SCHEDULERS[name](package.optim.lr_scheduler, made)

    made, scheduler = build()
    trace = []
    for epoch in range(EPOCHS):
        row = []
        for group in made.param_groups:
            row += [group["lr"], group["momentum"] if "momentum" in group else group["betas"][0]]
        trace.append([float(f"{float(value):.12g}") for value in row])
        assert [group["lr"] for group in made.param_groups] == scheduler.get_last_lr()
        if epoch == interrupt:
            saved, rates = made.state_dict(), scheduler.state_dict()
            made, scheduler = build()
            made.load_state_dict(saved)
            scheduler.load_state_dict(rates)
        made.step()
        if name.startswith("ReduceLROnPlateau"):
            scheduler.step(math.sin(epoch) / (epoch // 12 + 1))
        else:
            scheduler.step()
    return trace
