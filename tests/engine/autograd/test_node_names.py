"""`grad_fn` has PyTorch's names: those recorded from PyTorch, and a walk over the operators (each has samples) beside
the list of all nodes that PyTorch has. Each difference stands here with its reason.
"""

import json
from pathlib import Path

import pytest

import engine
from engine.calls.namespaces import OPERATORS
from tests.data.grad_fn_cases import names
from tests.op_samples import SAMPLES

REFERENCE = json.loads((Path(__file__).parents[2] / "data/grad_fn_reference.json").read_text(encoding="utf-8"))

# What calls are named here where PyTorch names them otherwise.
OTHER_NAMES = {
    # one step for what PyTorch composes of several, the last of which gives the name
    "F.linear(v, b, c)": "AddmmBackward0",
    "F.linear(x[None], b, c)": "AddmmBackward0",
    "F.linear(x[None], b)": "MmBackward0",
    "x[None] @ a[None]": "BmmBackward0",
    "F.rms_norm(x, (3,))": "RmsNormBackward0",
    "F.max_pool1d(x, 2)": "MaxPool2DWithIndicesBackward0",
    "F.dropout(x, 0.5)": "NativeDropoutBackward0",  # PyTorch's fused one, which it has on GPUs
    # composed of several steps where PyTorch has one
    "T.special.entr(p)": "WhereBackward0",
    "x.logsumexp(1)": "ViewBackward0",
    "x.repeat(2, 1)": "ViewBackward0",
    "x.roll(1)": "ViewBackward0",
    "F.mse_loss(x, p)": "MeanBackward0",
    "T.linalg.solve(s, v)": "SqueezeBackward0",
    # a step of another family gives the same
    "x[None] @ a": "ViewBackward0",  # PyTorch tells views that nobody else holds apart
    "v @ a": "ViewBackward0",
    "x.t().reshape(6)": "ViewBackward0",
    "x.t()": "PermuteBackward0",  # all orders of axes are one operator
    "x.transpose(0, 1)": "PermuteBackward0",
    "x.max()": "AmaxBackward0",
    "x.min()": "AminBackward0",
    "F.adaptive_avg_pool2d(i, 1)": "AvgPool2DBackward0",
    # an overload's number, for what is one operator with the same attributes
    "x[None].squeeze(0)": "SqueezeBackward0",
    "x.scatter(1, k, 1.0)": "ScatterBackward0",
    # one operator for what PyTorch has a dozen of: by mode and axes, by kernel and device
    "F.interpolate(i, scale_factor=2)": "ResampleBackward0",
    "F.scaled_dot_product_attention(i, i, i)": "ScaledDotProductAttentionBackward0",
    "x.clone().copy_(p)": "CopyBackwards",  # PyTorch's name() has the namespace, torch::autograd::
}

# Operators whose nodes PyTorch does not have.
OF_THEIR_OWN = {
    # derivatives as operators, so that they are differentiated again; PyTorch's are nodes of other names
    *("as_strided_backward", "avg_pool_gradient", "conv_weight_gradient", "embedding_backward", "index_backward"),
    *("as_strided_gather", "pool_gather", "pool_scatter", "scatter_add_zeros", "scatter_zeros", "view_backward"),
    "scatter_view",  # what an in-place write to a part is recorded as
    # results are bool or integers, or have no gradient in PyTorch
    *("bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor", "signbit"),
    *("floor_divide", "gcd", "heaviside", "lcm"),
    # one step for what PyTorch composes
    *("gru", "linalg_factor", "lstm", "positive", "rms_norm", "rnn_relu", "rnn_tanh"),
    # one operator for what PyTorch has several of, by axes, mode or device
    *("adaptive_max_pool", "resample", "scaled_dot_product_attention"),
    *("avg_pool", "max_pool", "max_pool_with_indices"),  # each call has the name for its axes
    "copy",  # see CopyBackwards above
}


@pytest.mark.full
def test_calls_have_nodes_of_pytorchs_names() -> None:
    recorded = REFERENCE["calls"]
    found = names(engine)
    assert found.keys() == recorded.keys(), "run tests/data/grad_fn_reference.py where PyTorch is"
    assert {case: name for case, name in found.items() if name != recorded[case]} == OTHER_NAMES


def test_every_operators_node_is_one_of_pytorchs() -> None:
    nodes = set(REFERENCE["nodes"])
    differentiable = [name for name in SAMPLES if OPERATORS[name].differentiable]
    assert {name for name in differentiable if OPERATORS[name].node_name not in nodes} == OF_THEIR_OWN


def test_linear_of_matrices_is_a_product_with_or_without_what_is_added() -> None:
    x, weight = engine.ones(2, 3), engine.ones(4, 3, requires_grad=True)
    with_bias = engine.nn.functional.linear(x, weight, engine.zeros(4, requires_grad=True))
    without = engine.nn.functional.linear(x, weight)
    assert type(with_bias.grad_fn).__name__ == with_bias.grad_fn.name() == "AddmmBackward0"
    assert type(without.grad_fn).__name__ == without.grad_fn.name() == "MmBackward0"
    (with_bias + without).sum().backward()
    assert (weight.grad == 4).all()


def test_complex_and_half_precision_calls_keep_the_names_of_theirs() -> None:
    for dtype in (engine.complex64, engine.bfloat16, engine.float64):
        x = engine.ones(2, 3, dtype=dtype, requires_grad=True)
        weight = engine.ones(4, 3, dtype=dtype)
        assert engine.nn.functional.linear(x, weight).grad_fn.name() == "MmBackward0"
        assert (x ** x.detach()).grad_fn.name() == "PowBackward1"
        assert (x**2).grad_fn.name() == "PowBackward0"
