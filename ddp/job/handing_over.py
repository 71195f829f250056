"""What a process gets that takes the place of a lost rank: all that a job has, and would find in a checkpoint."""

import random
from typing import TYPE_CHECKING, Any

import numpy as np

import engine
from ddp import losses
from engine.optim import Optimizer
from engine.tensor import array_of

if TYPE_CHECKING:
    from ddp.job.job import Job


def give(job: "Job") -> dict[str, Any]:
    """The state of a job between two steps: its own, its models', and what managers of checkpoints keep."""
    return {
        "job": job.state_dict(),
        "models": [[array_of(tensor) for tensor in _tensors(net.module)] for net in job.wrapped()],
        "keepers": [keeper.give() for keeper in losses.keepers],
        "streams": (engine.get_rng_state(), random.getstate(), np.random.get_state()),
    }


def take(job: "Job", given: dict[str, Any]) -> None:
    """Takes over what another rank has given."""
    job.load_state_dict(given["job"])
    job.fingerprint = given["job"]["fingerprint"]
    for net, arrays in zip(job.wrapped(), given["models"], strict=True):
        for tensor, array in zip(_tensors(net.module), arrays, strict=True):
            array_of(tensor)[...] = array
    for keeper, kept in zip([*losses.keepers], given["keepers"], strict=True):
        keeper.take(kept)
    engine_state, python_state, numpy_state = given["streams"]
    engine.set_rng_state(engine_state)
    random.setstate(python_state)
    np.random.set_state(numpy_state)


def refuse_unknown(optimizer: Optimizer) -> None:
    """Raises ValueError for an optimizer whose state a replacement would not get."""
    if not any(keeper.holds(optimizer) for keeper in losses.keepers):
        raise ValueError(
            f"ddprun --elastic MIN:N: this {type(optimizer).__name__} is in the state of no checkpoint.Manager, so a "
            "process that replaces a lost rank would not have its state; give it to one, or say --elastic MIN"
        )


def _tensors(module: engine.nn.Module) -> list[engine.Tensor]:
    return [*module.parameters(), *module.buffers()]
