"""Options of optimizers (learning rates and the like) that a step writes itself, which a replay would not do again.

What a scheduler does is a real call at every replay, so what it changes is no matter.
"""

from engine.optim.optimizer import Optimizer, living

_PLAIN = (bool, int, float, tuple)


class Options:
    """The options of all optimizers there are, as they were when this was made or last `settle`d."""

    def __init__(self) -> None:
        self._optimizers = living()
        self.settle()

    def settle(self) -> None:
        """Takes the options of now for granted."""
        self._known = [_plain_options(optimizer) for optimizer in self._optimizers]

    def changed(self) -> str | None:
        """The name of an option that is another one by now."""
        for optimizer, known in zip(self._optimizers, self._known, strict=True):
            for before, after in zip(known, _plain_options(optimizer), strict=False):
                for name in before.keys() | after.keys():
                    if before.get(name) != after.get(name):
                        return name
        return None


def _plain_options(optimizer: Optimizer) -> list[dict[str, str]]:
    """Each group's options that are numbers, as text: -0.0 is not 0.0, and NaN is NaN."""
    groups = optimizer.param_groups
    return [{name: repr(value) for name, value in group.items() if type(value) in _PLAIN} for group in groups]
