"""Train a small convolutional network on handwritten digits, over any number of ranks.

    python examples/digits.py                          # one process, no launcher
    ddprun -n 2 examples/digits.py                     # two ranks on this machine
    ddprun examples/digits.py --device cuda            # a rank for each GPU
    mpirun -n 4 python examples/digits.py --epochs 20  # any MPI launcher

    ddprun -n 3 examples/digits.py --shards 12 --steps 20  # the same bits on any number of ranks

    ddprun -n 3 --elastic 1 examples/digits.py --shards 12  # kill a rank: the others go on, with the same result
    ddprun -n 3 --elastic 1:3 examples/digits.py --shards 12 --checkpoint states --resume auto  # and it is replaced
    ddprun -n 2 examples/digits.py --checkpoint out/states --resume auto  # stop it, and start it again

The batch size is the global one, so every world size sees the same batches and learns the same thing; with the same
--shards it learns it to the last bit, which `digest` in the last line tells.
Rank 0 writes curves.png and digits.ckpt to --out; the last line of standard output is one JSON object.
"""

import argparse
import json
import math
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel, Job, ShardSampler, checkpoint
from engine.data import DataLoader, TensorDataset
from engine.optim import AdamW
from engine.optim.lr_scheduler import CosineAnnealingLR


class DigitsNet(nn.Module):
    """Three convolutions and a linear layer: x (N, 1, 8, 8) -> logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        x = F.relu(self.conv1(x))  # (N, 16, 8, 8)
        x = self.pool(F.relu(self.conv2(x)))  # (N, 32, 4, 4)
        x = self.pool(F.relu(self.conv3(x)))  # (N, 64, 2, 2)
        return self.head(x.flatten(1))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """1437 digits for training and 360 for testing, equal shares of every class; pixels scaled to [-1, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998
    (CC BY 4.0); those of scikit-learn's `load_digits`, whose `train_test_split` has drawn the last fifth.
    """
    with np.load(Path(__file__).with_suffix(".npz")) as file:
        images, labels = file["images"], file["labels"]  # (1797, 8, 8) of 0 ... 16, (1797,) of 0 ... 9
    pixels = engine.from_numpy((images[:, None] / 8 - 1).astype(np.float32))
    classes = engine.from_numpy(labels.astype(np.int64))
    return TensorDataset(pixels[:1437], classes[:1437]), TensorDataset(pixels[1437:], classes[1437:])


def evaluate(model: nn.Module, dataset: TensorDataset) -> float:
    """Accuracy over the whole data set: each rank scores every world-size-th sample, none is scored twice."""
    images, labels = (tensor[ddp.get_rank() :: ddp.get_world_size()] for tensor in dataset.tensors)
    device = next(model.parameters()).device
    model.eval()
    with engine.no_grad():
        logits = model(images.to(device, memory_format=engine.channels_last))
    model.train()
    correct = (logits.argmax(dim=1) == labels.to(device)).sum()
    ddp.all_reduce(correct)
    return correct.item() / len(dataset)


def plot(history: list[dict[str, float]], path: Path) -> None:
    """Loss and test accuracy over the epochs, side by side. The file itself says what the last epoch gave."""
    from matplotlib.figure import Figure  # one rank needs it, at its end: the others would load it in vain

    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [row["loss"] for row in history], marker="o")
    left.set(title="training loss", xlabel="epoch")
    right.plot(epochs, [row["accuracy"] for row in history], marker="o", color="tab:green")
    right.set(title="test accuracy", xlabel="epoch", ylim=(None, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, metadata={"Description": json.dumps(history[-1])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, help="stop after so many steps, which may be in the middle of an epoch")
    parser.add_argument("--batch-size", type=int, default=48, help="samples in one step over all ranks")
    parser.add_argument("--shards", type=int, help="into how many parts a step is cut; default: the number of ranks")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate at the start; it falls to 0 as a cosine")
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for the curves and the checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="directory for checkpoints that any number of ranks continues")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps from one to the next")
    parser.add_argument("--resume", choices=["auto"], help="go on from the newest one there, if there is any")
    parser.add_argument("--device", default="cpu", help='"cuda" trains on GPUs')
    args = parser.parse_args()

    ddp.init_process_group()
    device = engine.device(args.device)

    job = Job(args.shards, seed=0)
    if args.batch_size % job.num_shards:
        raise ValueError(
            f"--batch-size {args.batch_size} does not divide over {job.num_shards} shards: give a multiple of "
            f"{job.num_shards}"
        )
    train_set, test_set = load_data()
    loader = DataLoader(train_set, batch_sampler=ShardSampler(train_set, args.batch_size, job))

    model = DigitsNet().to(device, memory_format=engine.channels_last)
    net = DistributedDataParallel(model, gradient_as_bucket_view=True, job=job)
    optimizer = AdamW(net.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))

    def train_step() -> float:
        """One step; the mean of its shards' losses."""
        losses = []
        for images, labels in job.shards(loader):
            logits = net(images.to(device, memory_format=engine.channels_last))
            # Without smoothing accuracy ends near 0.986.
            loss = F.cross_entropy(logits, labels.to(device), label_smoothing=0.1)
            loss.backward()
            losses.append(loss.detach())
        mean = job.mean(losses)  # before the step: after it ranks need nobody, so that one may be lost (--elastic)
        optimizer.step()
        scheduler.step()
        return mean

    speeds = []
    started = time.perf_counter()
    steps = args.epochs * len(loader) if args.steps is None else args.steps
    epochs = math.ceil(steps / len(loader))
    states: dict[str, Any] = {"job": job, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    states |= {"history": [], "losses": []}  # of all epochs, and of the present one
    saving = checkpoint.Manager(args.checkpoint, states, every=args.checkpoint_every) if args.checkpoint else None
    with saving or nullcontext():
        if saving and args.resume:
            saving.restore()
        bar = tqdm(total=steps, initial=job.step, leave=False, disable=ddp.get_rank() != 0)
        # The job says how far it is: a process that replaces a lost rank (--elastic 1:3) learns it in its first step.
        while (epoch := len(states["history"]) + 1) <= epochs:
            if job.step < min(epoch * len(loader), steps):
                step_started = time.perf_counter()
                loss = job.run(train_step)
                speeds.append(args.batch_size / (time.perf_counter() - step_started))
                states["losses"].append(loss)
                bar.update()
                if saving:
                    saving.step(job.step)
                continue

            loss_mean = statistics.fmean(states["losses"]) if states["losses"] else math.nan
            states["losses"].clear()
            accuracy = job.between(evaluate, model, test_set)
            states["history"].append({"epoch": epoch, "loss": loss_mean, "accuracy": accuracy})
            if ddp.get_rank() == 0:
                bar.clear()
                print(f"epoch {epoch:2d}   loss {loss_mean:.4f}   test accuracy {accuracy:.4f}", flush=True)
        bar.close()

    history = states["history"]
    if ddp.get_rank() == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        plot(history, args.out / "curves.png")
        engine.save(model.state_dict(), args.out / "digits.ckpt")
        summary = {
            "test_accuracy": history[-1]["accuracy"],
            "train_loss": history[-1]["loss"],
            "world_size": ddp.get_world_size(),
            "samples_per_second": round(statistics.median(speeds), 1) if speeds else None,
            "seconds": round(time.perf_counter() - started, 2),
            "epochs": len(history),
            "steps": job.step,
            "shards": job.num_shards,
            "digest": ddp.digest(net, optimizer),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "curves": str(args.out / "curves.png"),
            "checkpoint": str(args.out / "digits.ckpt"),
        }
        print(json.dumps(summary), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
