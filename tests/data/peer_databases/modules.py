"""PyTorch's module_db: the same parameters in both modules, then results, gradients, strides, state_dict and repr."""

from collections.abc import Callable
from typing import Any

import compare
import torch
from outcome import outcome, refusals_differ, told
from report import Report
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from translate import Missing, Translator, counterpart, tensor

import engine


def names() -> list[str]:
    return sorted({info.name for info in module_db})


def check(name: str, samples: int, report: Report) -> None:
    """All samples there are: few a module."""
    for info in module_db:
        if info.name != name:
            continue
        try:
            ours = counterpart(info.module_cls)
            if ours is info.module_cls:
                raise Missing(info.name)
        except Missing as error:
            report.failed(name, "present", "", str(error))
            continue
        report.passed("present")
        for dtype in (torch.float32, torch.float64, torch.complex64):
            if dtype in info.supported_dtypes("cpu"):
                for training in (True, False) if info.train_and_eval_differ else (True,):
                    torch.manual_seed(0)
                    inputs = info.module_inputs_func(
                        info, device="cpu", dtype=dtype, requires_grad=True, training=training
                    )
                    for case in inputs:
                        for layout in (torch.contiguous_format, torch.channels_last):
                            Module(info, ours, dtype, training, layout, report).check(case)
                if info.module_error_inputs_func is not None:
                    cases = info.module_error_inputs_func(
                        info, device="cpu", dtype=dtype, requires_grad=True, training=True
                    )
                    for case in cases:
                        _refused(info, ours, dtype, case, report)


class Module:
    def __init__(self, info: Any, ours: Any, dtype: Any, training: bool, layout: Any, report: Report) -> None:
        self.info, self.ours, self.dtype, self.layout, self.report = info, ours, dtype, layout, report
        self.training = training

    def note(self, check: str, difference: str) -> bool:
        if difference:
            told = f"{difference}; {self.case.desc}, {'training' if self.training else 'eval'}, {self.layout}"
            self.report.failed(self.info.name, check, str(self.dtype).removeprefix("torch."), told)
        else:
            self.report.passed(check)
        return not difference

    def check(self, case: Any) -> None:
        self.case = case
        given = case.constructor_input
        theirs = self.info.module_cls(*given.args, **given.kwargs).to(self.dtype).train(self.training)
        call, keywords = list(case.forward_input.args), dict(case.forward_input.kwargs)
        if self.layout is torch.channels_last:
            if self.info.is_lazy or any(each.dim() == 5 for each in theirs.parameters()):
                return  # neither library converts these
            if not any(isinstance(each, torch.Tensor) and each.dim() == 4 for each in (*call, *keywords.values())):
                return
            theirs = theirs.to(memory_format=torch.channels_last)
            call = [_channels_last(each) for each in call]
            keywords = {key: _channels_last(each) for key, each in keywords.items()}
        translate = Translator()
        try:
            ours = self.ours(*translate(given.args), **translate(given.kwargs)).to(translate(self.dtype))
            ours.train(self.training)
            if self.layout is torch.channels_last:
                ours.to(memory_format=engine.channels_last)
            arguments, own_keywords = translate(call), translate(keywords)
        except Missing as error:
            self.note("value", f"needs {error}")
            return
        lazy = self.info.is_lazy
        state = {} if lazy else theirs.state_dict()
        self.note("state", self.state(ours, theirs, state, translate))
        torch.manual_seed(0)
        before = None if lazy else theirs(*_fresh(call), **keywords)
        torch.manual_seed(1)
        result = theirs(*_fresh(call), **keywords)
        random = before is not None and not _same(compare.flat(before), compare.flat(result))
        theirs.load_state_dict(state) if not lazy else None
        result = theirs(*call, **keywords)
        got = outcome(ours, *arguments, **own_keywords)
        if lazy and not isinstance(got, Exception):
            ours.load_state_dict(Translator()(theirs.state_dict()))
            got = outcome(ours, *arguments, **own_keywords)
        if isinstance(got, Exception):
            self.note("value", told(got))
            return
        got, result = compare.flat(got), compare.flat(result)
        if not self.note("value", compare.values(got, result, shapes_only=random)):
            return
        self.note("dtype", compare.dtypes(got, result))
        self.note("strides", compare.strides(got, result))
        if not random:
            self.gradients(ours, theirs, got, result, translate)

    def state(self, ours: Any, theirs: Any, state: dict[str, torch.Tensor], translate: Translator) -> str:
        """What differs in keys and words; the numbers are taken over."""
        if repr(ours) != repr(theirs):
            return f"{ours!r} where {theirs!r}"
        if list(ours.state_dict()) != list(theirs.state_dict()):
            return f"{list(ours.state_dict())} where {list(theirs.state_dict())}"
        if state:
            ours.load_state_dict({key: tensor(value.detach()) for key, value in state.items()})
        return ""

    def gradients(self, ours: Any, theirs: Any, got: Any, result: Any, translate: Translator) -> None:
        leaves = [pair for pair in translate.seen.values() if pair[0].requires_grad and pair[0].is_leaf]
        own = dict(ours.named_parameters())
        leaves += [(parameter, own[name]) for name, parameter in theirs.named_parameters()]
        pairs = [(a, b) for a, b in zip(got, result, strict=True) if isinstance(b, torch.Tensor) and b.requires_grad]
        if not pairs:
            return
        for parameter, mine in leaves:
            parameter.grad = mine.grad = None
        directions = [torch.randn_like(b) for _, b in pairs]
        if isinstance(outcome(torch.autograd.backward, [b for _, b in pairs], directions), Exception):
            return
        own_directions = [tensor(each) for each in directions]
        failure = outcome(engine.autograd.backward, [a for a, _ in pairs], own_directions)
        if isinstance(failure, Exception):
            self.note("gradient", told(failure))
            return
        grads = [(mine.grad, parameter.grad) for parameter, mine in leaves]
        if self.note("gradient", compare.gradients([a for a, _ in grads], [b for _, b in grads])):
            both = [(a, b) for a, b in grads if a is not None and b is not None]
            self.note("gradient strides", compare.strides([a for a, _ in both], [b for _, b in both]))


def _refused(info: Any, ours: Any, dtype: Any, case: Any, report: Report) -> None:
    given, forward = case.module_error_input.constructor_input, case.module_error_input.forward_input

    def called(cls: Any, read: Callable[[Any], Any]) -> None:
        module = cls(*read(given.args), **read(given.kwargs))
        if case.error_on is ModuleErrorEnum.FORWARD_ERROR:
            module(*read(forward.args), **read(forward.kwargs))

    theirs = outcome(called, info.module_cls, lambda value: value)
    if isinstance(theirs, Exception):
        difference = refusals_differ(outcome(called, ours, Translator()), theirs)
        if difference:
            report.failed(info.name, "errors", str(dtype).removeprefix("torch."), difference)
        else:
            report.passed("errors")


def _channels_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.detach().to(memory_format=torch.channels_last).requires_grad_(value.requires_grad)
    return value


def _fresh(call: list[Any]) -> list[Any]:
    return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in call]


def _same(first: list[Any], second: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor))
