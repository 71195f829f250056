"""CTC loss: forms of targets and lengths, and bad input. PyTorch's numbers are in test_against_pytorch."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F


def log_probs(*shape: int, seed: int = 0) -> engine.Tensor:
    return engine.tensor(np.random.default_rng(seed).standard_normal(shape)).log_softmax(-1)


def by_enumeration(lp: np.ndarray, target: list[int]) -> float:
    """-log of the summed probability of every path whose collapse is the target."""
    steps, classes = lp.shape
    total = 0.0
    for path in np.ndindex(*(classes,) * steps):
        collapsed = [label for i, label in enumerate(path) if label and (i == 0 or label != path[i - 1])]
        if collapsed == target:
            total += float(np.exp(sum(lp[t, label] for t, label in enumerate(path))))
    return -np.log(total)


@pytest.mark.parametrize("target", [[], [1], [1, 1], [2, 1], [1, 2, 1]], ids=str)
def test_it_sums_over_all_alignments(target: list[int]) -> None:
    lp = log_probs(5, 1, 3)
    targets = engine.tensor([target or [0]])
    loss = F.ctc_loss(lp, targets, [5], [len(target)], reduction="none")
    np.testing.assert_allclose(loss.numpy(), [by_enumeration(lp[:, 0].numpy(), target)], rtol=1e-10)


def test_gradients_by_differences() -> None:
    x = engine.tensor(np.random.default_rng(1).standard_normal((4, 2, 3)), requires_grad=True)

    def loss(x: engine.Tensor) -> engine.Tensor:
        return F.ctc_loss(x.log_softmax(-1), engine.tensor([[1, 2], [2, 2]]), [4, 3], [2, 2], reduction="sum")

    assert engine.autograd.gradcheck(loss, (x,))


def test_targets_may_be_padded_concatenated_or_alone() -> None:
    lp = log_probs(6, 2, 4)
    padded = F.ctc_loss(lp, engine.tensor([[1, 2, 3], [3, 0, 0]]), engine.tensor([6, 4]), engine.tensor([3, 1]))
    joined = F.ctc_loss(lp, engine.tensor([1, 2, 3, 3]), (6, 4), (3, 1))
    assert engine.equal(padded, joined)
    alone = F.ctc_loss(lp[:, 0], engine.tensor([1, 2, 3]), (6,), (3,), reduction="none")
    assert alone.shape == ()
    assert engine.allclose(alone, F.ctc_loss(lp, engine.tensor([1, 2, 3, 3]), (6, 4), (3, 1), reduction="none")[0])


def test_a_target_that_does_not_fit() -> None:
    lp = log_probs(2, 1, 3).requires_grad_()
    loss = F.ctc_loss(lp, engine.tensor([[1, 1]]), [2], [2])
    assert loss.item() == float("inf")
    loss = F.ctc_loss(lp, engine.tensor([[1, 1]]), [2], [2], zero_infinity=True)
    loss.backward()
    assert loss.item() == 0
    assert not lp.grad.any()


def test_bad_input() -> None:
    lp = log_probs(3, 2, 3)
    targets = engine.tensor([[1, 2], [2, 1]])
    cases = [
        (lambda: F.ctc_loss(lp, targets, [4, 3], [2, 2]), "Expected input_lengths to have value at most 3, but got"),
        (lambda: F.ctc_loss(lp, targets, [3], [2, 2]), "input_lengths must be of size batch_size: expected 2, got 1"),
        (lambda: F.ctc_loss(lp, targets, [3, 3], [2]), "target_lengths must be of size batch_size"),
        (lambda: F.ctc_loss(lp, targets, [3, 3], [3, 2]), "targets to have size at least 3 at dimension 1"),
        (lambda: F.ctc_loss(lp, targets[0], [3, 3], [2, 2]), "as many targets as target_lengths say, 4, got 2"),
        (lambda: F.ctc_loss(lp, targets, [3, 3], [2, 2], blank=3), "blank must be in label range"),
        (lambda: F.ctc_loss(lp, targets + 2, [3, 3], [2, 2]), "expected targets from 0 to 2, got 3 to 4"),
        (lambda: F.ctc_loss(lp.half(), targets, [3, 3], [2, 2]), "not implemented for engine.float16"),
    ]
    for call, message in cases:
        with pytest.raises(RuntimeError, match=message):
            call()
