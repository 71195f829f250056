"""`ddp.timeline`: where the time of data-parallel steps goes on every rank."""

from ddp.timeline.recorder import timeline

__all__ = [
    "timeline",
]
