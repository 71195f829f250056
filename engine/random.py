"""Random numbers: `Generator`, `manual_seed`, RNG state. In host memory a generator is a PCG64 stream; for a GPU it is
a seed and an offset, from which the kernels there make their values (Philox4x32-10).
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.memory import backend
from engine.rules.device import CPU, device
from engine.rules.dtypes import uint8
from engine.rules.spec import spec_of
from engine.tensor import Tensor

_STATE_BYTES = 72  # magic, PCG64 state and increment (16 each), cached uint32 and its flag, seed
_DEFAULT_SEED = 67280421310721


class Generator:
    """A stream of random numbers with a seed and a state that can be saved.

    `Generator("cuda")` is a `DeviceGenerator`. Raises: RuntimeError for it where there is no GPU.
    """

    def __new__(cls, device: Any = "cpu") -> "Generator":
        if cls is Generator and device != "cpu" and _device(device).type == "cuda":
            backend.require_cupy()
            return object.__new__(DeviceGenerator)
        return object.__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        self.device = CPU if device == "cpu" else _device(device)
        self.manual_seed(_DEFAULT_SEED)

    @heard
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

    @heard
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


class DeviceGenerator(Generator):
    """The random numbers of a GPU: a seed and an offset, which counts the 32-bit words each index has drawn.

    Nothing of it is in device memory, so that seeding and saving wait for nothing. The state is PyTorch's: 16 bytes,
    the seed and the offset.

    A CUDA graph replays its kernels with the arguments they were captured with. Between `begin_capture` and
    `end_capture` launches therefore read seed and offset from an array, which is written before a replay
    (`engine.ops.random.cuda.fills.set_captured`).
    """

    def __init__(self, device: Any = "cuda") -> None:
        self._captured: Any = None  # the array, while a graph is being captured
        self._inside = 0  # the offset counted from there
        super().__init__(device)

    @property
    def numpy(self) -> Any:  # type: ignore[override]
        """Raises: RuntimeError; values for host memory come from a generator there."""
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")

    def manual_seed(self, seed: int) -> "DeviceGenerator":
        """Starts again from `seed`."""
        if not isinstance(seed, int):
            raise TypeError(f"manual_seed: expected an int, got {type(seed).__name__}")
        self._refuse_capture("manual_seed")
        self._seed = seed % 2**64
        self._offset = 0
        return self

    def get_offset(self) -> int:
        """Words drawn so far."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Goes on from another place. Raises: RuntimeError for what is no multiple of 4."""
        if offset % 4:
            raise RuntimeError(f"offset must be a multiple of 4, got {offset}")
        self._refuse_capture("set_offset")
        self._offset = offset

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor (16 bytes) in host memory."""
        array = np.frombuffer(np.array([self._seed, self._offset], np.uint64).tobytes(), np.uint8).copy()
        return Tensor(array, spec_of(array.shape, None, uint8))

    def set_state(self, new_state: Tensor) -> "DeviceGenerator":
        """Restores what `get_state` returned. Raises: RuntimeError for anything else."""
        raw = new_state.numpy().tobytes() if isinstance(new_state, Tensor) and new_state.device is CPU else b""
        if len(raw) != 16:
            raise RuntimeError(
                f"RNG state is wrong size: expected the uint8 tensor of 16 bytes that get_state returned, got "
                f"{new_state!r}"
            )
        seed, offset = map(int, np.frombuffer(raw, np.uint64))
        self.manual_seed(seed)
        self.set_offset(offset)
        return self

    def draw(self, calls: int) -> tuple[np.uint64, np.uint64, np.uint64]:
        """Takes offsets for one launch, in which an index calls `philox` so many times.

        Returns the launch's arguments for `draws_from` (engine/kernels/cuda/philox.cuh): the address of captured state
        or 0, seed, offset.
        """
        if self._captured is not None:
            begin = self._inside
            self._inside += calls
            return np.uint64(backend.address(self._captured)), np.uint64(0), np.uint64(begin)
        begin = self._offset // 4
        self._offset += 4 * calls
        return np.uint64(0), np.uint64(self._seed), np.uint64(begin)

    def place(self) -> Any:
        """What `return_to` needs to draw the same again; unlike a state it can be had while a graph is captured."""
        return self.get_state() if self._captured is None else self._inside

    def return_to(self, place: Any) -> None:
        """Draws from a `place` again."""
        if isinstance(place, int):
            if self._captured is None:
                raise RuntimeError("random numbers of a CUDA graph's capture can be drawn again in that capture only")
            self._inside = place
        else:
            self.set_state(place)

    def begin_capture(self) -> None:
        """Until `end_capture`, launches read seed and offset from device memory. Call it before the capture begins."""
        self._refuse_capture("begin_capture")
        xp = backend.array_module(self.device)
        with xp.cuda.Device(self.device.index):
            self._captured = xp.zeros(2, np.uint64)
        self._inside = 0

    def end_capture(self) -> tuple[Any, int]:
        """What a replay needs: the array (which the graph's owner keeps) and how many offsets a replay takes."""
        captured, self._captured = self._captured, None
        return captured, self._inside

    def _refuse_capture(self, call: str) -> None:
        if self._captured is not None:
            raise RuntimeError(
                f"{call}: the generator of {self.device} is in use by a CUDA graph that is being captured"
            )


def _device(value: Any) -> device:
    return device(value)


default_generator = Generator()
_device_generators: dict[int, DeviceGenerator] = {}
_device_seed = _DEFAULT_SEED


def device_generator(index: int) -> DeviceGenerator:
    """The default generator of a GPU. It is made when first asked for, with the seed that all of them were given."""
    found = _device_generators.get(index)
    if found is None:
        found = _device_generators[index] = DeviceGenerator(f"cuda:{index}")
        found.manual_seed(_device_seed)
    return found


def generator_of(where: device, generator: Generator | None) -> DeviceGenerator:
    """The generator that draws for a GPU: the one that is given, or its default one.

    Raises: RuntimeError for one of another device.
    """
    if generator is None:
        return device_generator(where.index or 0)
    if not isinstance(generator, DeviceGenerator):
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{generator.device.type}'")
    if generator.device is not where:
        raise RuntimeError(f"Expected a generator of device {where} but found one of {generator.device}")
    return generator


def seed_devices(seed: int) -> None:
    """Seeds the default generators of all GPUs, those not yet in use among them."""
    _set_device_seed(seed)
    for generator in _device_generators.values():
        generator.manual_seed(seed)


def manual_seed(seed: int) -> Generator:
    """Seeds the default generators of all devices; returns the one of host memory."""
    seed_devices(int(seed))
    return default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the default generators from entropy; returns the seed."""
    drawn = default_generator.seed()
    seed_devices(drawn)
    return drawn


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Restores the default generator's state."""
    default_generator.set_state(new_state)


@dataclass(frozen=True)
class States:
    """Where the default generators are: that of host memory, those of GPUs by index, and the seed with which further
    GPUs begin (None: those are left alone).
    """

    host: Tensor
    gpus: dict[int, Any]
    seed: int | None

    def restore(self) -> None:
        """Sets the generators back."""
        default_generator.set_state(self.host)
        if self.seed is not None:
            _set_device_seed(self.seed)
            for index in _device_generators.keys() - self.gpus.keys():  # first used since
                _device_generators[index].manual_seed(self.seed)
        for index, place in self.gpus.items():
            device_generator(index).return_to(place)


def all_states(devices: Iterable[int | None] | None = None) -> States:
    """Where the default generators of host memory and of GPUs (all of them, or those listed) are."""
    indices = [index or 0 for index in (_device_generators if devices is None else devices)]
    places = {index: device_generator(index).place() for index in indices}
    return States(get_rng_state(), places, _device_seed if devices is None else None)


@contextmanager
def fork_rng(
    devices: Iterable[Any] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str = "cuda",
) -> Iterator[None]:
    """Inside the block random numbers are drawn as ever; after it all goes on as if none had been.

    devices: indices of the GPUs this holds for (default: all).
    """
    if not enabled:
        yield
        return
    indices = None if devices is None else [each if isinstance(each, int) else _device(each).index for each in devices]
    before = all_states(indices)
    try:
        yield
    finally:
        before.restore()


def _set_device_seed(seed: int) -> None:
    global _device_seed
    _device_seed = seed
