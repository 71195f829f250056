"""Every optimizer of `engine.optim` on one small problem, beside learning rate schedules and what else a step can need.

    python examples/optimizers.py

Names and arguments are PyTorch's, where it has them. Prints the loss before and after 100 steps of each.
"""

from collections.abc import Callable

import engine
import engine.nn.functional as F
from engine import nn, optim
from engine.optim import lr_scheduler
from engine.optim.swa_utils import AveragedModel

STEPS = 100


def problem() -> tuple[nn.Module, Callable[[], engine.Tensor]]:
    """A small network and its loss on data that never change."""
    engine.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    x = engine.randn(64, 4)
    y = x.sin().sum(1, keepdim=True)
    return model, lambda: F.mse_loss(model(x), y)


def train(make: Callable[..., optim.Optimizer], **options: float) -> tuple[float, float]:
    """The loss before and after."""
    model, loss_of = problem()
    optimizer = make(model.parameters(), **options)
    before = loss_of().item()
    for _ in range(STEPS):

        def closure() -> engine.Tensor:  # LBFGS calls it several times a step, the others once
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            return loss

        optimizer.step(closure)
    return before, loss_of().item()


OPTIMIZERS: list[tuple[Callable[..., optim.Optimizer], dict[str, float]]] = [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (optim.Adam, {"lr": 0.01}),
    (optim.AdamW, {"lr": 0.01, "weight_decay": 0.01}),
    (optim.Adamax, {"lr": 0.01}),
    (optim.NAdam, {"lr": 0.01}),
    (optim.RAdam, {"lr": 0.01}),
    (optim.Adagrad, {"lr": 0.1}),
    (optim.Adadelta, {"lr": 1.0}),
    (optim.Adafactor, {"lr": 0.01}),
    (optim.RMSprop, {"lr": 0.01}),
    (optim.Rprop, {"lr": 0.01}),
    (optim.ASGD, {"lr": 0.1}),
    (optim.LBFGS, {"lr": 0.1, "max_iter": 4}),
    # Beyond PyTorch, for large batches
    (optim.LARS, {"lr": 1.0, "trust_coefficient": 0.02}),
    (optim.LAMB, {"lr": 0.01}),
]


def groups_schedule_and_clipping() -> float:
    """Biases without weight decay, gradients clipped, a warm-up and a cosine, an average of the weights."""
    model, loss_of = problem()
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    optimizer = optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.02, weight_decay=0.1)
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - 10)
    schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[10])
    average = AveragedModel(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    optimizer.load_state_dict(optimizer.state_dict())  # what a checkpoint would hold
    return loss.item()


def accumulation() -> float:
    """Four backward passes, one step: a batch four times as large as memory holds."""
    model, loss_of = problem()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        (loss_of() / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return loss_of().item()


def sparse_table() -> float:
    """A table of which each step reads a few rows: their gradients are sparse, and the other rows stay as they are."""
    engine.manual_seed(0)
    table = nn.Embedding(1000, 4, sparse=True)
    optimizer = optim.SparseAdam(table.parameters(), lr=0.1)
    rows, wanted = engine.tensor([3, 14, 159]), engine.ones(3, 4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(table(rows), wanted)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    for make, options in OPTIMIZERS:
        before, after = train(make, **options)
        print(f"{make.__name__:10} {before:.4f} -> {after:.4f}")
    print(f"groups, schedule, clipping, average: {groups_schedule_and_clipping():.4f}")
    print(f"accumulated gradients: {accumulation():.4f}")
    print(f"SparseAdam, three rows of a table: {sparse_table():.4f}")


if __name__ == "__main__":
    main()
