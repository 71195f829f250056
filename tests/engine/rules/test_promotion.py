"""dtypes and promotion, held against PyTorch's answers (tests/data/conformance) and their own algebra."""

import copy
import json
import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import engine
from engine.rules import dtypes
from engine.rules.dtypes import DTYPES, dtype, finfo, iinfo
from engine.rules.promotion import DIMENSIONED, NUMBER, ZERO_DIM, can_cast, number_dtype, promote_types, result_dtype

FACTS = Path(__file__).parents[2] / "data" / "conformance" / "promotion.jsonl"
EVERY = [*DTYPES.values(), dtypes.complex32]
NUMBER_TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}
RANK_CATEGORIES = {"tensor": DIMENSIONED, "0-dim": ZERO_DIM}


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = dtypes.get_default_dtype()
    yield
    dtypes.set_default_dtype(before)


def operand(name: str, category: str) -> tuple[dtype, int]:
    if category == "number":
        return number_dtype(NUMBER_TYPES[name]), NUMBER
    return DTYPES[name], RANK_CATEGORIES[category]


def test_every_fact_of_result_type() -> None:
    facts = [json.loads(line) for line in FACTS.read_text().splitlines()]
    wrong = [
        (fact, result)
        for fact in facts
        if (result := result_dtype((operand(*fact["a"]), operand(*fact["b"]))).name) != fact["result"]
    ]
    assert len(facts) == 672
    assert wrong == []


@pytest.mark.parametrize("category", [DIMENSIONED, ZERO_DIM, NUMBER])
def test_promotion_within_a_category_is_the_least_upper_bound(category: int) -> None:
    for a, b in product(EVERY, repeat=2):
        common = promote_types(a, b)
        assert common is promote_types(b, a) is result_dtype(((a, category), (b, category)))
        assert common.category == max(a.category, b.category)
        assert promote_types(common, a) is common
        assert can_cast(a, common)
        assert can_cast(b, common)


def test_promotion_holds_the_values_that_numpy_says_it_can() -> None:
    native = [each for each in DTYPES.values() if each is not dtypes.bfloat16]
    for a, b in product(native, repeat=2):
        if a.category == b.category:
            assert promote_types(a, b).numpy == np.result_type(a.numpy, b.numpy)


def test_three_operands() -> None:
    ones = (dtypes.int8, DIMENSIONED), (dtypes.uint8, DIMENSIONED), (dtypes.float64, ZERO_DIM)
    assert result_dtype(ones) is dtypes.float64
    assert result_dtype(ones[:2]) is dtypes.int16
    half = (dtypes.float16, DIMENSIONED), (dtypes.float64, ZERO_DIM), (dtypes.float32, NUMBER)
    assert result_dtype(half) is dtypes.float16
    with pytest.raises(ValueError, match="at least one operand"):
        result_dtype(())


def test_numbers_follow_the_default_dtype(default_dtype: None) -> None:
    assert number_dtype(float) is dtypes.float32
    assert result_dtype(((dtypes.int8, DIMENSIONED), (number_dtype(float), NUMBER))) is dtypes.float32
    dtypes.set_default_dtype(dtypes.float64)
    assert number_dtype(float) is dtypes.float64
    assert number_dtype(complex) is dtypes.complex128
    assert result_dtype(((dtypes.int8, DIMENSIONED), (number_dtype(float), NUMBER))) is dtypes.float64
    assert number_dtype(np.float64) is dtypes.float64  # a subclass of float


def test_number_of_a_foreign_type() -> None:
    with pytest.raises(TypeError, match="Python bool, int, float or complex, got str"):
        number_dtype(str)


@pytest.mark.parametrize("wrong", [dtypes.int64, dtypes.bool_, dtypes.complex64, "float32", float, None])
def test_only_floating_point_types_become_the_default(wrong: dtype) -> None:
    with pytest.raises(TypeError, match="only floating-point types are supported as the default type"):
        dtypes.set_default_dtype(wrong)
    assert dtypes.get_default_dtype() is dtypes.float32


def test_casts_never_go_down_in_category() -> None:
    refused = {(a.name, b.name) for a, b in product(DTYPES.values(), repeat=2) if not can_cast(a, b)}
    assert ("float32", "int64") in refused
    assert ("complex64", "float64") in refused
    assert ("uint8", "bool") in refused
    assert ("float64", "float16") not in refused
    assert all(DTYPES[a].category > DTYPES[b].category for a, b in refused)


@pytest.mark.parametrize("each", EVERY, ids=str)
def test_a_dtype_is_one_object_however_it_travels(each: dtype) -> None:
    assert copy.copy(each) is each
    assert copy.deepcopy({"key": each})["key"] is each
    assert pickle.loads(pickle.dumps(each)) is each
    assert repr(each) == str(each) == f"engine.{each.name}"


def test_numpy_counterparts() -> None:
    for each in DTYPES.values():
        assert dtypes.of_numpy(each.numpy) is each
        assert each.itemsize == each.numpy.itemsize
    assert dtypes.of_numpy(np.dtype(ml_dtypes.bfloat16)) is dtypes.bfloat16
    assert dtypes.of_numpy(np.dtype("longlong")) is dtypes.int64
    assert (dtypes.half, dtypes.float_, dtypes.double) == (dtypes.float16, dtypes.float32, dtypes.float64)
    assert (dtypes.short, dtypes.int_, dtypes.long) == (dtypes.int16, dtypes.int32, dtypes.int64)
    assert (dtypes.cfloat, dtypes.cdouble) == (dtypes.complex64, dtypes.complex128)


@pytest.mark.parametrize("foreign", ["uint16", "uint32", "uint64", "U3", "O", ">f4", "M8[s]", "longdouble"])
def test_arrays_no_tensor_can_hold(foreign: str) -> None:
    with pytest.raises(TypeError, match=r"expected one of bool, uint8.*array\.astype"):
        dtypes.of_numpy(np.dtype(foreign))


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("float32", "use engine.float32"),
        (np.float64, "use engine.float64"),
        (np.int8, "use engine.int8"),
        (np.dtype("bool"), "use engine.bool"),
        ("float23", "expected one of engine.bool, engine.uint8"),
        (3, "expected one of engine.bool, engine.uint8"),
        (list, "expected one of engine.bool, engine.uint8"),
    ],
)
def test_what_is_no_dtype_is_refused_with_advice(wrong: object, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        dtypes.require_dtype(wrong)


def test_types_of_python_are_dtypes() -> None:
    for given, meant in {
        bool: dtypes.bool_,
        int: dtypes.int64,
        float: dtypes.float64,
        complex: dtypes.complex128,
    }.items():
        assert engine.ones(2, dtype=given).dtype is meant
        assert engine.zeros(2).to(given).dtype is engine.zeros(2).to("cpu", given).dtype is meant
    assert engine.nn.Linear(1, 1).to(float).weight.dtype is dtypes.float64
    assert engine.nn.Linear(1, 1).to("cpu", dtype=float).weight.dtype is dtypes.float64


def test_dtypes_a_tensor_can_have() -> None:
    for each in DTYPES.values():
        assert dtypes.require_dtype(each) is each
    with pytest.raises(TypeError, match=r"use engine.complex64"):
        dtypes.require_dtype(dtypes.complex32)
    with pytest.raises(TypeError, match="cannot be created"):
        dtype("float32")
    with pytest.raises(TypeError, match="unknown dtype 'float8'"):
        dtypes.named("float8")


def test_real_and_complex_counterparts() -> None:
    assert dtypes.complex128.to_real() is dtypes.float64
    assert dtypes.int8.to_real() is dtypes.int8
    assert dtypes.bfloat16.to_complex() is dtypes.complex64
    assert dtypes.complex64.to_complex() is dtypes.complex64
    with pytest.raises(RuntimeError, match=r"engine.int32 has no complex counterpart"):
        dtypes.int32.to_complex()


def test_limits_are_pytorchs() -> None:
    assert repr(finfo()) == (
        "finfo(resolution=1e-06, min=-3.40282e+38, max=3.40282e+38, eps=1.19209e-07, "
        "smallest_normal=1.17549e-38, tiny=1.17549e-38, dtype=float32)"
    )
    assert finfo(dtypes.complex64) == finfo(dtypes.float32)
    assert (finfo(dtypes.bfloat16).eps, finfo(dtypes.bfloat16).resolution) == (0.0078125, 0.01)
    assert (finfo(dtypes.float16).max, finfo(dtypes.float16).bits) == (65504.0, 16)
    assert (iinfo(dtypes.uint8).min, iinfo(dtypes.uint8).max) == (0, 255)
    assert (iinfo(dtypes.int64).min, iinfo(dtypes.int64).max) == (-(2**63), 2**63 - 1)
    for integer in (dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64):
        limits = np.iinfo(integer.numpy)
        assert (iinfo(integer).bits, iinfo(integer).min, iinfo(integer).max) == (limits.bits, limits.min, limits.max)


def test_limits_of_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"use engine.iinfo"):
        finfo(dtypes.int32)
    with pytest.raises(TypeError, match=r"use engine.finfo"):
        iinfo(dtypes.float32)
    with pytest.raises(TypeError, match=r"engine.bool is not supported"):
        iinfo(dtypes.bool_)
    with pytest.raises(TypeError, match=r"must be an engine.dtype"):
        iinfo(int)  # type: ignore[arg-type]
