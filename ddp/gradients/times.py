"""When the last backward did what, and how much of its communication was hidden behind it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Times:
    """Readings of perf_counter; 0 for what has not come yet."""

    first: float = 0.0
    """The first gradient was there."""
    started: float = 0.0
    """The first bucket was started."""
    last: float = 0.0
    """The last gradient was there."""
    done: float = 0.0
    """Everything was handed out."""

    def overlap(self) -> dict[str, float]:
        """Seconds of the last backward, and the share of its communication that was hidden behind it.

        `backward`: from its first gradient to its last. `communication`: from the start of the first bucket until
        everything was handed out. `exposed`: the part of that after the last gradient. `hidden`: the share before it.
        (Sums are work for the cores, too: what this rank did of them meanwhile is part of its backward.)
        """
        communication = self.done - self.started
        return {
            "backward": self.last - self.first,
            "communication": communication,
            "exposed": self.done - max(self.started, self.last),
            "hidden": max(0.0, self.last - self.started) / communication if communication else 0.0,
        }
