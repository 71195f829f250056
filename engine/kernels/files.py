"""Where kernels stand: in each family's `kernels.py`, or in the modules of its folder `kernels/`."""

import functools
from pathlib import Path

_ENGINE = Path(__file__).parents[1]
_PLACES = ("*/kernels.py", "*/*/kernels.py", "*/*/kernels/*.py")


def of_families() -> list[Path]:
    """The files of all families' kernels."""
    return sorted(path for place in _PLACES for path in _ENGINE.glob(place))


@functools.cache
def modules() -> tuple[str, ...]:
    """The names of the modules with kernels. Looked up once: each look goes through every folder of the engine."""
    names = [path.relative_to(_ENGINE.parent).with_suffix("").parts for path in of_families()]
    return tuple(".".join(parts) for parts in names if parts[-1] != "__init__")


def sources() -> list[Path]:
    """Every file that decides machine code: those of this folder and those of the families."""
    return sorted([*Path(__file__).parent.glob("*.py"), *of_families()])
