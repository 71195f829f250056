"""Cases of engine.ops.embedding.operator and what is composed from it."""

import numpy as np

from tests.data.operators.case import Case, integers, normal

CASES: dict[str, Case] = {}
TABLE = normal(1, 7, 4)
INDEX = integers(2, 0, 7, 3, 5)

CASES["embedding"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX, TABLE))
CASES["embedding vector"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX[0].copy(), TABLE))
CASES["embedding 0-dim"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (np.asarray(3), TABLE))
CASES["embedding turned"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX.T, TABLE))
CASES["embedding int32"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX.astype(np.int32), TABLE))
CASES["embedding empty"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX[:0].copy(), TABLE), twice=False)
CASES["embedding column-major table"] = Case(
    lambda t, i, w: t.nn.functional.embedding(i, w), (INDEX, np.asfortranarray(TABLE))
)
CASES["embedding padding"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w * w, padding_idx=3), (INDEX, TABLE))
CASES["embedding by frequency"] = Case(
    lambda t, i, w: t.nn.functional.embedding(i, w * w, scale_grad_by_freq=True), (INDEX, TABLE), twice=False
)
CASES["embedding squared"] = Case(lambda t, i, w: t.nn.functional.embedding(i, w) ** 2, (INDEX, TABLE))
for _mode in ("sum", "mean", "max"):
    CASES[f"embedding_bag {_mode}"] = Case(
        lambda t, i, w, m=_mode: t.nn.functional.embedding_bag(i, w, mode=m), (INDEX, TABLE)
    )
    CASES[f"embedding_bag offsets {_mode}"] = Case(
        lambda t, i, w, o, m=_mode: t.nn.functional.embedding_bag(i, w, o, mode=m),
        (INDEX.reshape(-1), TABLE, np.array([0, 4, 9])),
    )
CASES["one_hot"] = Case(lambda t, i: t.nn.functional.one_hot(i, 9), (INDEX,), twice=False)
