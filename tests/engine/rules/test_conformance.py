"""The 6,025 layout facts of tests/data/conformance, held against the engine's public API (one test a file, every
failing case listed).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import engine

FACTS = Path(__file__).parents[2] / "data" / "conformance"
NUMBERS = {"bool": True, "int": 2, "float": 1.5, "complex": 1j}
Case = dict[str, Any]


def made(description: Case) -> engine.Tensor:
    """A tensor of zeros with the described shape, strides and dtype."""
    elements = 1 + sum(
        (size - 1) * step for size, step in zip(description["shape"], description["stride"], strict=True)
    )
    base = engine.zeros(max(elements, 0), dtype=getattr(engine, description.get("dtype", "float32")))
    return base.as_strided(description["shape"], description["stride"])


def strides(tensor: engine.Tensor) -> list[int]:
    return list(tensor.stride())


def iterator(case: Case) -> Iterator[tuple[Any, Any]]:
    out = getattr(engine, case["op"])(*map(made, case["in"]))
    yield (
        (list(out.shape), strides(out), out.dtype.name),
        (case["out"]["shape"], case["out"]["stride"], case["out"]["dtype"]),
    )


def formats(case: Case) -> Iterator[tuple[Any, Any]]:
    tensor = made(case)
    yield tensor.is_contiguous(), case["contiguous"]
    yield tensor.is_non_overlapping_and_dense(), case["non_overlapping_and_dense"]
    yield strides(tensor.contiguous()), case["after_contiguous"]
    yield strides(tensor.clone()), case["clone_preserve"]
    yield strides(tensor.clone(memory_format=engine.contiguous_format)), case["clone_contiguous"]
    yield strides(engine.empty_like(tensor)), case["empty_like"]
    for ndim, suffix, memory_format in ((4, "", engine.channels_last), (5, "3", engine.channels_last_3d)):
        if tensor.ndim == ndim:
            yield tensor.is_contiguous(memory_format=memory_format), case["channels_last" + ("_3d" if suffix else "")]
            yield strides(tensor.contiguous(memory_format=memory_format)), case["contiguous_cl" + suffix]
            yield strides(tensor.to(memory_format=memory_format)), case["to_cl" + suffix]
    if tensor.ndim == 4:
        yield strides(tensor.clone(memory_format=engine.channels_last)), case["clone_cl"]


def matmul(case: Case) -> Iterator[tuple[Any, Any]]:
    out = engine.matmul(*map(made, case["in"]))
    yield (list(out.shape), strides(out)), (case["out"]["shape"], case["out"]["stride"])


def promotion(case: Case) -> Iterator[tuple[Any, Any]]:
    operands = [
        NUMBERS[name]
        if category == "number"
        else engine.ones([2] if category == "tensor" else [], dtype=getattr(engine, name))
        for name, category in (case["a"], case["b"])
    ]
    yield engine.result_type(*operands).name, case["result"]


def views(case: Case) -> Iterator[tuple[Any, Any]]:
    tensor, arguments = made(case["in"]), case["args"]
    try:
        if case["op"] == "slice":
            dim, start, stop, step = arguments
            out = tensor[(*[slice(None)] * dim, slice(start, stop, step))]
        else:
            out = getattr(tensor, case["op"])(*arguments)
    except (RuntimeError, ValueError, IndexError):
        yield "refused", "refused" if case.get("error") else "accepted"
        return
    yield "accepted", "refused" if case.get("error") else "accepted"
    yield (list(out.shape), strides(out)), (case["out"]["shape"], case["out"]["stride"])
    yield out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr(), case["is_view"]
    if case["is_view"]:
        yield out.storage_offset() - tensor.storage_offset(), case["offset"]


class Give(engine.autograd.Function):
    """Hands the next prepared gradient to its input."""

    prepared: list[engine.Tensor] = []  # noqa: RUF012 - one list for the whole module is what is wanted

    @staticmethod
    def forward(ctx: Any, variable: engine.Tensor) -> engine.Tensor:
        return variable.sum()

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> engine.Tensor:
        return Give.prepared.pop()


def accumulate(case: Case) -> Iterator[tuple[Any, Any]]:
    variable = made(case["variable"]).requires_grad_()
    first, second = made(case["grad1"]), made(case["grad2"])
    address = first.data_ptr()
    held = first if case["held_elsewhere"] else None
    Give.prepared = [first]
    del first
    Give.apply(variable).backward(create_graph=case["create_graph"])
    yield strides(variable.grad), case["after1"]
    yield variable.grad.data_ptr() == address and variable.numel() > 0, case["stolen"]
    before = variable.grad.data_ptr()
    Give.prepared = [second]
    del second, held
    Give.apply(variable).backward(create_graph=case["create_graph"])
    yield strides(variable.grad), case["after2"]
    yield variable.grad.data_ptr() == before, case["in_place"]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
@pytest.mark.parametrize(
    "check", [iterator, formats, matmul, promotion, views, accumulate], ids=lambda check: check.__name__
)
def test_facts_hold(check: Callable[[Case], Iterator[tuple[Any, Any]]]) -> None:
    cases = [json.loads(line) for line in (FACTS / f"{check.__name__}.jsonl").read_text().splitlines()]
    assert cases
    wrong = [(case, got, wanted) for case in cases for got, wanted in check(case) if got != wanted]
    assert not wrong, f"{len(wrong)} facts do not hold, the first: {wrong[0]}"
