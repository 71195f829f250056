"""The vector registers of this CPU, and what kernels keep in them."""

import functools
import os
import platform

VECTOR = 64  # elements that `engine.kernels.language.sum_vectors` handles at once
LINE = 64  # bytes that `engine.kernels.language.add_products` sums apart, on every CPU

RUNS = 4  # outputs that `engine.kernels.language.correlate_run` computes at once, where there are as many
MAXIMA = (4, 2, 1)  # vectors that `engine.kernels.language.largest_run` has at once, with where they are from


@functools.cache
def vector_bytes() -> int:
    """Bytes of the vector registers that kernels are compiled for: 64 where it has AVX-512, else 32 or 16.

    ``NUMBA_CPU_FEATURES`` can name fewer than the CPU has.
    """
    from llvmlite import binding

    told = os.environ.get("NUMBA_CPU_FEATURES")
    features = binding.get_host_cpu_features()
    if told is not None:
        features = {name.strip()[1:]: name.strip()[0] == "+" for name in told.split(",") if name.strip()}
    return 64 if features.get("avx512f") else 32 if features.get("avx2") else 16


def vector_registers() -> int:
    """How many vector registers such a CPU has: AVX-512 and Arm's NEON 32, others 16."""
    return 32 if vector_bytes() == 64 or platform.machine() in ("aarch64", "arm64") else 16


def tile_prices(vectors: int) -> dict[int, float]:
    """The numbers of rows that a tile of one or two vectors may have on this CPU, with its cost in the time of one row
    of a big tile. Those of one vector are all those of two, and more.

    Sums take all registers but four: the vectors of the right factor, one number of the left in all lanes, one to
    spare. A row less than the biggest costs what it saves only while eight sums are under way, which is what two units
    with a latency of four hide.
    """
    if vector_registers() == 32:
        return {14: 14.0, 8: 9.0, 7: 8.0, 4: 6.0, 1: 3.0}
    return {6: 6.0, 4: 4.5, 2: 3.5, 1: 2.5} if vectors == 2 else {12: 12.0, 6: 6.5, 4: 5.5, 2: 4.0, 1: 3.0}


def each_prices() -> dict[int, float]:
    """The same for tiles whose factors both are vectors: with two for the right factor, 16 registers are full. Public
    models have lines of 7, 14, 28 and 56 pixels, and windows of 3, 5 and 7.
    """
    return {7: 7.0, 5: 5.5, 3: 4.0, 1: 3.0}


def run_prices(outputs: int) -> dict[int, float]:
    """The same for the vectors of a run that is multiplied by a number for each of one output or of `RUNS` together."""
    if outputs == 1:
        return tile_prices(1)
    return {6: 6.0, 3: 3.5, 1: 2.0} if vector_registers() == 32 else {2: 2.0, 1: 1.5}


def product_outputs() -> int:
    """Of how many outputs products with the same run are summed together, where there are as many."""
    return 3 if vector_bytes() == LINE else 2


def product_prices(outputs: int) -> dict[int, float]:
    """The same for the sums of a run's products with those of one output or of `product_outputs`: with `LINE` bytes for
    each, and four that hide the latency of an addition. Windows have 9, 25 and 49 elements.
    """
    if outputs > 1:
        return {9: 9.0, 7: 7.5, 5: 5.5, 3: 3.5, 1: 2.0} if vector_bytes() == LINE else {3: 3.0, 1: 2.0}
    if vector_bytes() == LINE:
        return {9: 9.5, 7: 7.5, 5: 5.5, 3: 4.5, 1: 4.0}
    return {6: 12.5, 5: 10.5, 4: 8.5, 3: 6.5, 1: 4.0}
