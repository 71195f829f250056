"""Tensors whose text is compared with PyTorch's."""

from typing import Any

import numpy as np

SHAPES = [(), (1,), (0,), (2, 0), (7,), (2, 3), (1, 1, 30), (2, 2, 2), (1001,), (40, 40), (2, 1000), (6, 7, 50)]
DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "complex128",
]
OPTIONS: list[dict[str, Any]] = [
    {"precision": 2},
    {"sci_mode": True},
    {"sci_mode": False},
    {"threshold": 5},
    {"linewidth": 40},
    {"edgeitems": 1, "threshold": 4},
    {"profile": "full", "edgeitems": 2},
    {"profile": "short"},
    {"profile": "default"},
]


def values(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of one kind, the same for the same arguments."""
    rng = np.random.default_rng([len(kind), *shape])
    x = np.asarray(rng.standard_normal(shape))
    some = rng.random(shape) < 0.3
    found = {
        "plain": x,
        "large": x * 1e4,
        "small": x * 1e-5,
        "whole": np.round(x * 10),
        "uneven": x * 10.0 ** rng.integers(-8, 8, shape),
        "nan": np.where(some, np.nan, x),
        "infinite": np.where(some, np.inf * np.sign(x), np.round(x * 3)),
        "nothing": x * np.nan,
        "zero": x * 0,
        "huge": np.round(x * 1e9),
    }
    return np.array(found[kind])


KINDS = ["plain", "large", "small", "whole", "uneven", "nan", "infinite", "nothing", "zero", "huge"]


def texts(package: Any) -> dict[str, str]:
    """The text of every case, with the name of the package left out."""
    name = package.__name__
    found: dict[str, str] = {}

    def put(case: str, tensor: Any) -> None:
        # a package with a longer name may wrap a line earlier: suffixes are compared apart from that
        found[case] = repr(tensor).replace(f"{name}.", "").replace(",\n       dtype", ", dtype")

    for shape in SHAPES:
        for kind in KINDS:
            x = values(kind, shape)
            tensor = package.from_numpy(np.array(x, np.float64))
            put(f"{kind} {shape}", tensor.to(package.float32))
            for dtype in DTYPES[1:]:
                if len(shape) < 2 or kind in ("plain", "whole"):
                    put(f"{kind} {shape} {dtype}", _converted(package, x, dtype))
    parameter = package.from_numpy(values("plain", (2, 3)))
    put("requires grad", parameter.clone().requires_grad_())
    put("grad_fn", parameter.clone().requires_grad_() * 2)
    put("grad_fn of a wide one", package.from_numpy(values("plain", (2, 9))).requires_grad_().exp())
    put("meta", package.ones(2, 3, device="meta"))
    put("meta int", package.ones(2, 3, device="meta", dtype=package.int64))
    put("parameter", package.nn.Parameter(parameter))
    put("size", package.Size([2, 3]))
    put("device", package.device("cuda", 1))
    put("dtype", package.float32)
    put("memory format", package.channels_last)
    for number, options in enumerate(OPTIONS):
        package.set_printoptions(**options)
        for shape in [(), (7,), (1, 1, 30), (6, 7, 3)]:
            for kind in ("plain", "whole", "uneven", "infinite"):
                put(f"{number} {kind} {shape}", package.from_numpy(values(kind, shape)))
    return found


def _converted(package: Any, x: np.ndarray, dtype: str) -> Any:
    if dtype.startswith("complex"):
        return package.from_numpy(np.array(x + 1j * x[..., ::-1] if x.ndim else x + 1j, dtype))
    if dtype == "bool":
        return package.from_numpy(np.array(np.nan_to_num(x) > 0))
    if "int" in dtype:
        x = np.clip(np.nan_to_num(x), 0 if dtype == "uint8" else -100, 100)
    return package.from_numpy(np.array(x, np.float64)).to(getattr(package, dtype))
