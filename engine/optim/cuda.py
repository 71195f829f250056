"""Optimizer steps on many parameters at once: tables, options and launches of `optimizer.cu`.

Parameters and gradients are flat arrays of one dtype, equally long pair by pair; what a step changes besides parameters
is one flat array a name for all of them, in which each has its place. A step is two launches, whatever the number of
parameters, and leaves nothing on the host: how many steps there were, and all that follows from it, is on the device.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source, cuda_type
from engine.kernels.cuda.rows import NOTHING
from engine.memory import backend

Array = Any

ALGORITHMS = ("Sgd", "Adam", "Adamax", "NAdam", "RAdam", "Asgd", "Rprop", "RmsProp", "Adadelta", "Adagrad")
_TYPES = [(CUDA_TYPES[name], CUDA_TYPES[name]) for name in ("float32", "float64", "float16", "bfloat16")]
_TYPES += [("float16", "float"), ("bfloat16", "float")]
SOURCE = Source(
    "optim/optimizer.cu",
    ["advance", "update"],
    [{"ALGORITHM": name, "ELEMENT": element, "STATE": state} for name in ALGORITHMS for element, state in _TYPES],
    headers=["flat.cuh"],
    contract=False,
)

# As in optimizer.cu.
MOST_MEMBERS = 448
_MOST_STATES = 4
_COEFFICIENTS = 16
_CHUNK = 8192
_ALIGNMENT = 16  # elements

_NUMBERS = ("lr", "weight_decay", "eps", "a", "b", "c", "d", "e")
_FLAGS = ("lr_is_double", "maximize", "one", "other")
_OPTIONS = np.dtype(
    [*((name, np.float64) for name in _NUMBERS), ("lr_address", np.uint64), *((name, np.int32) for name in _FLAGS)]
)
_GRADIENTS = np.dtype([("addresses", np.uint64, MOST_MEMBERS)])
_STATES = np.dtype([("addresses", np.uint64, _MOST_STATES), ("master", np.uint64)])
_MEMBER = np.dtype([("parameter", np.uint64), ("size", np.int64), ("offset", np.int64)])


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each parameter's state begins in the flat arrays of the state, aligned, and how long these are."""
    ends = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    return ends[:-1], ends[-1]


class Members:
    """Parameters that are stepped together, with their state: tables in device memory, made once.

    parameters: at most 448 flat arrays. state: flat arrays in the order of the algorithm in optimizer.cu, None for one
    that is not there, laid out by `places`. master: the parameters in the dtype of the state, or None. steps float32
    (n,): how many updates each parameter has had, all the same; scalars: up to two arrays (n,) float32 of the
    algorithm. All are kept and changed in place.
    """

    def __init__(
        self,
        algorithm: str,
        parameters: Sequence[Array],
        state: Sequence[Array | None],
        steps: Array,
        scalars: Sequence[Array] = (),
        master: Array | None = None,
    ) -> None:
        cupy = backend.require_cupy()
        assert len(parameters) <= MOST_MEMBERS
        first = parameters[0]
        kept = next((each for each in (*state, master) if each is not None), first)
        macros = {"ALGORITHM": algorithm, "ELEMENT": cuda_type(first.dtype), "STATE": cuda_type(kept.dtype)}
        self._advance = SOURCE.get("advance", **macros)
        self._update = SOURCE.get("update", **macros)
        offsets, _ = places([array.size for array in parameters])
        members = np.zeros(len(parameters), _MEMBER)
        members["parameter"] = [backend.address(array) for array in parameters]
        members["size"] = [array.size for array in parameters]
        members["offset"] = offsets
        chunks = [(i, part) for i, array in enumerate(parameters) for part in range(-(-array.size // _CHUNK))]
        self._members = cupy.asarray(members.view(np.uint8))
        self._chunks = cupy.asarray(np.array(chunks, np.int32).reshape(-1, 2))
        self._coefficients = cupy.empty(_COEFFICIENTS, np.float64)
        self._steps = steps
        self._nothing = backend.constant(NOTHING)
        self._scalars = [*scalars, self._nothing, self._nothing][:2]
        self._kept = (parameters, state, master)
        states = np.zeros((), _STATES)
        states["addresses"][: len(state)] = [0 if each is None else backend.address(each) for each in state]
        states["master"] = 0 if master is None else backend.address(master)
        self._states = backend.constant(states)
        self._known: tuple[Any, ...] = ()
        self._options = backend.constant(np.zeros((), _OPTIONS))
        # What a launch passes by value it takes at once: one table serves all steps.
        self._table = backend.constant(np.zeros((), _GRADIENTS))
        # By struct, since an assignment of NumPy's looks at each number.
        self._packed_addresses: list[int] = []
        self._addresses = struct.Struct(f"{len(parameters)}Q")
        self._memory = memoryview(self._table.kept.reshape(1).view(np.uint8))
        self._count = backend.constant(np.int64(len(parameters)))
        self._blocks = (len(chunks),)

    def set_options(self, options: dict[str, Any]) -> None:
        """The options of the next updates: "lr", "weight_decay", "eps", "maximize", and those the algorithm names in
        optimizer.cu; "lr" may be a device array with one float32 or float64, which is read there.
        """
        known = tuple(options.values())
        if not isinstance(options["lr"], int | float):
            known = tuple([each if isinstance(each, int | float) else backend.address(each) for each in known])
        if known != self._known:
            # a new one: a launch that was captured keeps the old
            self._options, self._known = backend.constant(_packed(options)), known

    def point_at(self, gradients: list[int]) -> None:
        """Where each gradient of the next updates begins, in the order of the parameters; they are only read."""
        if gradients != self._packed_addresses:  # a pool gives the same memory in most steps
            self._addresses.pack_into(self._memory, 0, *gradients)
            self._packed_addresses = gradients

    def step(self, grad_scale: Array | None = None, found_inf: Array | None = None) -> None:
        """One update, queued on the current stream.

        grad_scale, found_inf: float32 with one element, read on the device: gradients are divided by the first, and
        nothing at all happens where the second is not 0.
        """
        scale = self._nothing if grad_scale is None else grad_scale
        found = self._nothing if found_inf is None else found_inf
        numbers = (self._options, self._steps, *self._scalars, self._count, self._coefficients, scale, found)
        self._advance((1,), (64,), numbers)
        if self._blocks[0]:
            tables = (self._table, self._states, self._members, self._chunks, self._coefficients, found)
            self._update(self._blocks, (256,), tables)


def _packed(options: dict[str, Any]) -> np.ndarray:
    packed = np.zeros((), _OPTIONS)
    for name, value in options.items():
        if name == "lr" and not isinstance(value, int | float):
            packed["lr_address"] = backend.address(value)
            packed["lr_is_double"] = value.dtype == np.float64
        else:
            packed[name] = value
    return packed
