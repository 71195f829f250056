"""`engine.sparse`, sparse gradients of tables, and the steps on them: the numbers are PyTorch 2.13's."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from engine.nn import functional as F

INDICES = engine.tensor([[0, 1, 1, 2, 0], [2, 0, 2, 1, 2]])
SHAPE = (3, 3)


def values() -> engine.Tensor:
    return engine.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)


def matrix(elements: engine.Tensor) -> Any:
    return engine.sparse_coo_tensor(INDICES, elements, SHAPE)


DENSE = engine.tensor([[0.0, 0.0, 6.0], [2.0, 0.0, 3.0], [0.0, 4.0, 0.0]])


def test_a_sparse_tensor_is_its_coordinates_and_values() -> None:
    sparse = matrix(values())
    assert sparse.is_sparse
    assert sparse.layout == engine.sparse_coo
    assert (sparse.shape, sparse.sparse_dim(), sparse.dense_dim(), sparse._nnz()) == (SHAPE, 2, 0, 5)
    assert sparse.to_dense().equal(DENSE)
    with pytest.raises(RuntimeError, match="Cannot get indices on an uncoalesced tensor"):
        sparse.indices()
    whole = sparse.coalesce()
    assert whole.is_coalesced()
    assert whole.indices().tolist() == [[0, 1, 1, 2], [2, 0, 2, 1]]
    assert whole.values().tolist() == [6.0, 2.0, 3.0, 4.0]
    assert sparse.t().to_dense().equal(DENSE.t())
    assert sparse.detach().double().to(engine.float32).to_dense().equal(DENSE)
    assert engine.sparse.sum(sparse).item() == 15.0


def test_to_sparse() -> None:
    sparse = DENSE.to_sparse()
    assert sparse.indices().tolist() == [[0, 1, 1, 2], [2, 0, 2, 1]]
    rows = DENSE.to_sparse(1)
    assert (rows.sparse_dim(), rows.dense_dim()) == (1, 1)
    assert rows.values().equal(DENSE)
    assert engine.zeros(2, 2).to_sparse()._nnz() == 0
    x = DENSE.clone().requires_grad_()
    (x.to_sparse().values() * 2).sum().backward()
    assert x.grad.equal(2.0 * (DENSE != 0))


@pytest.mark.parametrize("product", [engine.spmm, engine.mm, engine.matmul], ids=["spmm", "mm", "matmul"])
def test_products_and_their_gradients_are_those_of_the_dense_matrix(product: Any) -> None:
    elements, other = values(), engine.arange(12.0).reshape(3, 4).requires_grad_()
    product(matrix(elements), other).square().sum().backward()
    dense, other_of_dense = DENSE.clone().requires_grad_(), other.detach().clone().requires_grad_()
    (dense @ other_of_dense).square().sum().backward()
    assert other.grad.equal(other_of_dense.grad)
    assert elements.grad.equal(dense.grad[INDICES[0], INDICES[1]])
    assert engine.sparse.mm is engine.spmm
    assert (engine.eye(3) @ matrix(elements)).equal(DENSE)
    assert (matrix(elements) @ engine.ones(3)).tolist() == [6.0, 5.0, 4.0]


def test_sums() -> None:
    sparse = matrix(values()).detach()
    assert (engine.eye(3) + sparse).equal(engine.eye(3) + DENSE)
    assert (sparse + sparse * 2).to_dense().equal(3 * DENSE)
    assert (sparse - sparse / 2).to_dense().equal(DENSE / 2)
    counts = engine.sparse_coo_tensor(np.array([[0, 1], [1, 1]], np.int32), engine.ones(2), (2, 2), dtype=engine.int64)
    assert (engine.eye(2) + counts).tolist() == [[1.0, 1.0], [0.0, 2.0]]
    assert engine.sparse.addmm(engine.ones(3, 3), sparse, engine.eye(3), beta=2.0).equal(2 + DENSE)
    assert engine.sparse.FloatTensor(INDICES, values().detach(), engine.Size(SHAPE)).to_dense().equal(DENSE)


def test_a_function_may_save_a_sparse_tensor() -> None:
    """As pyGAT's does."""

    class Product(engine.autograd.Function):
        @staticmethod
        def forward(ctx: Any, elements: Any, other: Any) -> Any:
            ctx.save_for_backward(matrix(elements), other)
            return engine.matmul(matrix(elements), other)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            sparse, other = ctx.saved_tensors
            slopes = (gradients[0] @ other.t())[sparse._indices()[0], sparse._indices()[1]]
            return slopes, sparse.t().matmul(gradients[0])

    elements, other = values(), engine.ones(3, 2).requires_grad_()
    Product.apply(elements, other).sum().backward()
    assert elements.grad.tolist() == [2.0] * 5
    assert other.grad.tolist() == [[2.0, 2.0], [4.0, 4.0], [9.0, 9.0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: engine.sparse_coo_tensor([[0, 3]], [1.0, 1.0], (2,)),
            RuntimeError,
            "size is inconsistent with indices",
        ),
        (lambda: engine.sparse_coo_tensor([[0]], [1.0, 1.0]), RuntimeError, "same nnz"),
        (lambda: engine.sparse_coo_tensor([[0]], [1.0], requires_grad=True), NotImplementedError, "is no leaf here"),
        (lambda: matrix(values()) @ matrix(values()), NotImplementedError, "expected a dense Tensor, got SparseTensor"),
        (lambda: matrix(values()) @ engine.ones(3, 2).double(), RuntimeError, "operands of one dtype"),
        (lambda: engine.relu(matrix(values())), TypeError, "SparseTensor|sparse"),
        (lambda: engine.sparse.softmax, AttributeError, "softmax"),
        (lambda: engine.sparse_csr_tensor, AttributeError, "in coordinate format"),
        (lambda: F.embedding(INDICES, DENSE, scale_grad_by_freq=True, sparse=True), RuntimeError, "scale_grad_by_freq"),
    ],
)
def test_what_is_not_there_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# --- sparse gradients -------------------------------------------------------------------------------------------------


def table(**options: Any) -> nn.Embedding:
    rows = engine.arange(12.0).reshape(4, 3) / 10
    return nn.Embedding.from_pretrained(rows, freeze=False, sparse=True, **options)


def test_the_gradient_of_a_table_is_its_rows() -> None:
    layer = table(padding_idx=2)
    indices = engine.tensor([[1, 2, 1]])
    (layer(indices) * 2).sum().backward()
    assert layer.weight.grad._indices().tolist() == [[1, 1]]
    assert layer.weight.grad._values().tolist() == [[2.0] * 3] * 2
    layer(engine.tensor([3])).sum().backward()  # added to what is there
    assert layer.weight.grad.to_dense()[:, 0].tolist() == [0.0, 4.0, 0.0, 1.0]
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.to_dense().eq(0).all()
    assert "sparse=True" in repr(layer)


def test_a_dense_gradient_beside_it_makes_the_sum_dense() -> None:
    expected = [[3.0] * 3, [5.0] * 3, [3.0] * 3, [3.0] * 3]

    def rows(layer: nn.Embedding) -> engine.Tensor:
        return layer(engine.tensor([1, 1])).sum()

    def whole(layer: nn.Embedding) -> engine.Tensor:
        return (layer.weight * 3).sum()

    for first, second in ((rows, whole), (whole, rows)):
        layer = table()
        (first(layer) + second(layer)).backward()
        assert layer.weight.grad.tolist() == expected
        layer = table()
        first(layer).backward()
        second(layer).backward()
        assert layer.weight.grad.tolist() == expected


def test_where_the_gradient_is_dense() -> None:
    """Of a table that is no leaf, and where the gradient is differentiated again."""
    leaf = engine.ones(3, 2, requires_grad=True)
    F.embedding(engine.tensor([1]), leaf * 2, sparse=True).sum().backward()
    assert leaf.grad.tolist() == [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    layer = table()
    loss = layer(engine.tensor([1])).square().sum()
    (gradient,) = engine.autograd.grad(loss, layer.weight, create_graph=True)
    assert gradient.equal(2 * layer.weight * engine.tensor([[0.0], [1.0], [0.0], [0.0]]))
    gradient.sum().backward()
    assert layer.weight.grad.to_dense().tolist() == [[0.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]


def test_hooks_see_it() -> None:
    layer = table()
    seen: list[Any] = []
    layer.weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    layer(engine.tensor([1])).sum().backward()
    assert seen[0].is_sparse
    assert layer.weight.grad.to_dense()[1].tolist() == [2.0] * 3
    (gradient,) = engine.autograd.grad(layer(engine.tensor([3])).sum(), layer.weight)
    assert gradient._indices().tolist() == [[3]]


REFERENCE = {  # PyTorch 2.13, see `steps`
    "SparseAdam": [
        [0.1, 0.2, 0.2],
        [0.5786884, 0.151194, 0.2],
        [0.6638814, 0.7638813, 0.8],
        [0.6, 0.7, 0.8],
    ],
    "SGD": [[0.2, 0.2, 0.2], [0.8, 0.2, -0.4], [0.8, 0.8, 0.8], [0.6, 0.4, 0.2]],
    "Adagrad": [
        [0.1, 0.2, 0.2],
        [0.5250195, 0.2292893, 0.2715543],
        [0.7, 0.8, 0.8],
        [0.6715543, 0.7715543, 0.8715543],
    ],
}


def steps(library: Any, name: str) -> Any:
    """The table after three steps; also run with `library` torch."""
    rows = library.arange(12.0).reshape(4, 3) / 10
    layer = library.nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
    optimizer = getattr(library.optim, name)(layer.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        indices = library.tensor([[1, step], [3, 1]])
        factors = library.arange(12.0).reshape(2, 2, 3) - 5
        (layer(indices) * factors).sum().backward()
        optimizer.step()
    return layer.weight.detach().tolist()


@pytest.mark.parametrize("name", REFERENCE)
def test_steps(name: str) -> None:
    assert np.allclose(steps(engine, name), REFERENCE[name], rtol=1e-6, atol=2e-7)


def test_a_step_leaves_other_rows_and_their_state_alone() -> None:
    layer = table()
    optimizer = engine.optim.SparseAdam(layer.parameters(), lr=0.1)
    layer(engine.tensor([1])).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert layer.weight.ne(before).any(1).tolist() == [False, True, False, False]
    state = optimizer.state_dict()["state"][0]
    assert state["step"] == 1
    assert state["exp_avg"].ne(0).any(1).tolist() == [False, True, False, False]
    again = engine.optim.SparseAdam(table().parameters(), lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    assert again.state_dict()["state"][0]["exp_avg"].equal(state["exp_avg"])


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adam", {}), ("RMSprop", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"weight_decay": 0.1})],
)
def test_other_optimizers_refuse_it(name: str, options: dict[str, float]) -> None:
    layer = table()
    layer(engine.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=f"{name} does not support sparse gradients"):
        getattr(engine.optim, name)(layer.parameters(), **options).step()


def test_sparse_adam_refuses_a_dense_one() -> None:
    with pytest.raises(ValueError, match="beta parameter at index 0"):
        engine.optim.SparseAdam([engine.ones(1)], betas=(1.0, 0.9))
    x = engine.ones(2, requires_grad=True)
    x.sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients, please consider Adam instead"):
        engine.optim.SparseAdam([x]).step()
