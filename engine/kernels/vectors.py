"""The vector registers of this CPU, and what kernels keep in them."""

import functools

VECTOR = 64  # elements that `engine.kernels.jit.sum_vectors` handles at once


@functools.cache
def vector_bytes() -> int:
    """Bytes of the CPU's vector registers: 64 where it has 32 such registers (AVX-512), else 32 or 16."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx2") else 16


def tile_prices() -> dict[int, float]:
    """The numbers of rows that a tile may have on this CPU, with its cost in the time of one row of a big tile.

    CPUs with 16 registers could not hold a bigger one than 4.
    """
    return {14: 14.0, 8: 9.0, 7: 8.0, 4: 6.0, 1: 3.0} if vector_bytes() == 64 else {4: 4.0, 1: 2.0}
