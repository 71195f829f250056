"""Random numbers of a job: a stream for each shard of each step, which nothing but these numbers decides."""

import hashlib

from engine.data.seeding import seed_everything


def stream(seed: int, step: int, shard: int | None) -> int:
    """The seed, of 63 bits, of one shard's random numbers in one step; None: of what belongs to no shard."""
    text = f"{seed} {step} {shard}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_stream(seed: int, step: int, shard: int | None) -> None:
    """Starts it in this process: Python's, NumPy's and the engine's random numbers."""
    seed_everything(stream(seed, step, shard))


def data_stream(seed: int, step: int, shard: int) -> int:
    """The seed for fetching a shard's samples: their augmentation is drawn elsewhere, and before, so it is another."""
    return stream(seed, step, -1 - shard)
