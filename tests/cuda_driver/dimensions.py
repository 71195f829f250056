"""One text for arrays of up to `MOST` dimensions.

CuPy writes an elementwise or reduction kernel anew for each number of dimensions of each of its arrays, and for those
that lie in one piece: of 3000 kernels of the tests 2200 are a text of others with other numbers. Each is compiled once,
for arrays of `MOST` dimensions anywhere in memory, and the driver appends dimensions of one element to arrays that have
fewer (source/driver.cpp).
"""

import re

MOST = 4
_KERNEL = re.compile(r'extern "C" __global__ void \w+\(([^()]*)\)')
_ARRAY = re.compile(r"CArray<(.+?), (\d+), [01], ([01])>")
_INDEXER = re.compile(r"CIndexer<(\d+), ([01])>")
# What tells a kernel how many dimensions there are.
_ASKS = re.compile(r"\.(?:ndim\b|shape\(|strides\()")


def widened(source: str) -> tuple[str, str]:
    """A kernel for arrays of `MOST` dimensions, and for each of its parameters how many the caller's array or indexer
    has, -1 for what is neither. A kernel that has more dimensions, or asks for their number, and a source of several
    kernels, is left as it is, with nothing said of its parameters.
    """
    kernels = _KERNEL.findall(source)
    numbers = [int(found.group(2)) for found in _ARRAY.finditer(source)]
    numbers += [int(found.group(1)) for found in _INDEXER.finditer(source)]
    if len(kernels) != 1 or "CIndexer" not in source or max(numbers) > MOST or _ASKS.search(source):
        return source, ""
    parameters = _INDEXER.sub(r"@\1", _ARRAY.sub(r"@\2", kernels[0])).split(",")
    found = [re.search(r"@(\d+)", each) for each in parameters]
    if sum(each is not None for each in found) != len(numbers):  # there are others than parameters
        return source, ""
    wide = _INDEXER.sub(rf"CIndexer<{MOST}, \2>", _ARRAY.sub(rf"CArray<\1, {MOST}, 0, \3>", source))
    return wide, " ".join(each.group(1) if each else "-1" for each in found)
