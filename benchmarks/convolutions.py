"""Time convolution layers as public models have them, forward and both gradients, beside PyTorch: CPU time.

    python benchmarks/convolutions.py --peer PYTHON_WITH_TORCH [--avx2] [--only TEXT] [--rounds 7] [--channels-last]

One line a layer: for each of the three the milliseconds of processor time of all threads and their ratio to PyTorch's,
medians over rounds in which both sides run directly after one another. `OMP_NUM_THREADS` says how many threads each has
(1 unless it is set). ``--avx2`` takes AVX-512 away from both: Numba and OpenBLAS are told an older CPU here, and ATen,
oneDNN and MKL there. A layer is (batch, channels, size, outputs, window, stride, padding, dilation, groups).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from figures import WITHOUT_AVX512

Layer = tuple[int, int, int, int, int, int, int, int, int]

LAYERS: dict[str, Layer] = {
    "cnn, first": (64, 1, 28, 32, 3, 1, 1, 1, 1),
    "cnn, second": (64, 32, 14, 64, 3, 1, 1, 1, 1),
    "batch norm CNN, block": (32, 32, 32, 32, 3, 1, 1, 1, 1),
    "batch norm CNN, strided": (32, 32, 32, 64, 3, 2, 1, 1, 1),
    "ResNet, stem 7x7": (4, 3, 112, 64, 7, 2, 3, 1, 1),
    "ResNet, 1x1 strided": (4, 64, 56, 128, 1, 2, 0, 1, 1),
    "ResNet, 1x1": (4, 256, 28, 64, 1, 1, 0, 1, 1),
    "ResNet, 3x3 deep": (4, 512, 7, 512, 3, 1, 1, 1, 1),
    "UNet, top": (2, 32, 96, 32, 3, 1, 1, 1, 1),
    "UNet, deep": (2, 256, 12, 256, 3, 1, 1, 1, 1),
    "UNet, last 1x1": (2, 32, 96, 2, 1, 1, 0, 1, 1),
    "UNet, transposed 2x2": (2, 64, 48, 128, 2, 2, 0, 1, 1),
    "DCGAN, transposed 4x4": (16, 128, 16, 256, 4, 2, 1, 1, 1),
    "DCGAN, transposed, last": (16, 3, 32, 64, 4, 2, 1, 1, 1),
    "DenseNet, 1x1": (4, 200, 28, 128, 1, 1, 0, 1, 1),
    "DenseNet, 3x3": (4, 128, 28, 32, 3, 1, 1, 1, 1),
    "MobileNet, depthwise": (8, 96, 28, 96, 3, 1, 1, 1, 96),
    "MobileNet, depthwise strided": (8, 144, 28, 144, 3, 2, 1, 1, 144),
    "MobileNet v3, depthwise 5x5": (8, 120, 14, 120, 5, 1, 2, 1, 120),
    "EfficientNet, depthwise 5x5 strided": (4, 240, 28, 240, 5, 2, 2, 1, 240),
    "MobileNet, 1x1 narrow": (8, 96, 28, 24, 1, 1, 0, 1, 1),
    "MobileNet, 1x1 wide": (8, 24, 28, 144, 1, 1, 0, 1, 1),
    "ShuffleNet, depthwise": (8, 58, 14, 58, 3, 1, 1, 1, 58),
    "ShuffleNet, 1x1": (8, 58, 14, 58, 1, 1, 0, 1, 1),
    "ConvNeXt, depthwise 7x7": (4, 96, 28, 96, 7, 1, 3, 1, 96),
    "ConvNeXt, patches": (4, 3, 112, 96, 4, 4, 0, 1, 1),
    "RegNet, groups of 8": (4, 104, 28, 104, 3, 1, 1, 1, 13),
    "RegNet, groups of 24 strided": (4, 144, 28, 144, 3, 2, 1, 1, 6),
    "ResNeXt, groups of 4": (4, 128, 28, 128, 3, 1, 1, 1, 32),
    "dilated 3x3": (2, 128, 28, 128, 3, 1, 2, 2, 1),
    "small batch, small image": (1, 64, 8, 64, 3, 1, 1, 1, 1),
}
KINDS = ("forward", "input", "weight")


def functions(layer: Layer, channels_last: bool) -> dict[str, Callable[[], object]]:
    """The three calls of a layer in the library that `workloads` has imported."""
    from workloads import library

    batch, channels, size, outputs, window, stride, padding, dilation, groups = layer
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x = library.randn(batch, channels, size, size)
    weight = library.randn(outputs, channels // groups, window, window)
    if channels_last:
        x, weight = (one.contiguous(memory_format=library.channels_last) for one in (x, weight))
    x.requires_grad_()
    weight.requires_grad_()
    y = library.nn.functional.conv2d(x, weight, None, **moves)
    slope = library.randn(*y.shape)
    if channels_last:
        slope = slope.contiguous(memory_format=library.channels_last)

    def gradient(of: Any) -> Callable[[], object]:
        return lambda: library.autograd.grad(y, [of], slope, retain_graph=True)

    return {
        "forward": lambda: library.nn.functional.conv2d(x, weight, None, **moves),
        "input": gradient(x),
        "weight": gradient(weight),
    }


def serve() -> None:
    """Answers requests (layer, channels last, what) with the milliseconds of a call."""
    made: Any = None
    for line in sys.stdin:
        name, channels_last, kind = json.loads(line)
        if made is None or made[0] != name:
            made = name, functions(LAYERS[name], channels_last)
            for function in made[1].values():
                function()
        function = made[1][kind]
        calls, begin, wall = 0, time.process_time(), time.perf_counter()
        while calls < 3 or time.perf_counter() < wall + 0.01:
            function()
            calls += 1
        print((time.process_time() - begin) / calls * 1e3, flush=True)


def start(python: str, library: str, avx2: bool) -> Any:
    """A process that serves one side."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "BENCHMARK_LIBRARY": library}
    if avx2:
        environment |= WITHOUT_AVX512
    command = [python, os.path.abspath(__file__), "--serve"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def asked(side: Any, *request: Any) -> float:
    """What a side answers."""
    side.stdin.write(json.dumps(request) + "\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def main() -> None:
    """Runs both sides in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help="a Python that has PyTorch")
    parser.add_argument("--avx2", action="store_true", help="without AVX-512")
    parser.add_argument("--only", default="", help="layers whose names have this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    ours = start(sys.executable, "engine", options.avx2)
    peer = start(options.peer, "torch", options.avx2) if options.peer else None
    print(f"{'layer':38}" + "".join(f"{kind + ' ms':>12}{'ratio':>7}" for kind in KINDS) + "    all", flush=True)
    for name in (name for name in LAYERS if options.only in name):
        asked(ours, name, options.channels_last, "forward")
        text, sums = f"{name:38}", [0.0, 0.0]
        for kind in KINDS:
            times: list[tuple[float, float]] = []
            for number in range(options.rounds):
                order = [ours, peer] if number % 2 else [peer, ours]
                found = {side: asked(side, name, options.channels_last, kind) for side in order if side}
                times.append((found[ours], found.get(peer, float("nan"))))
            mine, other = (statistics.median(side) for side in zip(*times, strict=True))
            ratio = statistics.median(one / two for one, two in times)
            sums = [sums[0] + mine, sums[1] + other]
            text += f"{mine:12.3f}{ratio:7.2f}"
        print(f"{text}{sums[0] / sums[1]:7.2f}", flush=True)


if __name__ == "__main__":
    main()
