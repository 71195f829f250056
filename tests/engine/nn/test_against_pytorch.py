"""Every layer and loss against PyTorch's numbers: outputs, gradients of inputs and parameters, buffers, repr."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from tests.data import nn_cases

REFERENCE = json.loads((Path(nn_cases.__file__).parent / "nn_reference.json").read_text(encoding="utf-8"))
# made of others, or tested where they are more than a formula
COMPOSED = {
    "AlphaDropout", "Buffer", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "Module",
    "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase",
    "Sequential", "MaxUnpool3d", "TransformerDecoder", "DataParallel", "UninitializedParameter", "LazyLinear",
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d",
}  # fmt: skip


def assert_close(ours: list[Any], theirs: list[Any], what: str) -> None:
    np.testing.assert_allclose(np.array(ours, float), np.array(theirs, float), rtol=1e-6, atol=1e-8, err_msg=what)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides", "ignore:Support for mismatched")
@pytest.mark.parametrize("case", nn_cases.CASES, ids=lambda case: case.name)
def test_case(case: nn_cases.Case) -> None:
    ours, theirs = nn_cases.run(case, engine, nn), REFERENCE[case.name]
    assert ours["shapes"] == theirs["shapes"]
    for number, (mine, reference) in enumerate(zip(ours["outputs"], theirs["outputs"], strict=True)):
        assert_close(mine, reference, f"output {number}")
    for number, (mine, reference) in enumerate(zip(ours["gradients"], theirs["gradients"], strict=True)):
        assert (mine is None) == (reference is None), f"gradient {number}"
        if mine is not None:
            assert_close(mine, reference, f"gradient {number}")
    assert ours["buffers"].keys() == theirs["buffers"].keys()
    for name, mine in ours["buffers"].items():
        assert_close(mine, theirs["buffers"][name], f"buffer {name}")
    assert ours["repr"] == theirs["repr"]


def test_every_public_layer_has_a_case() -> None:
    public = {name for name in nn.__all__ if isinstance(getattr(nn, name), type)}
    covered = {case.name.split(" ")[0] for case in nn_cases.CASES}
    assert public - covered - COMPOSED == set()
    assert COMPOSED - public == set()
