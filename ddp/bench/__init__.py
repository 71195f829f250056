"""How fast ranks sum: every transport, beside MPI's own Allreduce.

    ddprun -n 2 -m ddp.bench                        # 1 KiB to 256 MiB, a table as of nccl-tests
    ddprun -n 2 -m ddp.bench --json --max-bytes 64M # one JSON line a figure
    ddprun -n 4 -m ddp.bench --plot bandwidth.png   # log-log; needs matplotlib
    ddprun -n 4 -m ddp.bench --plot bandwidth.html  # a page to open in a browser; needs plotly
    ddprun -n 2 -m ddp.bench --device cuda          # buckets on GPUs, beside NCCL's own all-reduce and a plain copy

A round: each rank rewrites its buffer, all meet in a barrier, each takes the time until it has the sum; the slowest
rank counts. Seconds are the median over the rounds. They come in blocks that take turns with those of the other
transports, so that whatever else the machine does hits all alike (over 64 MiB one transport comes after the other, for
the sake of memory); the first two rounds of a block, which find the caches as the others left them, do not count.

Buffers are the transport's own memory, as DistributedDataParallel's are, in which the sum replaces the addends. MPI's
own Allreduce has a private array and MPI.IN_PLACE, and memory management as in a program of its own: what
`engine.memory.allocator` does for training is undone (it would make Open MPI 5.0.11 faster where it takes temporary
memory: 64 MiB 16 to 9 ms). Algorithm bandwidth is bytes / seconds; bus bandwidth is that times 2 (n - 1) / n, what has
to travel at least, and does not depend on the number n of ranks.

On GPUs a round ends when the device is through with it. `device_copy` is a copy from one array to another, by all ranks
at the same time. `memory_GBps` of the JSON lines is what memory has to read and write in all, 2 bytes a byte and rank
for a copy and for `cuda_ipc` alike, so that the two can be compared where ranks share a GPU.
"""

from ddp.bench.figures import Figure, plot, size_in_words
from ddp.bench.sums import main, measure, parse_bytes, sizes_between

__all__ = ["Figure", "main", "measure", "parse_bytes", "plot", "size_in_words", "sizes_between"]
