"""What happens while kernels are compiled: the user is told, and who would only wait compiles what comes next."""

import atexit
import sys
import threading
from pathlib import Path

# What programs come to, in their order; between forward and backward the names tell as well. A process that has come
# to one of these kernels has those behind it compiled, by others of its host or by a copy of itself (ahead.py). A wrong
# guess costs some work on a processor that would have been idle.
_COURSES = (
    # of several ranks: see ddp.transport.shared
    ("reduce.slices.sum_slices", "reduce.slices.sum_when_there", "reduce.slices.lay_down"),
    ("conv.packing.repack_row_major", "conv.layout.pad"),
    (
        *("conv.packing.repack_strided", "conv.layout.pad", "conv.correlate.correlate", "activation.piecewise.relu"),
        *("conv.correlate.weight_sums", "activation.piecewise.relu_backward"),
    ),
    ("conv.winograd.widen", "conv.winograd.correlate"),
    (
        *("conv.correlate.correlate", "pooling.max_pool.channels_last_forward", "matmul.bias.add_bias"),
        *("loss.cross_entropy_forward", "loss.cross_entropy_backward", "matmul.bias.column_sums"),
        *("pooling.max_pool.channels_last_backward", "optim.adam"),
    ),
)

_A_MOMENT = 0.5  # seconds in which a first kernel that leads to no other may be followed by one that does

_speaks = True
_told = False
_expected = 0
_timer: threading.Timer | None = None


def speak(allowed: bool) -> None:
    """Whether `tell` prints here: of a job's ranks only the first does."""
    global _speaks
    _speaks = allowed


def tell(count: int, place: Path | None) -> None:
    """One line on standard error, once a process: kernels are being compiled, probably so many.

    It comes at once where more than one is known to come, else after a moment, with what is known by then.
    """
    global _expected, _timer
    if _told or not _speaks:
        return
    _expected = max(_expected, count)
    if count > 1:
        _say(place)
    elif _timer is None:
        _timer = threading.Timer(_A_MOMENT, _say, (place,))
        _timer.daemon = True
        _timer.start()
        atexit.register(_say, place)  # for a program that ends before


def _say(place: Path | None) -> None:
    global _told
    if _told:
        return
    _told = True
    kept = f"they are kept in {place.parent}, so that it happens once" if place else "they cannot be kept"
    kernels = "1 kernel" if _expected == 1 else f"{_expected} kernels"
    print(
        f"allstride: compiling about {kernels} for this CPU; {kept}",
        file=sys.stderr,
        flush=True,
    )


def next_after(name: str) -> list[str]:
    """The kernels that a program will probably need after this one, in its order. Not all of them need exist."""
    found: list[str] = []
    reached = {name}
    for course in _COURSES:
        first = min((course.index(one) for one in reached if one in course), default=len(course))
        reached.update(course[first:])
        found += course[first:]
    backward = [f"{one.removesuffix('_forward')}_backward" for one in (*found, name)]
    return [one for one in dict.fromkeys((*found, *backward)) if one != name]
