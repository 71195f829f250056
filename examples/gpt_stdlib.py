"""Train a byte-level GPT on the source text of this Python's own standard library, over any number of ranks.

    python examples/gpt_stdlib.py                    # one process, no launcher
    ddprun -n 2 examples/gpt_stdlib.py               # two ranks on this machine
    ddprun examples/gpt_stdlib.py --device cuda      # a rank for each GPU
    ddprun -n 2 examples/gpt_stdlib.py --resume      # go on from --out/gpt.ckpt, bit for bit

    ddprun -n 2 examples/gpt_stdlib.py --checkpoint out/states --resume auto  # stop it, and start it again

    ddprun -n 3 examples/gpt_stdlib.py --shards 12   # the same bits on any number of ranks
    ddprun -n 3 --elastic 1 examples/gpt_stdlib.py --shards 12   # also where ranks are lost: the others go on
    ddprun -n 3 --max-restarts 5 examples/gpt_stdlib.py --shards 12  # or it is started again

The batch size is the global one, so every world size trains on the same batches; with the same --shards it ends in the
same bits, which `digest` in the last line tells. Validation loss is in bits per
byte; the last line of standard output is one JSON object.
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import sysconfig
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel, Job, checkpoint
from engine.optim import AdamW
from engine.optim.lr_scheduler import LambdaLR

VOCABULARY = 256  # every byte is a token
TEXT_BYTES = 8_000_000  # of the standard library, in order of file name
VALIDATION_WINDOWS = 96  # evenly spaced over the validation text
LEARNING_RATE = 2.5e-3
WARMUP_STEPS = 50
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0


class Block(nn.Module):
    """Pre-norm transformer block: x (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        batch, time_steps, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, T, C / heads) each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Byte-level GPT-2: bytes (B, T) int64 -> logits (B, T, 256). Source: Radford et al. 2019."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight  # tied: one Parameter, used twice, counted once
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                # The layers that write to the residual stream start smaller: 2 * layers of them add up.
                residual = name.endswith(("attention_out.weight", "mlp_out.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: engine.Tensor) -> engine.Tensor:
        x = self.token(tokens) + self.position(engine.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def standard_library() -> tuple[np.ndarray, np.ndarray]:
    """Training and validation text as uint8 arrays: every tenth file is held out, tests are left out."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = set(folders) - skipped  # not even looked into: packages are installed there
        names += [Path(folder, name).relative_to(root).as_posix() for name in files if name.endswith(".py")]
    names.sort()
    texts: tuple[list[bytes], list[bytes]] = ([], [])
    room = TEXT_BYTES
    for number, name in enumerate(names):
        text = (root / name).read_bytes()[:room]
        texts[number % 10 == 9].append(text)
        room -= len(text)
    train, validation = (np.frombuffer(b"".join(parts), dtype=np.uint8) for parts in texts)
    return train, validation


def windows(text: np.ndarray, starts: np.ndarray, context: int) -> tuple[engine.Tensor, engine.Tensor]:
    """Inputs (B, T) and targets (B * T): the targets are the inputs one byte on."""
    bytes_ = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return engine.from_numpy(bytes_[:, :-1].copy()), engine.from_numpy(bytes_[:, 1:].flatten())


def loss_of(net: nn.Module, inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
    """Mean cross-entropy in nats a byte, on the device of the model."""
    device = next(net.parameters()).device
    return F.cross_entropy(net(inputs.to(device)).flatten(0, 1), targets.to(device))


def bits_per_byte(model: GPT, validation: np.ndarray) -> float:
    """Mean loss over the validation windows; each rank scores every world-size-th, none is scored twice."""
    starts = np.linspace(0, len(validation) - model.context - 1, VALIDATION_WINDOWS).astype(np.int64)
    mine = starts[ddp.get_rank() :: ddp.get_world_size()]
    total = engine.zeros((), dtype=engine.float64, device=next(model.parameters()).device)
    model.eval()
    with engine.no_grad():
        for first in range(0, len(mine), 8):
            group = mine[first : first + 8]
            total += loss_of(model, *windows(validation, group, model.context)).double() * len(group)
    model.train()
    ddp.all_reduce(total)
    return total.item() / VALIDATION_WINDOWS / math.log(2)


def generate(model: GPT, prompt: bytes, length: int) -> str:
    """The prompt and `length` more bytes, drawn one by one from the model at temperature 0.8."""
    generator = engine.Generator().manual_seed(0)
    tokens = engine.tensor([list(prompt)])
    device = next(model.parameters()).device
    model.eval()
    with engine.no_grad():
        for _ in range(length):
            logits = model(tokens[:, -model.context :].to(device))[:, -1].cpu()
            drawn = engine.multinomial(F.softmax(logits / 0.8, dim=-1), 1, generator=generator)
            tokens = engine.cat([tokens, drawn], dim=1)
    model.train()
    return bytes(tokens[0].tolist()).decode("utf-8", errors="replace")


def decay_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups for the optimizer: matrices and embeddings decay, biases and norms do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up to 1, then half a cosine down to 0.1 at the last step."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = min(1.0, (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def load_checkpoint(path: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint at `path`. Raises ValueError unless this example wrote it, with the settings in `run`."""
    saved = engine.load(path)
    if not isinstance(saved, dict) or not isinstance(saved.get("run"), dict):
        raise ValueError(f"{path} is a checkpoint, but not one of examples/gpt_stdlib.py: choose another --out")
    check_run(path, saved["run"], run)
    return saved


def check_run(path: Path, theirs: dict[str, Any], run: dict[str, Any]) -> None:
    """Raises ValueError where the settings at `path` are other than those of this run."""
    for key, value in run.items():
        if theirs.get(key) != value:
            raise ValueError(f"{path} was written with {key} = {theirs.get(key)!r}, this run has {key} = {value!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800, help="optimizer steps; the learning rate's cosine ends there")
    parser.add_argument("--batch-size", type=int, default=24, help="sequences in one step over all ranks")
    parser.add_argument("--shards", type=int, help="into how many parts a step is cut; default: the number of ranks")
    parser.add_argument("--accumulate", type=int, default=2, help="backward passes that share one step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64, help="bytes a sequence")
    parser.add_argument("--save-every", type=int, default=200, help="steps between evaluations and checkpoints")
    parser.add_argument("--sample", type=int, default=300, help="bytes to generate at the end")
    parser.add_argument("--checkpoint", type=Path, help="directory for checkpoints that any number of ranks continues")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps from one to the next")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="out",
        choices=["auto", "out"],
        help="auto: go on from the newest in --checkpoint, if there is any; out, or nothing: from the one in --out",
    )
    parser.add_argument("--out", type=Path, default=Path("out/gpt_stdlib"), help="folder for the checkpoint")
    parser.add_argument("--device", default="cpu", help='"cuda" trains on GPUs')
    args = parser.parse_args()

    ddp.init_process_group()
    job = Job(args.shards, seed=0)
    if args.batch_size % (job.num_shards * args.accumulate):
        raise ValueError(
            f"--batch-size {args.batch_size} does not divide over {job.num_shards} shards x {args.accumulate} backward "
            f"passes: give a multiple of {job.num_shards * args.accumulate}"
        )
    if args.width % 32:
        raise ValueError(f"--width {args.width} does not divide into heads of 32: give a multiple of 32")
    train, validation = standard_library()

    model = GPT(args.layers, args.width, args.width // 32, args.context).to(args.device)
    net = DistributedDataParallel(model, gradient_as_bucket_view=True, job=job)
    optimizer = AdamW(decay_groups(model), lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
    scheduler = LambdaLR(optimizer, lambda step: learning_rate_factor(step, args.steps))

    # Everything that decides the numbers of a run; a checkpoint of another run is refused.
    shape = {key: getattr(args, key) for key in ("steps", "batch_size", "accumulate", "layers", "width", "context")}
    run = {**shape, "text": hashlib.sha256(train.tobytes() + validation.tobytes()).hexdigest()}
    path = args.out / "gpt.ckpt"
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by ddprun --max-restarts
    if args.resume == "out" or (restarted and args.resume is None and path.exists()):
        saved = load_checkpoint(path, run)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        job.load_state_dict(saved["job"])
    held = {"job": job, "model": model, "optimizer": optimizer, "scheduler": scheduler, "run": run}
    saving = checkpoint.Manager(args.checkpoint, held, every=args.checkpoint_every) if args.checkpoint else None
    if saving and args.resume == "auto" and saving.restore():
        check_run(args.checkpoint, held["run"], run)
    first_step = job.step
    if ddp.get_rank() == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"{len(train):,} bytes of training text, {len(validation):,} of validation text", flush=True)

    durations: list[float] = []

    def tokens_per_second() -> float:
        return round(args.batch_size * args.context / statistics.median(durations), 1)

    bpb = bits_per_byte(model, validation) if first_step >= args.steps else math.nan

    def train_step() -> engine.Tensor:
        """One step; the norm of its gradients."""
        # Randomness after initialisation is this draw alone, and it depends on nothing but (seed, step): the step in
        # the checkpoint is the position in the data, and a resumed run sees the batches of an uninterrupted one.
        starts = np.random.default_rng((0, job.step)).integers(0, len(train) - args.context, args.batch_size)
        micro_batches = np.split(starts, args.accumulate)
        for shard in job.shards():
            for micro_batch in micro_batches:
                last = micro_batch is micro_batches[-1]
                own = micro_batch[shard :: job.num_shards]
                with nullcontext() if last else net.no_sync():
                    loss = loss_of(net, *windows(train, own, args.context)) / args.accumulate
                    loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), CLIP_NORM)
        optimizer.step()
        scheduler.step()
        return norm

    with saving or nullcontext():
        while job.step < args.steps:
            started = time.perf_counter()
            norm = job.run(train_step)
            durations.append(time.perf_counter() - started)
            if saving:
                saving.step(job.step)

            done = job.step
            if done % args.save_every == 0 or done == args.steps:
                bpb = job.between(bits_per_byte, model, validation)
                if ddp.get_rank() == 0:
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    states |= {"scheduler": scheduler.state_dict(), "job": job.state_dict()}
                    engine.save({"run": run, "step": done, **states}, path)
                    print(
                        f"step {done:4d}/{args.steps}   validation {bpb:.4f} bits per byte   "
                        f"gradient norm {norm.item():.3f}   {tokens_per_second():,.0f} tokens/s",
                        flush=True,
                    )

    if ddp.get_rank() == 0:
        if args.sample:
            print(generate(model, b"def ", args.sample))
        summary = {
            "val_bits_per_byte": bpb,
            "world_size": ddp.get_world_size(),
            "tokens_per_second": tokens_per_second() if durations else None,
            "steps": args.steps,
            "shards": job.num_shards,
            "digest": ddp.digest(net, optimizer),
            "first_step": first_step,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "checkpoint": str(path),
        }
        print(json.dumps(summary), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
