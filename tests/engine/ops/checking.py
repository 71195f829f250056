"""Operators against PyTorch's stored numbers, and their second derivatives against differences of the first."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import engine
from tests.data.operators import case as cases

FOLDER = Path(cases.__file__).resolve().parent
TOLERANCE = {"float64": 0.0, "float32": 5e-5}


@cache
def stored(family: str) -> tuple[np.ndarray, dict[str, Any]]:
    """(all numbers, where those of each case lie) of a family."""
    with np.load(FOLDER / f"{family}.npz") as file:
        return file["values"], json.loads(str(file["index"]))["cases"]


def check_against_pytorch(family: str, name: str, case: cases.Case, dtype: str) -> None:
    """Values, dtypes and strides of the results, and the first derivatives."""
    values, index = stored(family)
    _, results, slopes = cases.gradients(engine, case, dtype)
    assert len(index[name]) == len(results) + len(slopes), f"{name}: run tests/data/operators/generate.py {family}"
    for entry, tensor in zip(index[name], [*results, *slopes], strict=True):
        label = f"{name}: {entry['kind']}"
        if "shape" not in entry:
            assert tensor is None or not tensor.any(), label
            continue
        assert tensor is not None, label
        count = int(np.prod(entry["shape"]))
        if entry["dtype"].startswith("complex"):
            expected = values[entry["start"] : entry["start"] + 2 * count].view(complex).reshape(entry["shape"])
        else:
            expected = values[entry["start"] : entry["start"] + count].reshape(entry["shape"])
        assert list(tensor.shape) == entry["shape"], label
        if entry["kind"] == "result":
            assert list(tensor.stride()) == entry["stride"], label
            kinds = {"float64": dtype, "complex128": cases.COMPLEX[dtype]}
            assert tensor.dtype == getattr(engine, kinds.get(entry["dtype"], entry["dtype"])), label
        tolerance = max(TOLERANCE[dtype], case.tolerance)
        scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
        np.testing.assert_allclose(
            tensor.detach().numpy().astype(expected.dtype),
            expected,
            rtol=tolerance,
            atol=tolerance * scale,
            err_msg=label,
        )


def check_second_order(case: cases.Case, step: float = 1e-5, tolerance: float = 1e-5) -> None:
    """The derivative of <first derivative, random direction> along another one, against a central difference;
    create_graph gives the same first.
    """
    inputs, _, slopes = cases.gradients(engine, case, "float64", create_graph=True)
    _, _, plain = cases.gradients(engine, case, "float64")
    for recorded, raw in zip(slopes, plain, strict=True):
        assert (recorded is None) == (raw is None)
        if raw is not None:
            np.testing.assert_allclose(recorded.detach().numpy(), raw.numpy(), rtol=1e-9, atol=1e-12)
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    rng = np.random.RandomState(3)
    weights = [np.asarray(rng.standard_normal(tuple(leaf.shape))) for leaf in leaves]
    directions = [np.asarray(rng.standard_normal(tuple(leaf.shape))) for leaf in leaves]

    def projected(shift: float) -> float:
        moved = iter(directions)
        shifted = [
            np.asarray(array + shift * next(moved)) if case.varies(position) else array
            for position, array in enumerate(case.inputs)
        ]
        _, _, found = cases.gradients(engine, case._replace(inputs=tuple(shifted)), "float64")
        return sum(
            float((slope.numpy() * weight).sum())
            for slope, weight in zip(found, weights, strict=True)
            if slope is not None
        )

    difference = (projected(step) - projected(-step)) / (2 * step)
    total = None
    for slope, weight in zip(slopes, weights, strict=True):
        if slope is not None and slope.requires_grad:
            term = (slope * engine.from_numpy(weight)).sum()
            total = term if total is None else total + term
    analytic = 0.0
    if total is not None and total.requires_grad:
        for second, direction in zip(engine.autograd.grad(total, leaves, allow_unused=True), directions, strict=True):
            analytic += 0.0 if second is None else float((second.numpy() * direction).sum())
    assert abs(analytic - difference) <= tolerance * max(1.0, abs(difference)), (analytic, difference)
