"""What kernels are written in besides Python: the kinds of their parameters, and operations that exist only inside of
them, for which `engine.kernels.jit` puts in those of `intrinsics`, `run` and `tile`.

An index or a bound of a slice is never negative, and nothing checks that at run time.
tests/engine/kernels/test_bounds.py does, of indices in kernels that are compiled with NUMBA_BOUNDSCHECK=1.
"""

from typing import Annotated, Any

import numpy as np

# Parameters of kernels: arrays of the dtype being compiled (T) or of a fixed one, never written (may be read-only) or
# written, C-contiguous or of any strides. Plain float, int, bool and Pair stand for float64, int64, boolean and two
# int64.
Read1 = Annotated[np.ndarray, "T", 1, "read"]
Read2 = Annotated[np.ndarray, "T", 2, "read"]
Read3 = Annotated[np.ndarray, "T", 3, "read"]
Read4 = Annotated[np.ndarray, "T", 4, "read"]
Read5 = Annotated[np.ndarray, "T", 5, "read"]
Write1 = Annotated[np.ndarray, "T", 1, "write"]
Write2 = Annotated[np.ndarray, "T", 2, "write"]
Write3 = Annotated[np.ndarray, "T", 3, "write"]
Write4 = Annotated[np.ndarray, "T", 4, "write"]
Write5 = Annotated[np.ndarray, "T", 5, "write"]
ReadStrided2 = Annotated[np.ndarray, "T", 2, "read strided"]
ReadStrided5 = Annotated[np.ndarray, "T", 5, "read strided"]
WriteStrided2 = Annotated[np.ndarray, "T", 2, "write strided"]
WriteStrided5 = Annotated[np.ndarray, "T", 5, "write strided"]
ReadFloat64 = Annotated[np.ndarray, "float64", 1, "read"]
ReadInt64 = Annotated[np.ndarray, "int64", 1, "read"]
ReadUint8 = Annotated[np.ndarray, "uint8", 1, "read"]
ReadInt32 = Annotated[np.ndarray, "int32", 1, "read"]
WriteInt32 = Annotated[np.ndarray, "int32", 1, "write"]
WriteFloat64 = Annotated[np.ndarray, "float64", 2, "write"]

Pair = tuple[int, int]


def real(value: Any) -> Any:
    """Round to the dtype being compiled. Only inside kernels and helpers."""
    raise RuntimeError(f"real({value}) exists only inside compiled kernels")


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, the same on every CPU. Only inside kernels and helpers."""
    raise RuntimeError(f"fma({a}, {b}, {c}) exists only inside compiled kernels")


def array_at(address: int, start: int, size: int, like: np.ndarray) -> Any:
    """Flat array of ``size`` elements, ``start`` elements after an address, dtype of ``like``. Only inside kernels."""
    raise RuntimeError(f"array_at({address}, {start}, {size}, {like.dtype}) exists only inside compiled kernels")


def array_of(address: int, size: int, kind: Any) -> Any:
    """The same at an address, of a constructor's dtype: ``real``, ``np.int64``, ... Only inside kernels."""
    raise RuntimeError(f"array_of({address}, {size}, {kind}) exists only inside compiled kernels")


def sum_vectors(
    sources: np.ndarray, weights: np.ndarray, destinations: np.ndarray, begin: int, like: np.ndarray, divisor: float
) -> None:
    """The weighted sum of `VECTOR` elements of several arrays, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError(f"sum_vectors({sources}, ..., {begin}, ..., {divisor}) exists only inside compiled kernels")


def number_at(address: int) -> int:
    """The int64 at an address that another process may be writing, with all that it wrote before. Only inside kernels
    and helpers.
    """
    raise RuntimeError(f"number_at({address}) exists only inside compiled kernels")


def relax() -> None:
    """Tell the processor that this thread only looks again, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError("relax() exists only inside compiled kernels")


def announce(address: int, number: int) -> None:
    """Write an int64 to an address that another process reads, after all that was written before. Only inside kernels
    and helpers.
    """
    raise RuntimeError(f"announce({address}, {number}) exists only inside compiled kernels")


def add_at(address: int, number: int) -> int:
    """Add to an int64 at an address to which other threads add, too; what is there then. Only inside kernels."""
    raise RuntimeError(f"add_at({address}, {number}) exists only inside compiled kernels")


def read_byte(descriptor: int) -> int:
    """Sleep until a byte comes from a file; 1, or less for an error or the end. Only inside kernels."""
    raise RuntimeError(f"read_byte({descriptor}) exists only inside compiled kernels")


def stream(target: int, source: int, lines: int) -> None:
    """Copy memory past the caches, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError(f"stream({target}, {source}, {lines}) exists only inside compiled kernels")


def flat(array: np.ndarray) -> Any:
    """The elements of a C-contiguous array along one axis, in the same memory. Only inside kernels and helpers."""
    raise RuntimeError(f"flat({array}) exists only inside compiled kernels")


def lines(array: np.ndarray) -> Any:
    """A C-contiguous array as a matrix of what lies along its last axis, in the same memory. Only inside kernels and
    helpers.
    """
    raise RuntimeError(f"lines({array}) exists only inside compiled kernels")


def address(array: np.ndarray) -> Any:
    """Where an array's first element lies. Only inside kernels and helpers."""
    raise RuntimeError(f"address({array}) exists only inside compiled kernels")


def bits(number: Any) -> Any:
    """The integer of the same size with the bits of a float. Only inside kernels and helpers."""
    raise RuntimeError(f"bits({number}) exists only inside compiled kernels")


def from_bits(pattern: Any) -> Any:
    """The float of the same size with the bits of an integer. Only inside kernels and helpers."""
    raise RuntimeError(f"from_bits({pattern}) exists only inside compiled kernels")


def multiply_tile(rows: int, wide: bool, like: np.ndarray, *places_steps_and_counts: Any) -> None:
    """Sums of products of a tile in registers, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"multiply_tile({rows}, {wide}, ...) exists only inside compiled kernels")


def multiply_each(rows: int, wide: bool, like: np.ndarray, *places_steps_and_counts: Any) -> None:
    """The same of two vectors, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"multiply_each({rows}, {wide}, ...) exists only inside compiled kernels")


def correlate_run(vectors: int, outputs: int, like: np.ndarray, *places_steps_and_count: Any) -> None:
    """Sums of products along a run of pixels, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"correlate_run({vectors}, {outputs}, ...) exists only inside compiled kernels")


def add_products(rows: int, outputs: int, like: np.ndarray, *places_steps_and_count: Any) -> None:
    """Sums of a run's products with others, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"add_products({rows}, {outputs}, ...) exists only inside compiled kernels")


def largest_run(vectors: int, like: np.ndarray, *places_and_count: Any) -> None:
    """The largest of each window along a run of pixels, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"largest_run({vectors}, ...) exists only inside compiled kernels")


def move(number: int, step: int, like: np.ndarray, target: int, source: int) -> None:
    """A few elements in one vector, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"move({number}, {step}, ..., {target}, {source}) exists only inside compiled kernels")


def transpose_tile(side: int, like: np.ndarray, *places_and_steps: Any) -> None:
    """A square block turned around in registers, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"transpose_tile({side}, ...) exists only inside compiled kernels")


def change_basis(which: int, like: np.ndarray, *places_and_steps: Any) -> None:
    """A square of vectors in another basis, see `engine.kernels.squares`. Only inside kernels."""
    raise RuntimeError(f"change_basis({which}, ...) exists only inside compiled kernels")


INTRINSICS = (
    *(fma, array_at, array_of, sum_vectors, number_at, announce, relax, add_at, read_byte, stream),
    *(flat, lines, address, bits, from_bits),
)
ON_TILES = (multiply_tile, multiply_each, transpose_tile)
ON_RUNS = (correlate_run, add_products, largest_run, move)
ON_SQUARES = (change_basis,)
