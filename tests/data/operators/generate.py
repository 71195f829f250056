"""Writes <family>.npz beside it: what PyTorch gives for every case of a family. Needs CPU PyTorch; no test runs it.

    OMP_NUM_THREADS=1 python tests/data/operators/generate.py [family ...]

A file holds all numbers of its family in one vector of float64, and where each one lies as JSON.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2]))

from tests.data.operators import case as cases  # noqa: E402 - needs the path above

FAMILIES = (
    "activation",
    "loss",
    "attention",
    "embedding",
    "sorting",
    "linalg",
    "elementwise",
    "conv",
    "pooling",
    "normalization",
    "padding",
    "upsampling",
    "core",
    "complex_numbers",
    "special_values",
)


def main(families: list[str]) -> None:
    torch.set_num_threads(1)
    for family in families:
        values: list[np.ndarray] = []
        index: dict[str, list[dict[str, object]]] = {}
        for name, case in importlib.import_module(f"tests.data.operators.{family}").CASES.items():
            try:
                _, results, slopes = cases.gradients(torch, case, "float64")
            except RuntimeError as cause:
                raise RuntimeError(f"{family}: PyTorch cannot run the case {name!r}") from cause
            index[name] = []
            for kind, tensor in [
                *(("result", result) for result in results),
                *(("gradient", slope) for slope in slopes),
            ]:
                entry: dict[str, object] = {"kind": kind, "start": sum(map(len, values))}
                if tensor is not None:
                    array = tensor.detach().numpy(force=True)
                    if array.dtype.kind == "c":  # real and imaginary parts
                        array = np.ascontiguousarray(array)
                        values.append(array.reshape(-1).view(np.float64))
                    else:
                        values.append(array.astype(np.float64).reshape(-1))
                    entry |= {"shape": list(tensor.shape), "stride": list(tensor.stride()), "dtype": str(array.dtype)}
                index[name].append(entry)
        made_with = {"torch": torch.__version__, "numpy": np.__version__}
        np.savez_compressed(
            FOLDER / f"{family}.npz",
            values=np.concatenate(values),
            index=json.dumps({"made_with": made_with, "cases": index}),
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(FAMILIES))
