"""Checkpoints that keep the results of some operators: `create_selective_checkpoint_contexts` for `checkpoint`.

    checkpoint(block, x, use_reentrant=False,
               context_fn=partial(create_selective_checkpoint_contexts, [engine.ops.aten.mm, engine.ops.aten.addmm]))

In the second run these are not computed again. Operators go by PyTorch's names, which are those of `grad_fn`: a Linear
is `addmm`, and `mm` without a bias. Source: PyTorch's torch/utils/checkpoint.py.
"""

import enum
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from engine.calls import listening
from engine.calls.listening import KERNEL, Handler
from engine.calls.plan import Plan
from engine.ops.aten import Overload
from engine.tensor import Tensor


class CheckpointPolicy(enum.Enum):
    """What becomes of an operator's results. PREFER and MUST are the same here."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3


class SelectiveCheckpointContext:
    """The first argument of a policy; `is_recompute` is False: it is asked in the first run only."""

    def __init__(self, *, is_recompute: bool = False) -> None:
        self.is_recompute = is_recompute


Policy = Callable[..., CheckpointPolicy | bool]
_SAVED = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, True)


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | Sequence[Overload], allow_cache_entry_mutation: bool = False
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For `checkpoint(context_fn=)`: contexts of the first and of the second run.

    Args: policy_fn_or_list: the operators whose results are kept, or `policy(ctx, operator, *inputs)`. Views are always
    made again. allow_cache_entry_mutation: has no effect: what is kept is a copy, which nobody writes into.
    Raises: TypeError for a list of anything else.
    """
    policy = policy_fn_or_list if callable(policy_fn_or_list) else partial(_in_list, _checked(policy_fn_or_list))
    kept: dict[tuple[str, int], Any] = {}
    return _Context(partial(_keep, policy, kept)), _Context(partial(_give, kept))


def _checked(operators: Sequence[Any]) -> frozenset[Overload]:
    for each in operators:
        if not isinstance(each, Overload):
            raise TypeError(
                f"create_selective_checkpoint_contexts: expected operators as engine.ops.aten.mm, got {each!r}"
            )
    return frozenset(operators)


def _in_list(operators: frozenset[Overload], _: Any, operator: Overload, *__: Any) -> bool:
    return operator in operators


class _Context:
    """Listens to kernels inside, counting the calls of each operator."""

    def __init__(self, handle: Callable[..., Any]) -> None:
        self._handle = handle
        self._calls: Counter[str] = Counter()
        self._listener = self._listen  # one object: it is removed by identity

    def __enter__(self) -> None:
        self._calls.clear()
        listening.add(self._listener)

    def __exit__(self, *_: object) -> None:
        listening.remove(self._listener)

    def _listen(self, key: str, target: Any) -> Handler | None:
        if key is not KERNEL or target.operator.view:
            return None
        name = target.operator.name
        self._calls[name] += 1
        return partial(self._handle, (name, self._calls[name]), target)


def _keep(
    policy: Policy, kept: dict[tuple[str, int], Any], call: tuple[str, int], plan: Plan, proceed: Any, *arrays: Any
) -> Any:
    result = proceed(*arrays)
    name = re.sub(r"Backward\d*$", "", plan.operator.node_name)
    inputs = [Tensor(*pair) for pair in zip(arrays, plan.input_specs, strict=False) if hasattr(pair[0], "strides")]
    if policy(SelectiveCheckpointContext(), Overload(name), *inputs, *plan.attributes) in _SAVED:
        kept[call] = _copy(result)
    return result


def _give(kept: dict[tuple[str, int], Any], call: tuple[str, int], plan: Plan, proceed: Any, *arrays: Any) -> Any:
    return _copy(kept[call]) if call in kept else proceed(*arrays)


def _copy(result: Any) -> Any:
    """Of an array, or of each; in the layout that it has."""
    if isinstance(result, tuple | list):
        return tuple(map(_copy, result))
    return result.copy(order="K") if isinstance(result, np.ndarray) else result
