"""Every method that writes in place gives, in every dtype, bit for bit what the function of its name without the
underscore gives out of place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
from engine import Tensor

DTYPES = ["float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64", "complex128"]

METHODS = sorted(
    name for name in dir(Tensor) if name.endswith("_") and not name.startswith("_") and not name.endswith("__")
)
WITHOUT_TWIN = {
    **dict.fromkeys(("copy_", "fill_", "fill_diagonal_", "zero_", "set_"), "writes what it is given"),
    **dict.fromkeys(("bernoulli_", "exponential_", "geometric_", "log_normal_", "normal_"), "draws"),
    **dict.fromkeys(("random_", "uniform_"), "draws"),
    **dict.fromkeys(("resize_", "resize_as_", "share_memory_", "detach_", "requires_grad_"), "computes nothing"),
}
NAMES = [name for name in METHODS if name not in WITHOUT_TWIN]


def numbers(kind: str, shape: tuple[int, ...], seed: int, low: float = 0.05, high: float = 0.95) -> Tensor:
    """Numbers on (low, high) in floating point dtypes; small whole ones, zeros among them, in others."""
    random = np.random.default_rng(seed)
    dtype = getattr(engine, kind)
    if dtype.is_floating_point:
        return engine.from_numpy(random.uniform(low, high, shape)).to(dtype)
    if dtype.is_complex:
        return engine.from_numpy(random.uniform(low, high, shape) + 1j * random.uniform(low, high, shape)).to(dtype)
    return engine.from_numpy(random.integers(0, 5, shape)).to(dtype)


# What a method is called with beside the tensor (of shape (4, 4) in dtype `kind`). Not named: another tensor for
# operators with two inputs, nothing for those with one.
_INDEX = engine.tensor([0, 2])
_PLACES = engine.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
ARGUMENTS: dict[str, Callable[[str], list[tuple[Any, ...]]]] = {
    "addbmm_": lambda k: [(numbers(k, (2, 4, 3), 1), numbers(k, (2, 3, 4), 2))],
    "addcdiv_": lambda k: [
        (numbers(k, (4, 4), 1), numbers(k, (4, 4), 2)),
        (numbers(k, (4,), 1), numbers(k, (4, 1), 2)),
    ],
    "addcmul_": lambda k: [
        (numbers(k, (4, 4), 1), numbers(k, (4, 4), 2)),
        (numbers(k, (4,), 1), numbers(k, (4, 1), 2)),
    ],
    "addmm_": lambda k: [(numbers(k, (4, 3), 1), numbers(k, (3, 4), 2))],
    "addr_": lambda k: [(numbers(k, (4,), 1), numbers(k, (4,), 2))],
    "as_strided_": lambda k: [((2, 3), (1, 2), 1)],
    "clamp_": lambda k: [(0.2, 0.6), (None, 0.5), (numbers(k, (4,), 1), None)],
    "clip_": lambda k: [(0.2, 0.6)],
    "clamp_max_": lambda k: [(0.5,), (1,)],
    "clamp_min_": lambda k: [(0.5,), (1,)],
    "cumprod_": lambda k: [(1,)],
    "cumsum_": lambda k: [(1,)],
    "div_": lambda k: [(numbers(k, (4,), 1),), (3,), (0.3,)],
    "index_add_": lambda k: [(0, _INDEX, numbers(k, (2, 4), 1)), (1, _INDEX, numbers(k, (4, 2), 1))],
    "index_copy_": lambda k: [(0, _INDEX, numbers(k, (2, 4), 1))],
    "index_fill_": lambda k: [(0, _INDEX, 1)],
    "index_put_": lambda k: [((_INDEX, _INDEX), numbers(k, (2,), 1)), ((_INDEX,), numbers(k, (4,), 1), True)],
    "index_reduce_": lambda k: [(0, _INDEX, numbers(k, (2, 4), 1), "prod"), (0, _INDEX, numbers(k, (2, 4), 1), "amax")],
    "lerp_": lambda k: [(numbers(k, (4, 4), 1), 0.3), (numbers(k, (4, 4), 1), numbers(k, (4, 4), 2))],
    "ldexp_": lambda k: [(engine.tensor([1, 2, 0, 3]),)],
    "logit_": lambda k: [(), (1e-3,)],
    "masked_fill_": lambda k: [(numbers("bool", (4, 4), 1), 2)],
    "masked_scatter_": lambda k: [(numbers("bool", (4, 4), 1), numbers(k, (16,), 2))],
    "mvlgamma_": lambda k: [(1,)],
    "nan_to_num_": lambda k: [(), (0.5,)],
    "pow_": lambda k: [(2,), (0.5,), (numbers(k, (4, 4), 1),)],
    "put_": lambda k: [
        (engine.tensor([1, 5]), numbers(k, (2,), 1)),
        (engine.tensor([1, 1]), numbers(k, (2,), 1), True),
    ],
    "renorm_": lambda k: [(2, 0, 0.5)],
    "round_": lambda k: [()],
    "scatter_": lambda k: [(0, _PLACES, numbers(k, (2, 4), 1)), (1, _PLACES, 1)],
    "scatter_add_": lambda k: [(0, _PLACES, numbers(k, (2, 4), 1))],
    "scatter_reduce_": lambda k: [
        (0, _PLACES, numbers(k, (2, 4), 1), "sum"),
        (0, _PLACES, numbers(k, (2, 4), 1), "amin"),
    ],
    "swapaxes_": lambda k: [(0, 1)],
    "swapdims_": lambda k: [(0, 1)],
    "transpose_": lambda k: [(0, 1)],
    "tril_": lambda k: [(), (1,)],
    "triu_": lambda k: [(), (1,)],
    "unsqueeze_": lambda k: [(1,)],
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "add_": [{"alpha": 3}, {"alpha": 0.3}],
    "sub_": [{"alpha": 3}, {"alpha": 0.3}],
    "subtract_": [{"alpha": 3}],
    "addcmul_": [{"value": 0.3}, {"value": 3}],
    "addcdiv_": [{"value": 0.3}, {"value": 3}],
    "div_": [{"rounding_mode": "floor"}, {"rounding_mode": "trunc"}],
    "divide_": [{"rounding_mode": "floor"}],
    "true_divide_": [],
    "addmm_": [{"beta": 2, "alpha": 3}],
    "baddbmm_": [{"beta": 2, "alpha": 3}],
    "index_add_": [{"alpha": 3}],
    "round_": [{"decimals": 1}],
}
BINARY = """
add arctan2 atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide eq
float_power floor_divide fmax fmin fmod gcd ge greater greater_equal gt heaviside hypot igamma igammac lcm le less
less_equal logical_and logical_or logical_xor lt maximum minimum mul multiply ne nextafter not_equal remainder sub
subtract true_divide xlogy
""".split()  # noqa: SIM905
for _name in BINARY:
    ARGUMENTS[f"{_name}_"] = lambda k: [(numbers(k, (4, 4), 1),), (numbers(k, (4,), 2),), (2,)]
ARGUMENTS["heaviside_"] = lambda k: [(numbers(k, (4, 4), 1),), (numbers(k, (4,), 2),)]
SHAPES = {"baddbmm_": (2, 4, 4), "addmv_": (4,)}
ARGUMENTS["baddbmm_"] = lambda k: [(numbers(k, (2, 4, 3), 1), numbers(k, (2, 3, 4), 2))]
ARGUMENTS["addmv_"] = lambda k: [(numbers(k, (4, 3), 1), numbers(k, (3,), 2))]
LOW = {"acosh_": (1.05, 3.0), "arccosh_": (1.05, 3.0), "mvlgamma_": (1.0, 3.0)}


def calls(name: str, kind: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What a method is called with, each with every option."""
    each = ARGUMENTS[name](kind) if name in ARGUMENTS else [()]
    return [(arguments, options) for arguments in each for options in [{}, *OPTIONS.get(name, [])]]


def outcome(call: Callable[[], Tensor]) -> Tensor | Exception:
    """What a call returns or raises."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        return error


def bits(tensor: Tensor) -> Any:
    """The elements as bytes, all NaN as one."""
    array = np.array(tensor.numpy())
    plain = array.astype(np.float32) if array.dtype.kind == "V" or str(array.dtype) == "bfloat16" else array
    return np.where(np.isnan(plain), np.float32("nan"), plain).tolist() if plain.dtype.kind in "fc" else plain.tolist()


def test_every_method_is_compared() -> None:
    missing = [name for name in NAMES if not hasattr(Tensor, name[:-1]) and not hasattr(engine, name[:-1])]
    assert not missing, f"no function of the name without the underscore: {missing}; or say why in WITHOUT_TWIN"
    assert not (ARGUMENTS.keys() | OPTIONS.keys()) - set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_in_place_is_as_out_of_place(name: str) -> None:
    twin = getattr(Tensor, name[:-1], None) or getattr(engine, name[:-1])
    compared = 0
    for kind in DTYPES:
        for arguments, options in calls(name, kind):
            target = numbers(kind, SHAPES.get(name, (4, 4)), 0, *LOW.get(name, ()))
            source = target.clone()
            expected = outcome(lambda: twin(source, *arguments, **options))  # noqa: B023 - called at once
            found = outcome(lambda: getattr(target, name)(*arguments, **options))  # noqa: B023
            what = f"{name} of {kind} with {arguments} {options}"
            if isinstance(expected, Exception):
                assert isinstance(found, Exception), f"{what}: out of place it raises {expected!r}"
            elif not (expected.shape == source.shape or name in CHANGE_THE_SHAPE) or not engine.can_cast(
                expected.dtype, source.dtype
            ):
                assert isinstance(found, Exception), f"{what}: {expected.dtype} {list(expected.shape)} does not fit"
            else:
                if isinstance(found, Exception):
                    assert name in TAKE_LESS, f"{what} raises {found!r}"
                    continue
                assert found is target, what
                assert found.dtype is source.dtype
                assert bits(found) == bits(expected.to(source.dtype)), what
                compared += 1
    assert compared


CHANGE_THE_SHAPE = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
TAKE_LESS = {"float_power_": "PyTorch's takes doubles alone"}
