"""Cases of engine.ops.attention.operator. The lengths straddle its blocks of 64 queries."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, normal

CASES: dict[str, Case] = {}


def attend(**options: Any) -> Any:
    return lambda t, q, k, v, *mask: t.nn.functional.scaled_dot_product_attention(q, k, v, *mask, **options)


def _operands(seed: int, queries: int, keys: int, width: int = 3, heads: int = 2) -> tuple[np.ndarray, ...]:
    return (
        normal(seed, 2, heads, queries, width),
        normal(seed + 1, 2, heads, keys, width),
        normal(seed + 2, 2, heads, keys, width),
    )


def _turned(array: np.ndarray) -> np.ndarray:
    """The same shape over (batch, position, head, width) memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


_MASK = np.random.RandomState(9).uniform(size=(5, 7)) < 0.6
_MASK[:, 0] = True
_EMPTY_ROW = _MASK.copy()
_EMPTY_ROW[2] = False
for _causal in (False, True):
    _suffix = " causal" if _causal else ""
    CASES[f"square{_suffix}"] = Case(attend(is_causal=_causal), _operands(1, 6, 6))
    CASES[f"more keys{_suffix}"] = Case(attend(is_causal=_causal), _operands(4, 5, 9))
    CASES[f"more queries{_suffix}"] = Case(attend(is_causal=_causal), _operands(7, 9, 5))
    CASES[f"blocks{_suffix}"] = Case(
        attend(is_causal=_causal), tuple(a[:1, :1].copy() for a in _operands(10, 70, 70, 2))
    )
    CASES[f"turned{_suffix}"] = Case(attend(is_causal=_causal), tuple(map(_turned, _operands(13, 6, 6))))
    CASES[f"scaled{_suffix}"] = Case(attend(is_causal=_causal, scale=0.3), _operands(16, 6, 6))
    CASES[f"3-D{_suffix}"] = Case(attend(is_causal=_causal), tuple(a[0].copy() for a in _operands(19, 6, 6)))
    CASES[f"2-D{_suffix}"] = Case(attend(is_causal=_causal), tuple(a[0, 0].copy() for a in _operands(22, 6, 6)))
    CASES[f"grouped{_suffix}"] = Case(
        attend(is_causal=_causal, enable_gqa=True),
        (normal(25, 1, 4, 5, 3), normal(26, 1, 2, 5, 3), normal(27, 1, 2, 5, 3)),
    )
CASES["other width of values"] = Case(attend(), (*_operands(28, 5, 7)[:2], normal(31, 2, 2, 7, 4)))
CASES["shared keys"] = Case(attend(), (normal(32, 2, 2, 5, 3), normal(33, 1, 1, 7, 3), normal(34, 1, 1, 7, 3)))
CASES["bool mask"] = Case(attend(), (*_operands(35, 5, 7), _MASK))
CASES["bool mask of each head"] = Case(
    attend(), (*_operands(38, 5, 7), np.stack([_MASK, ~_MASK | (np.arange(7) == 1)])[None])
)
CASES["bool mask with an empty row"] = Case(attend(), (*_operands(41, 5, 7), _EMPTY_ROW))
CASES["bool mask of keys"] = Case(attend(), (*_operands(44, 5, 7), _MASK[:1]))
CASES["float mask"] = Case(attend(), (*_operands(47, 5, 7), normal(50, 5, 7)))
CASES["float mask without gradient"] = Case(attend(), (*_operands(51, 5, 7), normal(54, 2, 1, 5, 7)), constants=(3,))
