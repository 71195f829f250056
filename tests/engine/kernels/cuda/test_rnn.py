"""The kernels of LSTM and GRU steps beside the formulas in NumPy. Without a GPU they run on the CPU
(tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
from engine.ops.rnn import cells
from engine.ops.rnn import cuda as rnn
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import close, drawn, there

# arguments of each function as multiples of the hidden size, 0 for a vector of all gates
ARGUMENTS = {
    "lstm_cell": (4, 4, 0, 1, 1, 1),
    "lstm_cell_backward": (1, 1, 1, 4, 1, 1, 4),
    "gru_cell": (3, 3, 0, 1, 1, 1),
    "gru_cell_backward": (1, 1, 1, 3, 1, 1, 3, 3),
}


def check(name: str, kind: str, batch: int, hidden: int) -> None:
    gates = max(ARGUMENTS[name])
    shapes = [(batch, hidden * each) if each else (hidden * gates,) for each in ARGUMENTS[name]]
    own = [drawn(seed, shape, kind) for seed, shape in enumerate(shapes)]
    wide = [each.astype("d") for each in own]
    getattr(cells, name)(np, *wide)
    arrays = [there(each) for each in own]
    getattr(rnn, name)(*arrays)
    for found, expected in zip(arrays, wide, strict=True):
        close(found, expected, kind, 32)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_steps(cuda: engine.device, name: str, kind: str):
    for batch, hidden in ((1, 1), (3, 31), (2, 200), (0, 4)):
        check(name, kind, batch, hidden)


def test_accesses(cuda: engine.device):
    with cuda_device.checked(3):
        for name in ARGUMENTS:
            check(name, "float32", 3, 5)
