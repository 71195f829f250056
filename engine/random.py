"""Random numbers: `Generator`, `manual_seed`, RNG state. One PCG64 stream per generator, on the host."""

import secrets
from typing import Any

import numpy as np

from engine.device import CPU, device
from engine.dtypes import uint8
from engine.spec import spec_of
from engine.tensor import Tensor

_STATE_BYTES = 72  # magic, PCG64 state and increment (16 each), cached uint32 and its flag, seed


class Generator:
    """A stream of random numbers with a seed and a state that can be saved."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = CPU if device == "cpu" else _device(device)
        self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> "Generator":
        """Restarts the stream from `seed`."""
        if not isinstance(seed, int):
            raise TypeError(f"manual_seed: expected an int, got {type(seed).__name__}")
        self._seed = seed
        self.numpy = np.random.Generator(np.random.PCG64(seed % 2**64))
        return self

    def seed(self) -> int:
        """Seeds from the operating system's entropy; returns the seed."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """The seed the stream was last started from."""
        return self._seed

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor (72 bytes)."""
        state: Any = self.numpy.bit_generator.state
        words = state["state"]["state"].to_bytes(16, "little") + state["state"]["inc"].to_bytes(16, "little")
        words += (
            state["uinteger"].to_bytes(8, "little")
            + state["has_uint32"].to_bytes(8, "little")
            + (self._seed % 2**64).to_bytes(16, "little")
        )
        array = np.frombuffer(b"allPCG64" + words, np.uint8).copy()
        return Tensor(array, spec_of(array.shape, None, uint8))

    def set_state(self, new_state: Tensor) -> "Generator":
        """Restores what `get_state` returned.

        Raises: RuntimeError for anything else.
        """
        raw = new_state.numpy().tobytes() if isinstance(new_state, Tensor) else b""
        if len(raw) != _STATE_BYTES or raw[:8] != b"allPCG64":
            raise RuntimeError(
                f"set_state: expected the uint8 tensor of {_STATE_BYTES} bytes that get_state returned, got "
                f"{new_state!r}"
            )
        numbers = [
            int.from_bytes(raw[low:high], "little") for low, high in ((8, 24), (24, 40), (40, 48), (48, 56), (56, 72))
        ]
        self.manual_seed(numbers[4])
        self.numpy.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": numbers[0], "inc": numbers[1]},
            "uinteger": numbers[2],
            "has_uint32": numbers[3],
        }
        return self


def _device(value: Any) -> device:
    return device(value)


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seeds the default generator; returns it."""
    return default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the default generator from entropy; returns the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Restores the default generator's state."""
    default_generator.set_state(new_state)
