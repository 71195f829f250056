"""A training that goes on where it was stopped, on as many ranks as there are then.

    ddprun -n 2 examples/checkpoints.py --steps 40      # Ctrl-C, or kill it, whenever you like
    ddprun -n 3 examples/checkpoints.py --steps 80      # goes on from the newest checkpoint
    python -m ddp.checkpoint ls out/checkpoints

The optimizer's state is divided among the ranks, and each rank writes its part of everything while training goes on.
Rank 0 prints the step that was begun with and the loss at the end.
"""

import argparse
from pathlib import Path

import ddp
import engine
import engine.nn.functional as F
from ddp import DistributedDataParallel, ZeroRedundancyOptimizer, checkpoint
from engine import nn
from engine.optim import AdamW
from engine.optim.lr_scheduler import StepLR


def batch(step: int) -> tuple[engine.Tensor, engine.Tensor]:
    """The samples of a step are a function of its number, so a run that goes on sees those that would have come."""
    x = engine.randn(24, 8, generator=engine.Generator().manual_seed(step))
    mine = slice(ddp.get_rank(), None, ddp.get_world_size())
    return x[mine], x.sum(1, keepdim=True)[mine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--out", type=Path, default=Path("out/checkpoints"), help="the directory of checkpoints")
    args = parser.parse_args()

    ddp.init_process_group()
    engine.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    net = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-2)
    scheduler = StepLR(optimizer, 50, 0.5)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loss": None}
    with checkpoint.Manager(args.out, state, every=args.every, keep=2) as manager:
        first = manager.restore()
        for step in range(first, args.steps):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            ddp.all_reduce(mean := loss.detach(), ddp.ReduceOp.AVG)
            state["loss"] = mean.item()
            manager.step(step + 1)
        manager.save(args.steps)
    if ddp.get_rank() == 0:
        print(f"from step {first} to {args.steps}: loss {state['loss']:.4f}")
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
