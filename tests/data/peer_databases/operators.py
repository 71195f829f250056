"""PyTorch's op_db: values, dtypes, strides, gradients, methods, in-place twins and errors of its samples."""

from collections.abc import Callable, Iterator
from typing import Any

import compare
import torch
import writing
from outcome import outcome, refusals_differ, told
from report import Report
from torch.testing._internal.common_methods_invocations import op_db
from translate import Missing, Translator, by_path, counterpart, tensor

import engine

DTYPES = (
    *(torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64),
)
_UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_UNINITIALISED |= {"resize_", "resize_as_"}
# Drawn from generators of their own, some of them with a seed that the database sets: shapes, dtypes, strides only.
_RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *("rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "pca_lowrank", "svd_lowrank"),
    *(f"nn.functional.{kind}dropout{dims}" for kind in ("", "alpha_", "feature_alpha_") for dims in ("", "2d", "3d")),
    *("nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
}
_THEIR_OUT_CRASHES = {"linalg.lu", "lu_unpack"}  # PyTorch 2.13 corrupts its heap


def names() -> list[str]:
    return sorted({op.name for op in op_db})


def check(name: str, samples: int, report: Report) -> None:
    """Everything about all variants of one operator."""
    for op in op_db:
        if op.name == name:
            Operator(op, samples, report).check()


class Operator:
    """One entry of the database and what the engine has in its place."""

    def __init__(self, op: Any, samples: int, report: Report) -> None:
        self.op, self.samples, self.report = op, samples, report
        self.name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")

    def check(self) -> None:
        try:
            self.ours = self.found()
            self.compared()
        except Missing as error:
            self.report.failed(self.name, "present", "", str(error))
        else:
            self.report.passed("present")

    def found(self) -> Callable[..., Any]:
        """What the engine has under the function's own name, or the database's. Raises: Missing."""
        try:
            if (ours := counterpart(self.op.op)) is not self.op.op:
                return ours
        except Missing:
            pass
        return by_path(self.op.name)

    def compared(self) -> None:
        """All checks. Raises: Missing."""
        for dtype in DTYPES:
            if dtype in self.op.supported_dtypes("cpu"):
                for place, sample in enumerate(self.chosen(dtype, requires_grad=False)):
                    self.values(sample, dtype, first=place == 0)
        for dtype in (torch.float64, torch.complex128):
            if self.op.supports_autograd and dtype in self.op.supported_backward_dtypes("cpu"):
                for sample in self.chosen(dtype, requires_grad=True):
                    self.gradients(sample, dtype)
        self.errors()

    def chosen(self, dtype: torch.dtype, requires_grad: bool) -> Iterator[Any]:
        """Samples spread over all that there are."""
        torch.manual_seed(0)
        everything = outcome(lambda: list(self.op.sample_inputs("cpu", dtype, requires_grad)))
        if isinstance(everything, Exception):
            return  # PyTorch cannot make them itself
        count = min(self.samples, len(everything))
        for place in range(count):
            yield everything[(place * len(everything)) // count]

    def note(self, check: str, dtype: Any, sample: Any, difference: str) -> bool:
        if difference:
            kind = str(dtype).removeprefix("torch.")
            self.report.failed(self.name, check, kind, f"{difference}; {_words(sample)}")
        else:
            self.report.passed(check)
        return not difference

    def translated(self, sample: Any) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments here; None for what is out of scope (sparse layouts, dtypes)."""
        self.translate = Translator()
        try:
            return [self.translate(sample.input), *self.translate(sample.args)], self.translate(sample.kwargs)
        except Missing:
            return None

    # Results

    def values(self, sample: Any, dtype: torch.dtype, first: bool) -> None:
        given = self.translated(sample)
        call = [sample.input, *sample.args]
        copies = _copied(call), _copied(sample.kwargs)
        result = outcome(_seeded, self.op.op, 0, *call, **sample.kwargs)
        if given is None or isinstance(result, Exception):
            return
        theirs = compare.flat(result)
        again = compare.flat(_seeded(self.op.op, 1, *copies[0], **copies[1]))
        random = self.op.name in _UNINITIALISED or _random(self.op, sample) or not _equal(theirs, again)
        answer = outcome(self.ours, *given[0], **given[1])
        if isinstance(answer, AttributeError) and ("module 'engine" in str(answer) or "'Tensor'" in str(answer)):
            raise Missing(str(answer))
        if isinstance(answer, Exception):
            self.note("value", dtype, sample, told(answer))
            return
        ours = compare.flat(answer)
        difference = compare.values(ours, theirs, shapes_only=random)
        if difference and not self.same_when_processed(sample, answer):
            self.note("value", dtype, sample, difference)
            return
        self.note("value", dtype, sample, "")
        self.note("dtype", dtype, sample, compare.dtypes(ours, theirs))
        self.note("strides", dtype, sample, compare.strides(ours, theirs))
        self.method(sample, dtype, theirs, random or bool(difference))
        self.in_place(sample, dtype)
        if self.op.supports_out and self.op.name not in _THEIR_OUT_CRASHES and not random and not difference and first:
            single = not isinstance(result, tuple | list)
            for difference in writing.differences(self.op.op, self.ours, sample, theirs, single, self.translated):
                self.note("out", dtype, sample, difference)

    def same_when_processed(self, sample: Any, answer: Any) -> bool:
        """Whether signs and the like, which the database itself takes away before it compares, are what differs."""
        try:
            process = counterpart(sample.output_process_fn_grad)
        except Missing:
            return False
        theirs = sample.output_process_fn_grad(self.op.op(sample.input, *sample.args, **sample.kwargs))
        ours = outcome(process, answer)
        return not isinstance(ours, Exception) and not compare.values(compare.flat(ours), compare.flat(theirs))

    def method(self, sample: Any, dtype: torch.dtype, theirs: list[Any], shapes_only: bool) -> None:
        method = self.op.get_method()
        given = self.translated(sample)
        if method is None or given is None or not isinstance(sample.input, torch.Tensor):
            return
        answer = outcome(lambda: compare.flat(counterpart(method)(*given[0], **given[1])))
        difference = told(answer) if isinstance(answer, Exception) else compare.values(answer, theirs, shapes_only)
        self.note("method", dtype, sample, difference)

    def in_place(self, sample: Any, dtype: torch.dtype) -> None:
        method = self.op.get_inplace()
        given = self.translated(sample)
        if method is None or given is None or not isinstance(sample.input, torch.Tensor):
            return
        theirs = outcome(_seeded, method, 0, sample.input.clone(), *sample.args, **sample.kwargs)
        target = tensor(sample.input.clone())
        ours = outcome(lambda: counterpart(method)(target, *given[0][1:], **given[1]))
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            both = isinstance(theirs, Exception) and isinstance(ours, Exception)
            self.note("inplace", dtype, sample, "" if both else f"{told(ours)} where {told(theirs)}")
            return
        again = _seeded(method, 1, sample.input.clone(), *sample.args, **sample.kwargs)
        random = self.op.name in _UNINITIALISED or _random(self.op, sample) or not _equal([theirs], [again])
        difference = compare.values([ours], [theirs], shapes_only=random)
        difference = difference or ("" if ours is target else "another tensor is returned")
        self.note(
            "inplace",
            dtype,
            sample,
            difference or compare.dtypes([ours], [theirs]) or compare.strides([ours], [theirs]),
        )

    # Derivatives

    def gradients(self, sample: Any, dtype: torch.dtype) -> None:
        given = self.translated(sample)
        try:
            process, wrapper = counterpart(sample.output_process_fn_grad), counterpart(self.op.gradcheck_wrapper)
        except Missing:
            return
        if given is None or _random(self.op, sample):
            return
        leaves = [pair for pair in self.translate.seen.values() if pair[0].requires_grad]
        results = [outcome(self.differentiable, sample, seed) for seed in (0, 1)]
        if any(isinstance(each, Exception) for each in results) or not _equal(*results):
            return
        theirs = results[0]
        directions = [torch.randn_like(each).requires_grad_() for each in theirs]
        twice = self.op.supports_gradgrad
        first = outcome(_derived, torch, theirs, [pair[0] for pair in leaves], directions, twice)
        if isinstance(first, Exception):
            return
        translate = Translator()

        def derived() -> Any:
            ours = compare.flat(process(wrapper(self.ours, *given[0], **given[1])))
            ours = [each for each in ours if isinstance(each, engine.Tensor) and each.requires_grad]
            if len(ours) != len(theirs):
                raise ValueError(f"{len(ours)} differentiable results where {len(theirs)} are")
            return _derived(engine, ours, [pair[1] for pair in leaves], translate(directions), twice)

        own = outcome(derived)
        difference = told(own) if isinstance(own, Exception) else compare.gradients(own, first)
        if not self.note("gradient", dtype, sample, difference):
            return
        # an expanded gradient is no leaf's
        both = [(a, b) for a, b in zip(own, first, strict=True) if a is not None and b is not None]
        pairs = [(a, b) for a, b in both if b.requires_grad]
        if twice and pairs:
            inputs = [*leaves, *zip(directions, translate(directions), strict=True)]
            self.second(sample, dtype, pairs, inputs)

    def differentiable(self, sample: Any, seed: int) -> list[torch.Tensor]:
        call = self.op.gradcheck_wrapper, seed, self.op.op, sample.input, *sample.args
        result = sample.output_process_fn_grad(_seeded(*call, **sample.kwargs))
        return [each for each in compare.flat(result) if isinstance(each, torch.Tensor) and each.requires_grad]

    def second(self, sample: Any, dtype: Any, pairs: list[Any], inputs: list[Any]) -> None:
        more = [torch.randn_like(b) for _, b in pairs]
        theirs = outcome(_derived, torch, [b for _, b in pairs], [pair[0] for pair in inputs], more, False)
        if isinstance(theirs, Exception):
            return
        directions = [tensor(each) for each in more]
        ours = outcome(_derived, engine, [a for a, _ in pairs], [pair[1] for pair in inputs], directions, False)
        difference = told(ours) if isinstance(ours, Exception) else compare.gradients(ours, theirs)
        self.note("second gradient", dtype, sample, difference)

    # Errors

    def errors(self) -> None:
        """What PyTorch refuses is refused, with an error of the same class."""
        if self.op.error_inputs_func is None:
            return
        for case in self.op.error_inputs("cpu"):
            sample = case.sample_input
            given = self.translated(sample)
            theirs = outcome(self.op.op, sample.input, *sample.args, **sample.kwargs)
            if given is not None and isinstance(theirs, Exception):
                ours = outcome(self.ours, *given[0], **given[1])
                self.note("errors", "", sample, refusals_differ(ours, theirs))


def _random(op: Any, sample: Any) -> bool:
    if op.name == "nn.functional.multi_head_attention_forward":
        return bool(sample.args[9]) and sample.kwargs.get("training", True)
    return op.name in _RANDOM or bool(sample.kwargs.get("dropout_p"))


def _seeded(function: Callable[..., Any], seed: int, *arguments: Any, **keywords: Any) -> Any:
    torch.manual_seed(seed)
    return function(*arguments, **keywords)


def _derived(library: Any, results: list[Any], leaves: list[Any], directions: list[Any], graph: bool) -> list[Any]:
    return list(library.autograd.grad(results, leaves, directions, create_graph=graph, allow_unused=True))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.clone()
        memory = value.detach().untyped_storage().clone()  # as_strided reads what lies outside a view, too
        return torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.shape, value.stride())
    if type(value) in (tuple, list):
        return type(value)(map(_copied, value))
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value


def _equal(first: list[Any], second: list[Any]) -> bool:
    """Whether the seed made no difference."""
    for one, other in zip(first, second, strict=True):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided:
            wide = torch.complex128 if one.is_complex() else torch.float64
            one, other = one.detach().to(wide), other.detach().to(wide)
            if one.shape != other.shape or not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
                return False
    return True


def _words(sample: Any) -> str:
    text = sample.summary().replace('device="cpu", dtype=torch.', "").replace("SampleInput", "")
    text = text.replace(", broadcasts_input=False", "").replace(", name=''", "")
    return text if len(text) < 200 else text[:200] + "..."
