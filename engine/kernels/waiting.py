"""What happens while kernels are compiled: the user is told, and who would only wait compiles what comes next."""

import sys
from pathlib import Path

# A program that has come to the kernel on the left will come to those on the right, in this order. Between forward and
# backward the names tell. Only processes that wait for another one's kernel compile ahead, so a wrong guess costs
# little: the digits' 13 kernels take two processes 3.2 s, and one of them 5.
_NEXT = {
    "correlate.pad": ("correlate.correlate", "correlate.weight_sums"),
    "correlate.correlate": ("correlate.weight_sums",),
    "linear.add_bias": ("linear.column_sums", "loss.cross_entropy_forward", "loss.cross_entropy_backward"),
    "pool.max_pool_channels_last": ("loss.cross_entropy_forward", "linear.add_bias", "linear.column_sums"),
    "loss.cross_entropy_forward": ("linear.column_sums",),
}

_speaks = True
_told = False


def speak(allowed: bool) -> None:
    """Whether `tell` prints here: of a job's ranks only the first does."""
    global _speaks
    _speaks = allowed


def tell(count: int, place: Path | None) -> None:
    """One line on standard error, once a process: kernels are being compiled, at least so many."""
    global _told
    if _told or not _speaks:
        return
    _told = True
    kept = f"they are kept in {place.parent}, so that it happens once" if place else "they cannot be kept"
    kernels = "1 kernel" if count == 1 else f"{count} kernels"
    print(
        f"allstride: compiling {kernels} for this CPU, and others when the program comes to them; {kept}",
        file=sys.stderr,
        flush=True,
    )


def next_after(name: str, known: set[str]) -> list[str]:
    """Those of the known kernels that a program will probably need after this one, the likeliest first."""
    own = [f"{name}_backward", f"{name.removesuffix('_forward')}_backward"]
    found = [*_NEXT.get(name, ()), *own]
    further = [f"{one.removesuffix('_forward')}_backward" for one in found]
    return [one for one in dict.fromkeys((*found, *further)) if one in known and one != name]
