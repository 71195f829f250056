"""A rank whose replica is not where the others' are is named: rank, tensor and step."""

from types import SimpleNamespace

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp.gradients.drift import Drift, Statement, in_words, is_in
from ddp.transport.headers import Header
from engine.optim import SGD

LAYERS = 6


class Training:
    """A model of several parts of the checksum, and its loop."""

    def __init__(self, on_drift: str = "error", **options: object) -> None:
        engine.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(130, 130) for _ in range(LAYERS)))
        self.net = ddp.DistributedDataParallel(self.model, bucket_cap_mb=0.1, on_drift=on_drift, **options)
        self.optimizer = SGD(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(engine.ones(2, 130)).mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def round(self) -> int:
        """Steps until every parameter was looked at."""
        return self.net.live_reducer().drift.round


@pytest.mark.mpi(ranks=[2, 3])
def test_replicas_that_are_alike_say_nothing(group) -> None:
    training = Training()
    assert training.round() > 3
    for step in range(2 * training.round()):
        training.optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        training.step()


@pytest.mark.mpi(ranks=[3])
def test_a_rank_that_skips_a_step_after_an_exception_is_named_at_once(group) -> None:
    training = Training()
    training.step()
    if group.rank == 2:
        training.net(engine.ones(2, 130))  # an exception comes before its backward, and somebody catches it
    with pytest.raises(RuntimeError, match="drifted apart: rank 2 at step 3, others at step 2"):
        training.step()
    with pytest.raises(RuntimeError, match="its gradients are no averages"):
        training.optimizer.step()


@pytest.mark.mpi(ranks=[2])
def test_another_number_of_accumulated_backward_passes_is_named(group) -> None:
    training = Training()
    with training.net.no_sync():
        for _ in range(2 + group.rank):
            training.net(engine.ones(2, 130)).mean().backward()
    with pytest.raises(RuntimeError, match="rank 1 at step 4, others at step 3"):
        training.net(engine.ones(2, 130)).mean().backward()


@pytest.mark.mpi(ranks=[3])
def test_another_learning_rate_is_named_within_the_step(group) -> None:
    training = Training()
    training.step()
    training.optimizer.param_groups[0]["lr"] = 0.01 if group.rank != 1 else 0.02
    with pytest.raises(RuntimeError, match=r"rank 1 with learning rate 0\.02, others with 0\.01"):
        training.step()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("other", [float("nan"), 0.01])
def test_a_learning_rate_that_is_no_number_is_like_another_one(group, other: float) -> None:
    training = Training()
    training.step()
    training.optimizer.param_groups[0]["lr"] = float("nan") if group.rank == 0 else other
    if other != other:
        training.steps(2)
    else:
        with pytest.raises(RuntimeError, match=r"rank 1 with learning rate 0\.01, others with nan"):
            training.step()


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize(("rank", "steps"), [(0, 1), (2, 1), (1, 13)])  # after 13 its turn has just been
def test_a_flipped_bit_is_named_within_one_round(group, rank: int, steps: int) -> None:
    training = Training()
    training.steps(steps)
    if group.rank == rank:
        bits = training.model[3].weight.detach().numpy().view(np.uint32)
        bits[7, 9] ^= 1 << 20
    with pytest.raises(RuntimeError, match=rf"rank {rank} with another value of parameter 3.weight"):
        training.steps(training.round())


@pytest.mark.mpi(ranks=[2])
def test_another_checkpoint_is_a_warning_where_that_is_chosen(group) -> None:
    training = Training(on_drift="warn")
    if group.rank == 1:
        training.model.load_state_dict({name: 2 * value for name, value in training.model.state_dict().items()})
    if group.rank == 0:
        with pytest.warns(RuntimeWarning, match=r"drifted apart: rank 1 with another value of parameter 0\.weight"):
            training.step()
    else:
        training.step()


@pytest.mark.mpi(ranks=[2])
def test_in_a_job_the_step_is_the_jobs(group) -> None:
    job = ddp.Job(shards=5)
    training = Training(job=job)

    def body() -> None:
        for _ in job.shards():
            training.net(engine.ones(2, 130)).mean().backward()
        training.optimizer.step()

    for _ in range(3):
        job.run(body)
    job.step += group.rank
    with pytest.raises(RuntimeError, match="rank 1 at step 4, others at step 3"):
        job.run(body)


@pytest.mark.mpi(ranks=[2])
def test_replicas_that_are_to_differ_are_left_alone(group) -> None:
    training = Training(on_drift="ignore")
    training.optimizer.param_groups[0]["lr"] += group.rank
    for _ in range(3):
        training.step()
    local = Training()
    local.step()
    with local.net.no_sync():
        local.optimizer.zero_grad()
        local.net(group.rank * engine.ones(2, 130)).mean().backward()
        local.optimizer.step()
    for _ in range(LAYERS):
        local.step()
    with pytest.raises(ValueError, match="expected on_drift 'error', 'warn' or 'ignore', got 'stop'"):
        Training(on_drift="stop")


def header_of(statements: list[tuple[float, float, float]]) -> Header:
    """Their sum."""
    return Header(0, 0, 0, 0, 0, *np.sum(statements, axis=0).tolist())


@pytest.mark.parametrize("ranks", [2, 3, 1000])
def test_sums_tell_statements_that_differ(ranks: int) -> None:
    parameters = [("w", nn.Parameter(engine.zeros(5)))]
    same = [Drift(parameters, ranks, SimpleNamespace(step=7), True).state() for _ in range(3)]
    other = Drift(parameters, ranks, SimpleNamespace(step=8), True).state()
    assert not is_in(header_of([same[0]] * ranks))
    assert is_in(header_of([same[0]] * (ranks - 1) + [other]))
    assert not is_in(header_of([*same, (0.0, 0.0, 0.0)]))
    assert other[1] ** 2 * ranks <= 2**53


def test_every_byte_is_looked_at_once_a_round() -> None:
    shapes = [(300, 300), (3,), (1,), (70_000,), *[(2, 2)] * 20]
    parameters = [(str(place), nn.Parameter(engine.zeros(shape))) for place, shape in enumerate(shapes)]
    drift = Drift(parameters, 2, None, True)
    for index, (_, parameter) in enumerate(parameters):
        pieces = [piece for part in drift.parts for piece in part if piece.parameter == index]
        assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
        assert pieces[-1].end == parameter.nbytes
    assert all(sum(piece.end - piece.begin for piece in part) <= 1 << 18 for part in drift.parts)
    said = []
    for _ in range(drift.round):
        drift.state()
        said += [name for name, _ in drift.said.sums]
    assert {*said} == {name for name, _ in parameters}
    assert len(said) == sum(map(len, drift.parts))


def test_a_round_of_small_tensors_takes_two_steps_for_each() -> None:
    parameters = [(str(place), nn.Parameter(engine.zeros(16))) for place in range(18)]
    assert Drift(parameters, 2, None, True).round == 36


def test_many_differences_are_counted() -> None:
    sums = [tuple((f"w{place}", rank) for place in range(8)) for rank in (0, 0, 1)]
    text = in_words([Statement(3, (0.1, 0.2), each) for each in sums])
    assert text.startswith("rank 2 with another value of parameter w0; rank 2 with")
    assert text.endswith(", and 3 more")
