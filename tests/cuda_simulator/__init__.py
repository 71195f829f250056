"""A simulated GPU: a stand-in for CuPy on which everything for device "cuda" runs without one.

`install()` puts it in place of `cupy`; `uninstall()` takes it away. Its arrays are no NumPy arrays and refuse to become
ones silently, it has CuPy's names and parameters only (`tests/data/cupy_api.json`), and it finds what a GPU would
punish rarely: accesses that nothing orders (races.py), memory used after its end, synchronisation nobody asked for
(`counters`). Work runs at once, on the CPU; no time it takes says anything about a GPU.

    import tests.cuda_simulator as simulator
    simulator.install(devices=2)
    with simulator.counters() as count:
        ...
    assert count.synchronizations == 0
"""

import gc

from engine.autograd import places
from engine.memory import backend
from tests.cuda_simulator import calls as _calls
from tests.cuda_simulator import cublas as _cublas
from tests.cuda_simulator import ipc as _ipc
from tests.cuda_simulator import kernels as _kernels
from tests.cuda_simulator import memory as _memory
from tests.cuda_simulator import module as _module
from tests.cuda_simulator import mpi as _mpi
from tests.cuda_simulator import pinned as _pinned
from tests.cuda_simulator import pools as _pools
from tests.cuda_simulator import races
from tests.cuda_simulator import runtime as _runtime
from tests.cuda_simulator import streams as _streams
from tests.cuda_simulator.counters import counters as counters
from tests.cuda_simulator.races import RaceError as RaceError
from tests.cuda_simulator.raw import read_only as read_only
from tests.cuda_simulator.raw import touches as touches
from tests.cuda_simulator.raw import write_only as write_only

GIGABYTE = 1 << 30
_installed = False
_cublas_library = backend.cublas_library


def install(devices: int = 2, memory: int = 16 * GIGABYTE) -> None:
    """Puts the stand-in in place of `cupy`, with `devices` fresh devices of `memory` bytes each."""
    global _installed
    gc.collect(1)
    _streams.reset(devices)
    _memory.reset(memory)
    _pools.reset()
    _pinned.reset()
    _ipc.reset()
    _runtime.reset()
    _calls._fresh.clear()
    _kernels.settings.allocations = _pools.allocations
    _module.put_in_place()
    _mpi.put_in_place()
    backend._cupy = None
    backend.require_cupy()
    backend.cublas_library = lambda: _cublas.library
    _installed = True


def uninstall() -> None:
    """`cupy` is what is installed, or missing, again.

    Raises: RaceError for a race that was found and whose error somebody swallowed.
    """
    global _installed
    if not _installed:
        return
    _installed = False
    backend._cupy = None
    backend.cublas_library = _cublas_library
    places.in_use, places._last = False, None
    _module.take_away()
    _mpi.take_away()
    found = list(dict.fromkeys(races.found))
    races.found.clear()
    if found:
        raise RaceError("\n".join(found))


def installed() -> bool:
    """Whether the stand-in is in place."""
    return _installed
