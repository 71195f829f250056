"""Sample inputs for every operator of the registry: `SAMPLES[operator]` is a list of calls with arrays to make them on.

An operator that is missing here fails tests/engine/test_operators.py. A sample whose result carries no gradient says so
(`differentiable=False`), as does one whose second derivative is not checked (`twice=False`). A new operator gets its
samples in the file of its family: elementwise, reductions, views, indexing, products, networks, complex_numbers; those
without elements may stand in empty.
"""

from collections.abc import Iterator

from engine.calls.namespaces import OPERATORS
from tests.op_samples import (  # noqa: F401 - fill the table
    complex_numbers,
    elementwise,
    empty,
    indexing,
    networks,
    products,
    reductions,
    views,
)
from tests.op_samples.empty import REFUSED as REFUSED
from tests.op_samples.table import SAMPLES as SAMPLES
from tests.op_samples.table import Sample as Sample


def names() -> Iterator[str]:
    """Every operator there is."""
    yield from sorted(OPERATORS.keys() | SAMPLES.keys())
