"""Everyday misuse: PyTorch's error type, and the words of its message that people search for, with names and shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine import data, nn, optim
from engine.optim import lr_scheduler

Row = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]
ones, tensor = engine.ones, engine.tensor


def leaf(*shape: int) -> engine.Tensor:
    return ones(*shape, requires_grad=True)


def backward_twice() -> None:
    loss = (leaf(3) ** 2).sum()
    loss.backward()
    loss.backward()


def overwrite_saved() -> None:
    y = leaf(3).exp()
    y.add_(1)
    y.sum().backward()


class Forgetful(nn.Module):
    def __init__(self) -> None:
        self.w = nn.Parameter(ones(1))


SHAPES: dict[str, Row] = {
    "linear": (
        lambda: nn.Linear(3, 2)(ones(4, 5)),
        RuntimeError,
        ("mat1 and mat2 shapes cannot be multiplied (4x5 and 3x2)", "in_features, 3"),
    ),
    "linear array": (
        lambda: nn.Linear(3, 2)(np.ones((4, 3), np.float32)),
        TypeError,
        ("linear(): argument 'input' must be Tensor, not ndarray", "engine.from_numpy"),
    ),
    "gelu list": (lambda: F.gelu([1.0]), TypeError, ("gelu(): argument 'input' must be Tensor, not list", "tensor(")),
    "layer norm none": (lambda: nn.LayerNorm(3)(None), TypeError, ("argument 'input' must be Tensor, not NoneType",)),
    "cross entropy array": (
        lambda: F.cross_entropy(ones(4, 3), np.zeros(4, np.int64)),
        TypeError,
        ("cross_entropy(): argument 'target' must be Tensor, not ndarray",),
    ),
    "linear dtype": (lambda: nn.Linear(3, 2)(ones(4, 3).double()), RuntimeError, ("same dtype", "engine.float64")),
    "matmul": (lambda: ones(2, 3) @ ones(2, 3), RuntimeError, ("shapes cannot be multiplied (2x3 and 2x3)",)),
    "conv channels": (
        lambda: nn.Conv2d(3, 4, 3)(ones(1, 2, 5, 5)),
        RuntimeError,
        ("Given groups=1, weight of size [4, 3, 3, 3], expected input[1, 2, 5, 5] to have 3 channels, but got 2",),
    ),
    "conv axes": (lambda: nn.Conv2d(3, 4, 3)(ones(5, 5)), RuntimeError, ("Expected 3D (unbatched) or 4D (batched)",)),
    "conv small": (lambda: nn.Conv2d(3, 4, 3)(ones(1, 3, 2, 2)), RuntimeError, ("Kernel size can't be greater",)),
    "cat": (
        lambda: engine.cat([ones(2, 3), ones(2, 4)]),
        RuntimeError,
        ("Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor number 1",),
    ),
    "stack": (lambda: engine.stack([ones(2), ones(3)]), RuntimeError, ("stack expects each tensor to be equal size",)),
    "broadcast": (
        lambda: ones(2, 3) + ones(4, 3),
        RuntimeError,
        ("The size of tensor a (2) must match the size of tensor b (4) at non-singleton dimension 0",),
    ),
    "view": (lambda: ones(2, 3).view(4), RuntimeError, ("shape '[4]' is invalid for input of size 6",)),
    "view order": (lambda: ones(2, 3).t().view(6), RuntimeError, ("Use .reshape(...) instead",)),
    "batch norm": (
        lambda: nn.BatchNorm1d(3)(ones(1, 3)),
        ValueError,
        ("Expected more than 1 value per channel when training", "[1, 3]"),
    ),
    "layer norm": (lambda: nn.LayerNorm(5)(ones(2, 3)), RuntimeError, ("Given normalized_shape=[5]", "[*, 5]")),
    "lstm": (lambda: nn.LSTM(3, 4)(ones(2, 2, 5)), RuntimeError, ("input.size(-1) must be equal to input_size",)),
    "attention": (lambda: nn.MultiheadAttention(5, 2), AssertionError, ("embed_dim must be divisible by num_heads",)),
}

VALUES: dict[str, Row] = {
    "class out of range": (
        lambda: F.cross_entropy(ones(2, 3), tensor([0, 3])),
        IndexError,
        ("Target 3 is out of bounds", "3 classes"),
    ),
    "classes of the wrong dtype": (
        lambda: F.cross_entropy(ones(2, 3), tensor([0.0, 1.0])),
        RuntimeError,
        ("expected target dtype to be Long or Byte", "engine.float32"),
    ),
    "number of classes": (
        lambda: F.cross_entropy(ones(2, 3), tensor([0, 1, 2])),
        ValueError,
        ("Expected input batch_size (2) to match target batch_size (3)",),
    ),
    "bce": (
        lambda: F.binary_cross_entropy_with_logits(ones(2), ones(2, 1)),
        ValueError,
        ("Target size", "must be the same as input size"),
    ),
    "index": (lambda: ones(3)[5], IndexError, ("index 5 is out of bounds for dimension 0 with size 3",)),
    "index of a number": (lambda: tensor(1.0)[0], IndexError, ("invalid index of a 0-dim tensor", "item()")),
    "too many indices": (lambda: ones(3)[0, 0], IndexError, ("too many indices for tensor of dimension 1",)),
    "index tensor": (lambda: ones(3)[tensor([0, 7])], IndexError, ("index 7 is out of bounds",)),
    "embedding": (lambda: nn.Embedding(3, 2)(tensor([5])), IndexError, ("index out of range in self",)),
    "gather": (lambda: ones(2, 3).gather(1, tensor([[5], [0]])), RuntimeError, ("index 5 is out of bounds",)),
    "item": (lambda: ones(3).item(), RuntimeError, ("a Tensor with 3 elements cannot be converted to Scalar",)),
    "truth": (lambda: bool(ones(3)), RuntimeError, ("Boolean value of Tensor with more than one value is ambiguous",)),
    "permutation": (lambda: engine.randperm(-1), RuntimeError, ("negative dimension -1",)),
    "dropout": (lambda: nn.Dropout(1.5), ValueError, ("dropout probability has to be between 0 and 1, but got 1.5",)),
    "device": (lambda: engine.device("tpu"), RuntimeError, ("tpu", "cpu, cuda, meta")),
    "seed": (lambda: engine.manual_seed("a"), ValueError, ("invalid literal", "'a'")),
}

GRADIENTS: dict[str, Row] = {
    "not a scalar": (
        lambda: (leaf(3) * 2).backward(),
        RuntimeError,
        ("grad can be implicitly created only for scalar outputs",),
    ),
    "no graph": (
        lambda: ones(3).sum().backward(),
        RuntimeError,
        ("does not require grad",),
    ),
    "twice": (
        backward_twice,
        RuntimeError,
        ("backward through the graph a second time",),
    ),
    "leaf in place": (lambda: leaf(3).add_(1), RuntimeError, ("a leaf Variable that requires grad", "in-place")),
    "saved in place": (overwrite_saved, RuntimeError, ("modified by an inplace operation", "version 1; expected")),
    "integer leaf": (lambda: engine.ones(3, dtype=engine.int64).requires_grad_(), RuntimeError, ("floating point",)),
    "numpy": (lambda: leaf(3).numpy(), RuntimeError, ("Can't call numpy() on Tensor that requires grad",)),
    "unused": (
        lambda: engine.autograd.grad(leaf(1).sum(), leaf(1)),
        RuntimeError,
        ("appears to not have been used in the graph", "allow_unused=True"),
    ),
}

MODULES: dict[str, Row] = {
    "missing": (
        lambda: nn.Linear(2, 3).load_state_dict({"weight": ones(3, 2)}),
        RuntimeError,
        ("Error(s) in loading state_dict for Linear", 'Missing key(s) in state_dict: "bias"'),
    ),
    "unexpected": (
        lambda: nn.Linear(2, 3).load_state_dict({"weight": ones(3, 2), "bias": ones(3), "foo": ones(1)}),
        RuntimeError,
        ('Unexpected key(s) in state_dict: "foo"',),
    ),
    "size": (
        lambda: nn.Sequential(nn.Linear(2, 3)).load_state_dict({"0.weight": ones(4, 2), "0.bias": ones(3)}),
        RuntimeError,
        ("size mismatch for 0.weight: copying a param with shape", "[4, 2]", "[3, 2]"),
    ),
    "no dict": (lambda: nn.Linear(2, 3).load_state_dict([1]), TypeError, ("Expected state_dict to be dict-like",)),
    "no init": (Forgetful, AttributeError, ("cannot assign parameters before Module.__init__() call",)),
    "no forward": (lambda: nn.Module()(1), NotImplementedError, ('missing the required "forward" function',)),
    "no attribute": (lambda: nn.Linear(1, 1).foo, AttributeError, ("'Linear' object has no attribute 'foo'",)),
    "no parameter": (
        lambda: setattr(nn.Linear(1, 1), "weight", ones(1)),
        TypeError,
        ("as parameter 'weight'", "nn.Parameter or None expected"),
    ),
    "integer module": (
        lambda: nn.Linear(1, 1).to(engine.int64),
        TypeError,
        ("only accepts floating point or complex dtypes", "int64"),
    ),
    "no module": (lambda: nn.Sequential(1), TypeError, ("int is not a Module subclass",)),
}

OPTIMIZERS: dict[str, Row] = {
    "lr": (lambda: optim.SGD([leaf(1)], lr=-1), ValueError, ("Invalid learning rate: -1",)),
    "nesterov": (
        lambda: optim.SGD([leaf(1)], lr=0.1, nesterov=True),
        ValueError,
        ("Nesterov momentum requires a momentum and zero dampening",),
    ),
    "betas": (lambda: optim.Adam([leaf(1)], betas=(1.0, 0.9)), ValueError, ("Invalid beta parameter at index 0: 1.0",)),
    "nothing": (lambda: optim.Adam([]), ValueError, ("optimizer got an empty parameter list",)),
    "one tensor": (lambda: optim.Adam(leaf(1)), TypeError, ("should be an iterable of Tensors or dicts",)),
    "no leaf": (lambda: optim.Adam([leaf(1) * 2]), ValueError, ("can't optimize a non-leaf Tensor",)),
    "scheduler": (lambda: lr_scheduler.StepLR(3, 1), TypeError, ("int is not an Optimizer",)),
}

LOADERS: dict[str, Row] = {
    "batch size": (
        lambda: data.DataLoader([1], batch_size=0),
        ValueError,
        ("batch_size should be a positive",),
    ),
    "order": (
        lambda: data.DataLoader([1], shuffle=True, sampler=[0]),
        ValueError,
        ("sampler option is mutually exclusive with shuffle",),
    ),
    "workers": (
        lambda: data.DataLoader([1], num_workers=-1),
        ValueError,
        ("should be non-negative",),
    ),
    "persistent": (
        lambda: data.DataLoader([1], persistent_workers=True),
        ValueError,
        ("persistent_workers option needs num_workers > 0",),
    ),
    "parts": (lambda: data.random_split([1, 2, 3], [1, 1]), ValueError, ("Sum of input lengths does not equal",)),
    "uneven": (
        lambda: data.default_collate([ones(2), ones(3)]),
        RuntimeError,
        ("stack expects each tensor to be equal size",),
    ),
    "unknown": (lambda: data.default_collate([object()]), TypeError, ("default_collate: batch must contain tensors",)),
}

ROWS = {
    f"{family}: {name}": row
    for family, rows in {
        "shapes": SHAPES,
        "values": VALUES,
        "gradients": GRADIENTS,
        "modules": MODULES,
        "optimizers": OPTIMIZERS,
        "loaders": LOADERS,
    }.items()
    for name, row in rows.items()
}


@pytest.mark.parametrize("name", ROWS)
def test_type_and_words(name: str) -> None:
    call, error, parts = ROWS[name]
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)
