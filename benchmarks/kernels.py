"""Time the fused kernels, NumPy in cache-sized blocks beside them and, with ``--peer``, PyTorch in turn with them.

    python benchmarks/kernels.py [--peer PYTHON_WITH_TORCH] [--rounds 15] [--only TEXT] [--start]

Prints one JSON line a case: median milliseconds, spread (10th to 90th percentile), and the ratio of each other side's
median to the kernel's. One thread everywhere. ``--start`` times instead Numba's import and every kernel's first call,
from a cold and from a warm disk cache.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from engine.ops.activation.kernels import piecewise
from engine.ops.activation.kernels import smooth as activation
from engine.ops.buckets import kernels as buckets
from engine.ops.conv import direct as conv_direct
from engine.ops.conv.kernels import columns as conv
from engine.ops.embedding import kernels as embedding
from engine.ops.loss import kernels as loss
from engine.ops.matmul.kernels import product
from engine.ops.norm.kernels import batch_norm
from engine.ops.norm.kernels import layer_norm as norm
from engine.ops.pooling.kernels import max_pool as pool
from engine.ops.reduce.kernels import slices as reduce
from engine.ops.shared.windows import ConvWindow
from engine.ops.softmax import kernels as softmax
from engine.optim import kernels as optimizer
from engine.rules.layout import channels_last

Sides = dict[str, Callable[[], object]]
Cases = Iterator[tuple[str, list[int], Sides]]
BLOCK = 1 << 16

PEER = """
import json, sys, time
import torch, torch.nn.functional as F
torch.set_num_threads(1)
aten = torch.ops.aten
def adamw(*sizes):
    parameters = [torch.randn(size, requires_grad=True) for size in sizes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True).step
def sgd(size):
    p = torch.randn(size, requires_grad=True)
    p.grad = torch.randn_like(p)
    return torch.optim.SGD([p], lr=1e-3, momentum=0.9, fused=True).step
def image(*shape, channels_last=True):
    x = torch.randn(*shape)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x
def make(case, arguments):
    if case == "adamw": return adamw(*arguments)
    if case == "sgd": return sgd(*arguments)
    if case == "sum_of_squares":
        x = torch.randn(*arguments)
        return lambda: torch.linalg.vector_norm(x)
    if case in ("max_pool", "max_pool_backward", "batch_norm", "batch_norm_backward", "col2im"):
        x = image(*arguments)
        if case == "col2im":
            u = F.unfold(x, 3, padding=1)
            return lambda: F.fold(u, x.shape[2:], 3, padding=1)
        if case.startswith("max_pool"):
            y, i = F.max_pool2d(x, 2, return_indices=True)
            if case == "max_pool": return lambda: F.max_pool2d(x, 2, return_indices=True)
            g = torch.ones_like(y)
            return lambda: aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i)
        w, zeros, ones = torch.randn(x.shape[1]), torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        y, m, r = torch.native_batch_norm(x, w, w, zeros, ones, True, 0.1, 1e-5)
        if case == "batch_norm": return lambda: torch.native_batch_norm(x, w, w, zeros, ones, True, 0.1, 1e-5)
        g = torch.randn_like(y)
        return lambda: aten.native_batch_norm_backward(g, x, w, zeros, ones, m, r, True, 1e-5, [True] * 3)
    if case == "product":
        a, b = torch.randn(arguments[0], arguments[1]), torch.randn(arguments[2], arguments[1])
        return lambda: a @ b.T
    if case == "convolution":
        batch, channels, size, outputs, window = arguments
        x, w = image(batch, channels, size, size), image(outputs, channels, window, window)
        return lambda: F.conv2d(x, w, padding=window // 2)
    if case == "embedding_backward":
        rows, width, table = arguments
        g, i = torch.randn(rows, width), torch.randint(0, table, (rows,))
        return lambda: aten.embedding_dense_backward(g, i, table, -1, False)
    x, g = torch.randn(*arguments), torch.randn(*arguments)
    if case == "gelu_tanh": return lambda: F.gelu(x, approximate="tanh")
    if case == "gelu_tanh_backward": return lambda: aten.gelu_backward(g, x, approximate="tanh")
    if case == "gelu": return lambda: F.gelu(x)
    if case == "gelu_backward": return lambda: aten.gelu_backward(g, x)
    if case == "relu_backward": return lambda: aten.threshold_backward(g, x, 0)
    if case == "softmax": return lambda: F.softmax(x, 1)
    y = F.softmax(x, 1)
    if case == "softmax_backward": return lambda: aten._softmax_backward_data(g, y, 1, torch.float32)
    w = torch.randn(x.shape[1])
    if case == "layer_norm": return lambda: torch.native_layer_norm(x, w.shape, w, w, 1e-5)
    if case == "layer_norm_backward":
        _, m, r = torch.native_layer_norm(x, w.shape, w, w, 1e-5)
        return lambda: aten.native_layer_norm_backward(g, x, w.shape, m, r, w, w, [True] * 3)
    t = torch.randint(0, x.shape[1], (x.shape[0],))
    if case == "cross_entropy": return lambda: F.cross_entropy(x, t)
    if case == "cross_entropy_backward":
        x.requires_grad_()
        l = F.cross_entropy(x, t)
        return lambda: torch.autograd.grad(l, x, retain_graph=True)
made = None
for line in sys.stdin:
    case, arguments, calls = json.loads(line)
    if made is None or made[0] != (case, arguments):
        with torch.no_grad() if case != "cross_entropy_backward" else torch.enable_grad():
            made = (case, arguments), make(case, arguments)
    run = made[1]
    if run is None:
        print("null", flush=True)
        continue
    started = time.perf_counter()
    for _ in range(calls):
        run()
    print((time.perf_counter() - started) / calls, flush=True)
"""


class Peer:
    """PyTorch in another Python, which times a case whenever it is asked."""

    def __init__(self, python: str):
        self.process = subprocess.Popen([python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, case: str, arguments: list[int], calls: int) -> float | None:
        """Seconds a call, or None for a case it does not have."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([case, arguments, calls]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def normal(*shape: int) -> np.ndarray:
    """Standard normal float32 numbers."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def adamw_in_blocks(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, scratch: np.ndarray) -> None:
    """The step of ``optimizer.adam`` in NumPy, 64 K elements at a time."""
    for start in range(0, p.size, BLOCK):
        part = slice(start, start + BLOCK)
        pb, gb, mb, vb = p[part], g[part], m[part], v[part]
        a = scratch[: pb.size]
        pb *= 1 - 1e-5
        np.subtract(gb, mb, out=a)
        a *= 0.1
        mb += a
        np.multiply(gb, gb, out=a)
        a *= 0.001
        vb *= 0.999
        vb += a
        np.sqrt(vb, out=a)
        a /= 0.03
        a += 1e-8
        np.divide(mb, a, out=a)
        a *= 1e-3
        pb -= a


def gelu_in_blocks(x: np.ndarray, out: np.ndarray) -> None:
    """GELU (tanh) in NumPy, 16 K elements at a time."""
    x, out = x.reshape(-1), out.reshape(-1)
    for start in range(0, x.size, BLOCK // 4):
        part = slice(start, start + BLOCK // 4)
        xb, u = x[part], out[part]
        np.multiply(xb, xb, out=u)
        u *= 0.044715
        u += 1
        u *= xb
        u *= math.sqrt(2 / math.pi)
        np.tanh(u, out=u)
        u += 1
        u *= xb
        u *= 0.5


def sum_in_blocks(arrays: list[np.ndarray], scratch: np.ndarray) -> None:
    """The slice sum in NumPy, 32 K elements at a time."""
    for start in range(0, arrays[0].size, BLOCK // 2):
        parts = [array[start : start + BLOCK // 2] for array in arrays]
        total = scratch[: parts[0].size]
        np.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            total += part
        total /= len(arrays)
        for part in parts:
            part[:] = total


def optimizer_cases() -> Cases:
    """Steps at the sizes of the targets: 16.8 M floats in one array, 1.8 M in 18, and a small one for the overhead."""
    options = {
        "step": 3,
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "decoupled": True,
    }
    scratch = np.empty(BLOCK, np.float32)
    for sizes in ([1 << 24], [100_000] * 18, [1_800_000], [256]):
        groups = [
            (normal(size), normal(size), np.zeros(size, np.float32), np.zeros(size, np.float32)) for size in sizes
        ]

        def kernels(groups: list = groups) -> None:
            for p, g, m, v in groups:
                optimizer.adam(p, g, m, v, **options)

        def blocks(groups: list = groups) -> None:
            for p, g, m, v in groups:
                adamw_in_blocks(p, g, m, v, scratch)

        yield "adamw", sizes, {"kernel": kernels, "numpy": blocks}
    p, g, m = normal(1 << 24), normal(1 << 24), normal(1 << 24)
    yield "sgd", [p.size], {"kernel": lambda: optimizer.sgd(p, g, m, lr=1e-3, momentum=0.9)}
    yield "sum_of_squares", [g.size], {"kernel": lambda: buckets.sum_of_squares(g)}


def row_cases() -> Cases:
    """The shapes of a small GPT (1024 tokens) and of a classifier's last layer."""
    for rows, columns in ((1024, 128), (128, 10)):
        x, g, w = normal(rows, columns), normal(rows, columns)[::-1].copy(), normal(columns)
        _, mean, rstd = norm.layer_norm_forward(x, w, w, 1e-5)
        shape = [rows, columns]
        yield "layer_norm", shape, {"kernel": lambda x=x, w=w: norm.layer_norm_forward(x, w, w, 1e-5)}
        backward = {"kernel": lambda g=g, x=x, m=mean, r=rstd, w=w: norm.layer_norm_backward(g, x, m, r, w)}
        yield "layer_norm_backward", shape, backward
    for rows, columns in ((4096, 128), (1024, 256)):
        x, g = normal(rows, columns), normal(rows, columns)[::-1].copy()
        y = softmax.softmax_forward(x)

        def plain(x: np.ndarray = x) -> np.ndarray:
            e = np.exp(x - x.max(axis=1, keepdims=True))
            e /= e.sum(axis=1, keepdims=True)
            return e

        yield "softmax", [rows, columns], {"kernel": lambda x=x: softmax.softmax_forward(x), "numpy": plain}
        yield "softmax_backward", [rows, columns], {"kernel": lambda g=g, y=y: softmax.softmax_backward(g, y)}
    for rows, columns in ((1024, 256), (128, 10), (8, 10)):
        x, t = normal(rows, columns), np.arange(rows) % columns
        _, log_sums, _ = loss.cross_entropy_forward(x, t)
        g = np.full(rows, 1 / rows, np.float32)
        yield "cross_entropy", [rows, columns], {"kernel": lambda x=x, t=t: loss.cross_entropy_forward(x, t)}
        backward = {"kernel": lambda g=g, x=x, t=t, s=log_sums: loss.cross_entropy_backward(g, x, t, s)}
        yield "cross_entropy_backward", [rows, columns], backward


def elementwise_cases() -> Cases:
    """1024 x 512 floats."""
    x, g = normal(1024 * 512), normal(1024 * 512)[::-1].copy()
    out = np.empty_like(x)
    sides = {
        "kernel": lambda: activation.gelu_forward(x, approximate="tanh", out=out),
        "numpy": lambda: gelu_in_blocks(x, out),
    }
    yield "gelu_tanh", [1024, 512], sides
    yield (
        "gelu_tanh_backward",
        [1024, 512],
        {"kernel": lambda: activation.gelu_backward(g, x, approximate="tanh", out=out)},
    )
    yield "gelu", [1024, 512], {"kernel": lambda: activation.gelu_forward(x, out=out)}
    yield "gelu_backward", [1024, 512], {"kernel": lambda: activation.gelu_backward(g, x, out=out)}
    sides = {
        "kernel": lambda: piecewise.backward("relu", g, x, (), out),
        "numpy": lambda: np.multiply(g, x > 0, out=out),
    }
    yield "relu_backward", [1024, 512], sides


def image_cases() -> Cases:
    """Channels-last images, named by their PyTorch shape (N, C, H, W)."""
    for batch, channels, size in ((64, 32, 14), (64, 32, 28), (64, 3, 32)):
        x = normal(batch, size, size, channels)
        rows, shape = x.reshape(-1, channels), [batch, channels, size, size]
        matrix = normal(1, len(rows), 9 * channels)
        back = np.empty_like(x)
        sides = {"kernel": lambda x=x, m=matrix, b=back: conv.col2im(m, x.shape, (3, 3), padding=(1, 1), out=b)}
        yield "col2im", shape, sides
        half = (size // 2, size // 2)
        out, indices = pool.max_pool2d_forward(x, half, (2, 2), (2, 2), (0, 0))
        yield "max_pool", shape, {"kernel": lambda x=x, h=half: pool.max_pool2d_forward(x, h, (2, 2), (2, 2), (0, 0))}
        sides = {"kernel": lambda x=x, o=out, i=indices: pool.max_pool2d_backward(o, i, x.shape)}
        yield "max_pool_backward", shape, sides
        w, g = normal(channels), rows[::-1].copy()
        mean, variance = batch_norm.moments(rows)
        rstd = 1 / np.sqrt(variance + np.float32(1e-5))

        def forward(x: np.ndarray = rows, w: np.ndarray = w) -> np.ndarray:
            mean, variance = batch_norm.moments(x)
            return batch_norm.normalise(x, mean, 1 / np.sqrt(variance + np.float32(1e-5)), w, w)

        def backward(x: np.ndarray = rows, g: np.ndarray = g, w: np.ndarray = w, m=mean, r=rstd) -> np.ndarray:  # type: ignore[no-untyped-def]
            return batch_norm.input_gradient(g, x, m, r, w, *batch_norm.gradient_sums(g, x, m), len(x))

        yield "batch_norm", shape, {"kernel": forward}
        yield "batch_norm_backward", shape, {"kernel": backward}
    g, indices = normal(1024, 128), np.random.default_rng(0).integers(0, 256, 1024)
    yield "embedding_backward", [1024, 128, 256], {"kernel": lambda: embedding.embedding_backward(g, indices, 256)}


def product_cases() -> Cases:
    """Linear layers of a small GPT and of an MLP, and convolutions on channels-last images."""
    for rows, depth, columns in ((1024, 128, 512), (128, 1024, 1024), (32, 128, 512)):
        a, b = normal(rows, depth), normal(columns, depth).T
        yield (
            "product",
            [rows, depth, columns],
            {
                "kernel": lambda a=a, b=b: product.multiply(a, b),
                "numpy": lambda a=a, b=b: a.dot(b),
            },
        )
    for batch, channels, size, outputs, window in ((16, 64, 28, 64, 3), (32, 16, 32, 16, 3), (16, 32, 28, 32, 5)):
        x = normal(batch, size, size, channels).transpose(0, 3, 1, 2)
        w = normal(outputs, window, window, channels).transpose(0, 3, 1, 2)
        moves = ConvWindow((1, 1), (window // 2, window // 2), (1, 1), 1)
        yield (
            "convolution",
            [batch, channels, size, outputs, window],
            {"kernel": lambda x=x, w=w, m=moves: conv_direct.forward(x, w, None, m, channels_last)},
        )


def reduce_cases() -> Cases:
    """Slices of 2 and 4 ranks, in place: bytes a rank."""
    scratch = np.empty(BLOCK, np.float32)
    for ranks in (2, 4):
        for size in (1 << 14, 1 << 18, 1 << 22):
            arrays = [np.zeros(size, np.float32) for _ in range(ranks)]
            table = reduce.addresses(arrays)
            sides = {
                "kernel": lambda t=table, n=size, k=ranks: reduce.sum_slices(t, t, "f", 0, n, float(k)),
                "numpy": lambda a=arrays: sum_in_blocks(a, scratch),
            }
            yield "sum_slices", [ranks, size * 4], sides


def measure(name: str, arguments: list[int], sides: Sides, peer: Peer | None, rounds: int) -> None:
    """Time all sides in turn, round by round, and print the line."""
    sides["kernel"]()
    started = time.perf_counter()
    sides["kernel"]()
    calls = max(1, round(0.01 / max(time.perf_counter() - started, 1e-7)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds + 2):
        for side, run in sides.items():
            started = time.perf_counter()
            for _ in range(calls):
                run()
            times[side].append((time.perf_counter() - started) / calls)
        if peer and (seconds := peer.seconds(name, arguments, calls)) is not None:
            times.setdefault("torch", []).append(seconds)
    line: dict[str, object] = {
        "case": name,
        "shape": arguments if len(set(arguments)) > 1 else [len(arguments), arguments[0]],
    }
    for side, samples in times.items():
        cuts = statistics.quantiles(samples[2:], n=10)
        line[f"{side}_ms"] = round(statistics.median(samples[2:]) * 1e3, 5)
        line[f"{side}_spread_ms"] = [round(cuts[0] * 1e3, 5), round(cuts[-1] * 1e3, 5)]
    for side in times:
        if side != "kernel":
            line[f"{side}_over_kernel"] = round(float(line[f"{side}_ms"]) / float(line["kernel_ms"]), 3)  # type: ignore[arg-type]
    print(json.dumps(line), flush=True)


START = """
import time
begun = time.perf_counter()
import numba
imported = time.perf_counter()
import json, engine.kernels
lines = engine.kernels.warm(("float32",))
print(json.dumps([imported - begun, time.perf_counter() - imported, lines]))
"""


def measure_start() -> None:
    """Print what the first calls cost: cold (compiling) and warm (from the disk cache), in fresh processes."""
    with tempfile.TemporaryDirectory() as directory:
        for state in ("cold", "warm", "warm"):
            environment = os.environ | {"NUMBA_CACHE_DIR": directory}
            done = subprocess.run(
                [sys.executable, "-c", START], env=environment, check=True, capture_output=True, text=True
            )
            imported, total, kernels = json.loads(done.stdout)
            each = {name: round(seconds, 3) for name, _, seconds in kernels}
            print(
                json.dumps(
                    {
                        "start": state,
                        "import_numba_s": round(imported, 3),
                        "float32_kernels_s": round(total, 3),
                        "each_s": each,
                    }
                )
            )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python that has PyTorch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--start", action="store_true", help="time import and first calls instead")
    options = parser.parse_args()
    if options.start:
        measure_start()
        return
    peer = Peer(options.peer) if options.peer else None
    for cases in (optimizer_cases, row_cases, elementwise_cases, image_cases, product_cases, reduce_cases):
        for name, arguments, sides in cases():
            if options.only in name:
                measure(name, arguments, sides, peer, options.rounds)


if __name__ == "__main__":
    main()
