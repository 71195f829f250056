"""Random numbers of the GPUs: seeding them, and saving and restoring where they are. Each has a default generator
(`engine.Generator("cuda")` makes others), which `engine.manual_seed` seeds, too.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine.cuda.devices import current_device, device_count, index_of, is_available
from engine.random import DeviceGenerator, device_generator, seed_devices
from engine.tensor import Tensor


class _DefaultGenerators(Sequence[DeviceGenerator]):
    """One a GPU, by index."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [device_generator(each) for each in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"default_generators: there are {len(self)} GPUs, asked for number {index}")
        return device_generator(index % len(self))

    def __iter__(self) -> Iterator[DeviceGenerator]:
        return map(device_generator, range(len(self)))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the GPU in use; without one nothing happens, so that scripts need not ask."""
    if is_available():
        device_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all GPUs; without one nothing happens."""
    if is_available():
        seed_devices(int(seed))


def seed() -> None:
    """Seeds the GPU in use from the operating system's entropy."""
    manual_seed(secrets.randbits(63))


def seed_all() -> None:
    """Seeds all GPUs with one number from the operating system's entropy."""
    manual_seed_all(secrets.randbits(63))


def initial_seed() -> int:
    """The seed of the GPU in use. Raises: RuntimeError where there is none, saying what is missing; as all below."""
    return device_generator(current_device()).initial_seed()


def get_rng_state(device: Any = "cuda") -> Tensor:
    """The state of a GPU's random numbers: a uint8 tensor of 16 bytes, seed and offset, in host memory."""
    return device_generator(_present(device)).get_state()


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Restores what `get_rng_state` returned."""
    device_generator(_present(device)).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """The states of all GPUs."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Restores what `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _present(device: Any) -> int:
    current_device()  # says what is missing where there is no GPU
    return index_of(device)
