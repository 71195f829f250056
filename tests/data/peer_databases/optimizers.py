"""PyTorch's optim_db: ten steps with all sets of options and schedulers, then parameters, state and errors."""

from typing import Any

import compare
import torch
from outcome import outcome, refusals_differ, told
from report import Report
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
from translate import Missing, Translator, counterpart, tensor

STEPS = 10


def names() -> list[str]:
    return sorted(info.name for info in optim_db)


def check(name: str, samples: int, report: Report) -> None:
    """All sets of options, each also with every scheduler of the database where there are few."""
    info = next(info for info in optim_db if info.name == name)
    try:
        ours = counterpart(info.optim_cls)
        if ours is info.optim_cls:
            raise Missing(name)
    except Missing as error:
        report.failed(name, "present", "", str(error))
        return
    report.passed("present")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        if dtype.is_complex and not info.supports_complex:
            continue
        for place, case in enumerate(info.optim_inputs_func(device="cpu", dtype=dtype)):
            _run(info, ours, dtype, case, (), report)
            if place == 0 and dtype is torch.float32:
                for schedulers in info.scheduler_inputs:
                    _run(info, ours, dtype, case, schedulers, report)
    if info.optim_error_inputs_func is not None:
        for case in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
            _refused(info, ours, case, report)


def _run(info: Any, ours: Any, dtype: torch.dtype, case: Any, schedulers: Any, report: Report) -> None:
    kind = str(dtype).removeprefix("torch.")
    torch.manual_seed(0)
    shapes = [(3, 4), (5, 2)] if info.name == "Muon" else [(3, 4), (5,), (), (2, 3, 2, 2)]
    theirs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    if len(shapes) == 4 and info.name != "LBFGS":  # whose own view() refuses it
        theirs[3] = theirs[3].to(memory_format=torch.channels_last)
    theirs = [each.requires_grad_() for each in theirs]
    mine = [tensor(each) for each in theirs]
    targets = [torch.randn_like(each) for each in theirs]
    words = f"{case.kwargs}, {len(schedulers)} schedulers"
    wanted = outcome(_made_and_run, info, info.optim_cls, theirs, case.kwargs, schedulers, targets)
    if isinstance(wanted, Exception):
        return
    read = Translator()
    own_schedulers = [counterpart(each) for each in schedulers]
    got = outcome(_made_and_run, info, ours, mine, read(case.kwargs), own_schedulers, read(targets))
    if isinstance(got, Exception):
        report.failed(info.name, "value", kind, f"{told(got)}; {words}")
        return
    difference = compare.values(mine, theirs) or compare.dtypes(mine, theirs) or compare.strides(mine, theirs)
    if difference:
        report.failed(info.name, "value", kind, f"{difference}; {words}")
    else:
        report.passed("value")
    difference = _states_differ(got[0].state_dict(), wanted[0].state_dict())
    for own, other in zip(got[1], wanted[1], strict=True):
        a, b = ({key for key in each.state_dict() if key[0] != "_"} for each in (own, other))
        if a != b:
            difference = difference or f"{type(own).__name__}: {sorted(a)} where {sorted(b)}"
    if difference:
        report.failed(info.name, "state", kind, f"{difference}; {words}")
    else:
        report.passed("state")


def _made_and_run(info: Any, cls: Any, parameters: Any, options: Any, schedulers: Any, targets: Any) -> Any:
    optimizer = cls(parameters, **options)
    made = [scheduler(optimizer) for scheduler in schedulers]
    _steps(optimizer, made, parameters, targets, info.only_supports_sparse_grads)
    return optimizer, made


def _steps(optimizer: Any, schedulers: Any, parameters: Any, targets: Any, sparse: bool) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((each - target).abs().square().sum() for each, target in zip(parameters, targets, strict=True))
        loss.backward()
        if sparse:
            for each in parameters:
                each.grad = each.grad.to_sparse()
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
        for scheduler in schedulers:
            if "ReduceLROnPlateau" in type(scheduler).__name__:
                scheduler.step(float(loss.detach()))
            else:
                scheduler.step()


def _states_differ(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Keys, order and numbers of what a checkpoint holds."""
    if [list(group) for group in ours["param_groups"]] != [list(group) for group in theirs["param_groups"]]:
        return f"{[list(group) for group in ours['param_groups']]} where {[list(g) for g in theirs['param_groups']]}"
    if set(ours["state"]) != set(theirs["state"]):
        return f"state of {sorted(ours['state'])} where of {sorted(theirs['state'])}"
    for key, other in theirs["state"].items():
        mine = ours["state"][key]
        if set(mine) != set(other):
            return f"{sorted(mine)} where {sorted(other)}"
        for name, value in other.items():
            difference = compare.values(compare.flat(mine[name]), compare.flat(value))
            if difference:
                return f"state {name}: {difference}"
    return ""


def _refused(info: Any, ours: Any, case: Any, report: Report) -> None:
    given, translate = case.optimizer_error_input, Translator()

    def called(cls: Any, parameters: Any, options: Any) -> None:
        optimizer = cls(parameters, **options)
        if case.error_on is OptimizerErrorEnum.STEP_ERROR:
            optimizer.step()

    try:
        own = translate(given.params), translate(given.kwargs)
    except Missing:
        return  # sparse tensors
    theirs = outcome(called, info.optim_cls, given.params, given.kwargs)
    if isinstance(theirs, Exception):
        difference = refusals_differ(outcome(called, ours, *own), theirs)
        if difference:
            report.failed(info.name, "errors", "", f"{difference}; {given.kwargs}")
        else:
            report.passed("errors")
