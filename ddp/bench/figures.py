"""What was measured: figures, their bandwidths, as a table and as a picture."""

from typing import Any, NamedTuple

LIBRARY = "mpi_library"  # MPI's own Allreduce
NCCL_LIBRARY = "nccl_library"  # NCCL's own all-reduce
LIBRARIES = (LIBRARY, NCCL_LIBRARY)
COPY = "device_copy"
_LABELS = 10  # of sizes under a plot, at most


class Figure(NamedTuple):
    """One line of the result."""

    transport: str
    bytes: int
    ranks: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        algorithm = self.bytes / self.seconds / 1e9
        memory = 2 * self.ranks * algorithm  # of all ranks together
        bus = memory / self.ranks if self.transport == COPY else algorithm * 2 * (self.ranks - 1) / self.ranks
        found = {**self._asdict(), "algbw_GBps": round(algorithm, 4), "busbw_GBps": round(bus, 4)}
        return found | ({"memory_GBps": round(memory, 4)} if self.transport in (COPY, "cuda_ipc") else {})


def plot(figures: list[Figure], path: str) -> None:
    """Bus bandwidth over size, log-log: a colour for each transport."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for number, name in enumerate(dict.fromkeys(figure.transport for figure in figures)):
        line = [figure for figure in figures if figure.transport == name]
        axes.loglog(
            [figure.bytes for figure in line],
            [figure.as_json()["busbw_GBps"] for figure in line],
            marker="o",
            markersize=4,
            color=f"C{number}",
            label=name,
        )
    sizes = sorted({figure.bytes for figure in figures})
    shown = sizes[:: -(-len(sizes) // _LABELS)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [size_in_words(size) for size in shown])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="size", ylabel="bus bandwidth, GB/s", title=f"allreduce over {figures[0].ranks} ranks")
    axes.grid(visible=True, which="both", alpha=0.3)
    drawing.legend(loc="outside right upper", frameon=False)
    drawing.savefig(path, dpi=120)
    plt.close(drawing)


def size_in_words(nbytes: int) -> str:
    """In the largest unit that divides it: 64 KiB, 25 MiB, 1000 B."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


HEADING = """\
#      size       count    transport     time   algbw   busbw
#       (B)  (elements)                  (us)  (GB/s)  (GB/s)"""


def table_row(figure: Figure) -> str:
    """A line of the table, its columns as those of nccl-tests."""
    what, values = f"{figure.bytes:>11}  {figure.bytes // 4:>10}  {figure.transport:>11}", figure.as_json()
    return f"{what}{figure.seconds * 1e6:>9.1f}  {values['algbw_GBps']:>6.2f}  {values['busbw_GBps']:>6.2f}"
