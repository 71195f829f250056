"""Where mpi4py cannot be imported: a module in its place with the names that this package asks for."""

import sys
from types import ModuleType


class _Type:
    """In the place of a class of mpi4py, of which there are no objects."""


def provide_mpi() -> None:
    """After this `from mpi4py import MPI` works. The names stand for operations and constants of `ddp.testing`."""
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError):  # not installed, or it cannot load an MPI library
        package, module = ModuleType("mpi4py"), ModuleType("mpi4py.MPI")
        for name in ("SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR"):
            setattr(module, name, name)
        for name, value in {
            "IN_PLACE": -1,
            "ANY_SOURCE": -1,
            "UNDEFINED": -2,
            "COMM_TYPE_SHARED": 0,
            "THREAD_SINGLE": 0,
            "THREAD_MULTIPLE": 3,
        }.items():
            setattr(module, name, value)
        for name in ("Intracomm", "Request", "Win", "Op"):
            setattr(module, name, type(name, (_Type,), {}))
        module.Query_thread = lambda: 0  # type: ignore[attr-defined]
        package.MPI = module  # type: ignore[attr-defined]
        sys.modules.update({"mpi4py": package, "mpi4py.MPI": module})
