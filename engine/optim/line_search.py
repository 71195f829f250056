"""A line search that meets the strong Wolfe conditions: bracket, then zoom by cubic interpolation.

Nocedal and Wright (2006), algorithms 3.5 and 3.6, in the form of minFunc and torch.optim.LBFGS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.tensor import Tensor


@dataclass(frozen=True)
class Point:
    """A step length with the loss, gradient (1-D) and slope along the direction that it leads to."""

    step: float
    loss: float
    gradient: Tensor
    slope: float


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through losses and slopes of two points is smallest, within `bounds` (default: between them)."""
    low, high = bounds or (min(a.step, b.step), max(a.step, b.step))
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = d1**2 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    if a.step <= b.step:
        position = b.step - (b.step - a.step) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    else:
        position = a.step - (a.step - b.step) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2))
    return min(max(position, low), high)


def strong_wolfe(
    evaluate: Callable[[float], Point],
    start: Point,
    first_step: float,
    direction_size: float,
    *,
    decrease: float = 1e-4,
    curvature: float = 0.9,
    tolerance_change: float = 1e-9,
    max_evaluations: int = 25,
) -> tuple[Point, int]:
    """(a point that meets the conditions, or the best found; number of evaluations).

    `evaluate(step)` gives the point at a step length, `start` is step 0, `direction_size` the direction's largest
    element.
    """
    slope = start.slope

    def too_high(point: Point) -> bool:
        return point.loss > start.loss + decrease * point.step * slope

    def flat_enough(point: Point) -> bool:
        return abs(point.slope) <= -curvature * slope

    previous, current = start, evaluate(first_step)
    evaluations, iteration = 1, 0
    while iteration < max_evaluations:
        if too_high(current) or (iteration > 1 and current.loss >= previous.loss):
            bracket = [previous, current]
            break
        if flat_enough(current):
            return current, evaluations
        if current.slope >= 0:
            bracket = [previous, current]
            break
        bounds = (current.step + 0.01 * (current.step - previous.step), current.step * 10)
        step = cubic_minimum(previous, current, bounds)
        previous, current = current, evaluate(step)
        evaluations += 1
        iteration += 1
    else:
        bracket = [start, current]

    stuck = False
    low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    while iteration < max_evaluations:
        ends = (bracket[0].step, bracket[1].step)
        width = max(ends) - min(ends)
        if width * direction_size < tolerance_change:
            break
        step = cubic_minimum(bracket[0], bracket[1])
        margin = 0.1 * width
        # a minimum next to an end of the bracket is moved inwards the second time
        if min(max(ends) - step, step - min(ends)) < margin:
            if stuck or step >= max(ends) or step <= min(ends):
                step = max(ends) - margin if abs(step - max(ends)) < abs(step - min(ends)) else min(ends) + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        current = evaluate(step)
        evaluations += 1
        iteration += 1
        if too_high(current) or current.loss >= bracket[low].loss:
            bracket[high] = current
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        done = flat_enough(current)
        if not done and current.slope * (bracket[high].step - bracket[low].step) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = current
        if done:
            break
    return bracket[low], evaluations
