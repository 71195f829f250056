"""Checkpoints that any number of ranks continues: each rank writes its part, and training goes on meanwhile.

    with checkpoint.Manager("runs/a", {"model": model, "optimizer": optimizer}, every=100) as manager:
        for step in range(manager.restore(), steps):
            ...
            manager.step(step + 1)

Read in this order: manifest (what a checkpoint is), states (what goes into it), dealing (which rank writes what), shard
(a rank's file), places (folders of generations), saving, loading, manager.
"""

from ddp.checkpoint.loading import load as load
from ddp.checkpoint.manager import Manager as Manager
from ddp.checkpoint.random_streams import RandomStreams as RandomStreams
from ddp.checkpoint.saving import save as save
from ddp.checkpoint.tools import consolidate as consolidate
from ddp.checkpoint.tools import difference as difference
from ddp.checkpoint.tools import verify as verify

__all__ = ["Manager", "RandomStreams", "consolidate", "difference", "load", "save", "verify"]
