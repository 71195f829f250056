"""Recurrence over packed sequences: a stretch of steps with the same sequences at a time."""

from collections.abc import Callable

import engine
from engine.nn.utils.rnn import PackedSequence, segments
from engine.ops.rnn.steps import State
from engine.tensor import Tensor

# run(steps (T, N, I), state) -> outputs (T, N, H), state after the last step in the direction of the run
Run = Callable[[Tensor, State], tuple[Tensor, State]]


def over_packed(run: Run, sequence: PackedSequence, state: State, backwards: bool) -> tuple[Tensor, State]:
    """Outputs (all steps, H), packed as the input is, and the state after the end of each sequence, in sorted order.

    Backwards, each sequence starts at its own end: shorter ones join as the stretches grow wider.
    """
    stretches, start = [], 0
    for steps, batch in segments(sequence.batch_sizes):
        rows = steps * batch
        stretches.append((sequence.data[start : start + rows].reshape(steps, batch, -1), batch))
        start += rows
    outputs, ended = [], []
    current = tuple(each[: stretches[-1 if backwards else 0][1]] for each in state)
    for input, batch in reversed(stretches) if backwards else stretches:
        running = current[0].shape[0]
        if batch > running:
            joining = (each[running:batch] for each in state)
            current = tuple(engine.cat(pair) for pair in zip(current, joining, strict=True))
        elif batch < running:
            ended.append(tuple(each[batch:] for each in current))
            current = tuple(each[:batch] for each in current)
        output, current = run(input, current)
        outputs.append(output.reshape(-1, output.shape[-1]))
    parts = [current, *reversed(ended)]
    final = tuple(engine.cat(each) if len(parts) > 1 else each[0] for each in zip(*parts, strict=True))
    return engine.cat(outputs[::-1] if backwards else outputs), final
