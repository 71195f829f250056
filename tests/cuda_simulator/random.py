"""`cupy.random`: NumPy's generators fill device memory. The numbers are not those of a GPU; their distribution is."""

from typing import Any

import numpy as np

from tests.cuda_simulator import api, calls, functions


class _Drawing:
    """Methods that draw on the device: NumPy's of the same name, on CuPy's parameters."""

    _owner: str
    _host: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in api.snapshot()["classes"][self._owner]:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        draw = getattr(self._host, name, None)
        if draw is None:
            raise NotImplementedError(f"the simulated device has no {self._owner}.{name}")
        owner = self._owner

        def run(*args: Any, **kwargs: Any) -> Any:
            api.check_call(owner, name, args, kwargs)
            dtype = kwargs.pop("dtype", None)
            if dtype is not None and name in ("integers", "randint", "random", "standard_normal"):
                try:
                    return calls.call(draw, name, args, {**kwargs, "dtype": dtype})
                except TypeError:
                    pass
            return calls.call(
                draw,
                name,
                args,
                kwargs,
                lambda found: np.asarray(found).astype(dtype if dtype is not None else np.asarray(found).dtype),
            )

        return run


class Generator(_Drawing):
    """`cupy.random.Generator`."""

    _owner = "cupy.random.Generator"

    def __init__(self, bit_generator: Any) -> None:
        self.bit_generator = bit_generator
        self._host = np.random.Generator(bit_generator._host)


class RandomState(_Drawing):
    """`cupy.random.RandomState`."""

    _owner = "cupy.random.RandomState"

    def __init__(self, seed: Any = None, method: int = 100) -> None:
        self._host = np.random.RandomState(seed)

    def seed(self, seed: Any = None) -> None:
        self._host.seed(seed)

    def shuffle(self, a: Any) -> None:
        functions.shuffle(self._host, a)


class BitGenerator:
    """`cupy.random.BitGenerator`."""

    def __init__(self, seed: Any = None) -> None:
        self._host = np.random.PCG64(seed)


class XORWOW(BitGenerator):
    """`cupy.random.XORWOW`."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        super().__init__(seed)


class MRG32k3a(XORWOW):
    """`cupy.random.MRG32k3a`."""


class Philox4x3210(XORWOW):
    """`cupy.random.Philox4x3210`."""


_state = RandomState()


def default_rng(seed: Any = None) -> Generator:
    if isinstance(seed, Generator):
        return seed
    return Generator(seed if isinstance(seed, BitGenerator) else XORWOW(seed))
