"""The random numbers of each rank: where its generators are, as part of a checkpoint."""

import random
from typing import Any

import numpy as np

import engine
from ddp.checkpoint.agreeing import ranks_of
from ddp.groups.process_group import ProcessGroup


class RandomStreams:
    """State of the default generators of the engine, of Python and of NumPy on each rank.

        checkpoint.save({"model": model, "random": checkpoint.RandomStreams()}, path)

    On the same number of ranks each goes on as it would have. On another number, rank r takes what rank r modulo that
    number had, jumped ahead so far that streams do not meet; Python's and NumPy's old generator, which cannot jump,
    are seeded anew from it.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self._group = ranks_of(group)

    def local_state_dict(self) -> dict[str, Any]:
        """This rank's."""
        name, words, *place = np.random.get_state()
        states = {
            "engine": engine.get_rng_state(),
            "python": random.getstate(),
            "numpy": (name, np.asarray(words).tolist(), *place),
        }
        return {"ranks": self._group.size(), "of": {int(self._group.rank): states}}

    def keeps(self, place: tuple[Any, ...]) -> bool:
        """All that there are: they are small."""
        return True

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        before, rank = state["ranks"], int(self._group.rank)
        own = state["of"][rank % before]
        engine.set_rng_state(own["engine"])
        random.setstate(own["python"])
        np.random.set_state(own["numpy"])
        if rank >= before:
            generator: Any = engine.default_generator.numpy
            generator.bit_generator.state = generator.bit_generator.jumped(rank // before).state
            seeds = np.random.SeedSequence(generator.bit_generator.state["state"]["state"]).generate_state(2)
            random.seed(int(seeds[0]))
            np.random.seed(seeds[1])
