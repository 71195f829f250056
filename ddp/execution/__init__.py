"""How a collective goes from its call to its result: the ranks compare their calls, bytes move, a `Work` is over."""

from ddp.execution.calls import Account, Call, calling_line
from ddp.execution.collective import Collective, run
from ddp.execution.futures import Future
from ddp.execution.layouts import TensorLayout, find_difference
from ddp.execution.lines import Lines
from ddp.execution.messages import Messages
from ddp.execution.work import Work

__all__ = [
    "Account",
    "Call",
    "Collective",
    "Future",
    "Lines",
    "Messages",
    "TensorLayout",
    "Work",
    "calling_line",
    "find_difference",
    "run",
]
