"""When a backward does not end: its buckets are sent with that news, so that no rank waits for ever.

Nothing is sent at once when an exception comes by. If nobody catches it, its traceback shall be the only one.
"""

from collections.abc import Callable, Sequence

import engine
from ddp.gradients.bucket import Bucket
from ddp.gradients.grad_bucket import BoundHook
from ddp.gradients.stage import Stage


def fail(buckets: Sequence[Bucket], last_shard: bool) -> None:
    """An exception has ended a backward: what was not started is owed to the other ranks."""
    for bucket in buckets:
        if bucket.stage is Stage.FILLING or not (last_shard or bucket.stage is Stage.FAILED):
            bucket.enter(Stage.FAILED)


def recover(
    buckets: Sequence[Bucket],
    weight: float,
    hook: BoundHook | None,
    on_summed: Callable[[list[engine.Tensor]], None] | None,
) -> list[Exception]:
    """Collective with the backward that failed here: sends what is owed and waits for what is under way.

    Returns what went wrong in that. Nothing in the buckets counts any more.
    """
    errors: list[Exception] = []
    for bucket in buckets:
        if bucket.stage is Stage.FAILED:
            bucket.give_up(weight, hook)
    for bucket in buckets:
        if bucket.stage is Stage.FLYING:
            try:
                if bucket.wait() is None and on_summed is not None:  # as the other ranks do
                    bucket.hand_out()
                    on_summed(bucket.parameters)
            except Exception as error:  # noqa: BLE001 - the Reducer tells of it
                errors.append(error)
    for bucket in buckets:
        bucket.forget()
    return errors


def shadow(buckets: Sequence[Bucket], weight: float, hook: BoundHook | None) -> str | None:
    """Collective with the others' backward: zeros of this weight take part in it. Returns whose failed, in words.

    After an exception in here the buckets are those of a backward that failed.
    """
    for bucket in buckets:
        bucket.enter(Stage.FILLING)
    for bucket in buckets:
        bucket.shadow(weight, hook)
    failures = [failure for bucket in buckets if (failure := bucket.wait()) is not None]
    for bucket in buckets:
        bucket.forget()
    return failures[0] if failures else None


def failed(who: str) -> RuntimeError:
    """The error on the ranks whose own backward went well."""
    return RuntimeError(
        f"DistributedDataParallel: an exception ended the backward of {who}, so the gradients of this step are no "
        "averages; the cause is in that rank's output"
    )


def first_of(errors: Sequence[Exception]) -> Exception:
    """The first one, with a note of every other."""
    first = errors[0]
    for text in dict.fromkeys(f"{type(error).__name__}: {error}" for error in errors[1:]):
        if text != f"{type(first).__name__}: {first}":
            first.add_note(f"another bucket: {text}")
    return first


def surplus(name: str, static: bool, find_unused: bool) -> RuntimeError:
    """The error where more gradients of a parameter come than expected, and its bucket is not here any more."""
    if static:
        reason = "the graph is not static: the first backward had fewer gradients of this parameter"
    elif find_unused:
        reason = (
            "find_unused_parameters was set, and backward does not lead to it: a re-entrant checkpoint hides its "
            "part of the graph; use use_reentrant=False, or leave find_unused_parameters out"
        )
    else:
        reason = (
            "a re-entrant checkpoint used it several times: use use_reentrant=False, or static_graph=True if every "
            "step uses the same parameters equally often"
        )
    return RuntimeError(
        f"DistributedDataParallel: another gradient of parameter {name!r} came after its bucket was on its "
        f"way; {reason}"
    )
