"""Differentiable collectives: on every rank the gradients, of first and second order, of one process that has all
ranks' tensors.
"""

import pytest

import ddp
import engine
from ddp import ReduceOp
from ddp.nn import functional as F

EVERYWHERE = pytest.mark.mpi(ranks=[1, 2, 3, 4])


def parts(ranks: int, count: int) -> list[list[engine.Tensor]]:
    """For each rank `count` matrices of small numbers, in double precision, that require gradients."""
    engine.manual_seed(7)
    values = [[engine.randint(-3, 4, (2, 3)).double() for _ in range(count)] for _ in range(ranks)]
    return [[value.requires_grad_() for value in of_rank] for of_rank in values]


# Each: what one rank calls, and what all ranks get when one process has everything.
# inputs of rank r: a list of as many matrices as there are ranks; results: a list of matrices.
COLLECTIVES = {
    "all_reduce": (
        lambda own, ranks: [F.all_reduce(own[0])],
        lambda everyone, ranks: [[sum(own[0] for own in everyone)]] * ranks,
    ),
    "all_reduce AVG": (
        lambda own, ranks: [F.all_reduce(own[0], ReduceOp.AVG)],
        lambda everyone, ranks: [[sum(own[0] for own in everyone) / ranks]] * ranks,
    ),
    "all_reduce premultiplied": (
        lambda own, ranks: [F.all_reduce(own[0], ddp._make_nccl_premul_sum(ddp.get_rank() + 2.0))],
        lambda everyone, ranks: [[sum((rank + 2.0) * own[0] for rank, own in enumerate(everyone))]] * ranks,
    ),
    "broadcast": (
        lambda own, ranks: [F.broadcast(own[0], ranks - 1)],
        lambda everyone, ranks: [[everyone[-1][0]]] * ranks,
    ),
    "reduce": (
        lambda own, ranks: [F.reduce(own[0], ranks - 1)],
        lambda everyone, ranks: [
            [sum(own[0] for own in everyone) * (1.0 if rank == ranks - 1 else 0.0)] for rank in range(ranks)
        ],
    ),
    "all_gather": (
        lambda own, ranks: list(F.all_gather(own[0])),
        lambda everyone, ranks: [[own[0] for own in everyone]] * ranks,
    ),
    "gather": (
        lambda own, ranks: list(F.gather(own[0], ranks - 1)),
        lambda everyone, ranks: [
            [own[0] * (1.0 if rank == ranks - 1 else 0.0) for own in everyone] for rank in range(ranks)
        ],
    ),
    "scatter": (
        lambda own, ranks: [F.scatter(own, ranks - 1)],
        lambda everyone, ranks: [[everyone[-1][rank]] for rank in range(ranks)],
    ),
    "reduce_scatter": (
        lambda own, ranks: [F.reduce_scatter(engine.empty(2, 3).double(), own)],
        lambda everyone, ranks: [[sum(own[rank] for own in everyone)] for rank in range(ranks)],
    ),
    "all_to_all": (
        lambda own, ranks: list(F.all_to_all([engine.empty(2, 3).double() for _ in range(ranks)], own)),
        lambda everyone, ranks: [[own[rank] for own in everyone] for rank in range(ranks)],
    ),
    "all_to_all_single": (
        lambda own, ranks: [
            F.all_to_all_single(engine.empty(2 * ranks, 3).double(), engine.cat(own), [2] * ranks, [2] * ranks)
        ],
        lambda everyone, ranks: [[engine.cat([own[rank] for own in everyone])] for rank in range(ranks)],
    ),
}


def loss_of(results: list[engine.Tensor], rank: int) -> engine.Tensor:
    """Different on every rank, and not linear, so that there is a second derivative."""
    return sum(((rank + place + 1.0) * result**3).sum() for place, result in enumerate(results))


def derivatives(loss: engine.Tensor, inputs: list[engine.Tensor]) -> tuple[list, list]:
    """Of the loss, and of the sum of its squared gradients; zeros where the loss does not depend on an input."""
    first = engine.autograd.grad(loss, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
    squares = sum((gradient**2).sum() for gradient in first)
    second = engine.autograd.grad(squares, inputs, allow_unused=True, materialize_grads=True)
    return list(first), list(second)


@EVERYWHERE
@pytest.mark.parametrize("name", COLLECTIVES)
def test_derivatives_are_those_of_one_process(group, ranks: int, name: str) -> None:
    """A derivative here is that of the sum of all ranks' losses."""
    collective, in_one_process = COLLECTIVES[name]
    everyone = parts(ranks, ranks)
    own = parts(ranks, ranks)[group.rank]
    results, expected = collective(own, ranks), in_one_process(everyone, ranks)
    for found, wanted in zip(results, expected[group.rank], strict=True):
        assert engine.equal(found, wanted)
    whole_loss = sum(loss_of(of_rank, rank) for rank, of_rank in enumerate(expected))
    first, second = derivatives(loss_of(results, group.rank), own)
    wanted_first, wanted_second = derivatives(whole_loss, [tensor for of_rank in everyone for tensor in of_rank])
    mine = slice(group.rank * ranks, (group.rank + 1) * ranks)
    for found, wanted in zip([*first, *second], [*wanted_first[mine], *wanted_second[mine]], strict=True):
        assert engine.equal(found, wanted)


@EVERYWHERE
def test_the_input_is_left_as_it_was(group) -> None:
    tensor = engine.ones(2, requires_grad=True)
    F.all_reduce(tensor)
    F.broadcast(tensor, 0)
    F.reduce(tensor, 0)
    assert tensor.tolist() == [1, 1]


@EVERYWHERE
def test_an_operation_without_a_derivative(group, ranks: int) -> None:
    with pytest.raises(ValueError, match="all_reduce: MAX has no derivative here; expected SUM, AVG"):
        F.all_reduce(engine.ones(2, requires_grad=True), ReduceOp.MAX)
    assert F.all_reduce(engine.full((2,), float(group.rank)), ReduceOp.MAX).tolist() == [ranks - 1] * 2


def test_a_world_of_one_without_mpi_or_launcher() -> None:
    ddp.init_process_group()
    tensor = engine.ones(2, requires_grad=True)
    (ddp.nn.functional.all_reduce(tensor) ** 2).sum().backward()
    assert tensor.grad.tolist() == [2, 2]
    ddp.destroy_process_group()
