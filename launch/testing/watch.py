"""When to wait no more for the ranks that are still inside a test."""

from collections.abc import Sequence

from launch.testing.channel import Channel

_AFTER_FAILURE = 2.0  # seconds that the other ranks have to end a test in which one rank has failed
_STILL = 5.0  # seconds without a movement, after which ranks that the others have left behind are given up
_LOOK = 0.5  # seconds between looks at their stacks


class Watch:
    """One test's run on all ranks, and why to end it: `timeout`; a failure on one rank; or ranks that parted.

    They have parted when one is through with the test, or has met an exception that it expected, and another has not.
    That may be as it should be, so the others' stacks are looked at: who moves is waited for. Who does not is, for all
    that can be seen from outside, inside a collective to which not all come.
    """

    def __init__(self, ranks: int, deadline: float, reason: str) -> None:
        self.reason = reason
        self._deadline = deadline
        self._expected: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
        self._through: set[int] = set()
        self._failed = False
        self._seen: set[str] = set()
        self._still_since: float | None = None

    def failed(self, now: float) -> None:
        """A rank has failed: the others have a moment to fail too."""
        if not self._failed:
            self._failed = True
            if now + _AFTER_FAILURE < self._deadline:
                self._deadline, self.reason = now + _AFTER_FAILURE, f"still running {_AFTER_FAILURE:g} s after that"

    def expected(self, channel: Channel, traceback: str) -> None:
        """A rank met an exception inside `pytest.raises`."""
        self._expected[channel.rank].append(traceback)

    def through(self, channel: Channel) -> None:
        """A rank has ended the test, its teardown included."""
        self._through.add(channel.rank)

    def patience(self, now: float) -> float:
        """Seconds to wait for the next message."""
        left = max(0.0, self._deadline - now)
        return min(left, _LOOK) if self._parted() else left

    def gives_up(self, now: float, inside: Sequence[Channel]) -> bool:
        """Whether to end the job, asked when nothing came for `patience`; `reason` says why."""
        if now >= self._deadline:
            return True
        if not self._parted():
            self._still_since = None
            return False
        stacks = {channel.stack() for channel in inside}  # what they wrote when they were asked the last time
        for channel in inside:
            channel.ask_for_stack()
        if self._still_since is None or stacks - self._seen:
            self._seen |= stacks
            self._still_since = now
        if now - self._still_since < _STILL:
            return False
        if self._through:
            ahead = f"rank {min(self._through)} was through with the test"
        else:
            ahead = f"rank {max(self._expected, key=lambda rank: len(self._expected[rank]))} raised what it expected"
        self.reason = f"did not move for {_STILL:g} s after {ahead}"
        return True

    def expectations(self) -> list[str]:
        """What the ranks had met inside `pytest.raises`, the last of each."""
        return [f"--- expected on rank {rank}\n{met[-1]}" for rank, met in self._expected.items() if met]

    def _parted(self) -> bool:
        return len({(rank in self._through, len(met)) for rank, met in self._expected.items()}) > 1
