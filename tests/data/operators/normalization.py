"""Cases of engine.ops.norm.batch_norm, layer_norm, group_norm and what engine.nn.functional composes of them."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, normal, uniform
from tests.data.operators.spatial import add, draw, image, several

CASES: dict[str, Case] = {}


def _norm(rng: np.random.RandomState, seed: int, kind: str) -> None:
    dims = draw(rng, 1, 2, 2, 3)
    shape = (draw(rng, 2, 3), draw(rng, 2, 4), *several(rng, dims, 2, 3))
    layout = draw(rng, "row-major", "channels-last", "channels-last", "sliced")
    x = image(seed, shape, layout)
    vectors = [uniform(seed + 1, 0.5, 2, shape[1]), normal(seed + 2, shape[1])][: draw(rng, 0, 1, 2)]
    statistics = (normal(seed + 3, shape[1]), uniform(seed + 4, 0.5, 2, shape[1]))
    label = f"{kind} {layout} {shape} with {len(vectors)} vectors"

    def running(t: Any, x: Any) -> list[Any]:
        return [t.from_numpy(vector.copy()).to(x.dtype) for vector in statistics]

    if kind == "batch_norm":
        training, tracked = bool(rng.rand() < 0.7), bool(rng.rand() < 0.7)

        def function(t: Any, x: Any, *affine: Any) -> Any:
            moving = running(t, x) if tracked or not training else [None, None]
            out = t.nn.functional.batch_norm(x, *moving, *affine, training=training, momentum=0.3)
            return (out, *moving) if moving[0] is not None else out

        label += f" training {training} tracked {tracked}"
    elif kind == "instance_norm":
        statistics_of_input = bool(rng.rand() < 0.6)

        def function(t: Any, x: Any, *affine: Any) -> Any:
            moving = running(t, x)
            out = t.nn.functional.instance_norm(x, *moving, *affine, use_input_stats=statistics_of_input, momentum=0.3)
            return (out, *moving)

        label += f" own statistics {statistics_of_input}"
    elif kind == "group_norm":
        groups = draw(rng, 1, 2, shape[1])

        def function(t: Any, x: Any, *affine: Any) -> Any:
            return t.nn.functional.group_norm(x, groups, *affine)

        label += f" groups {groups}"
    else:
        last = shape[len(shape) - draw(rng, 1, 2) :]
        vectors = [uniform(seed + 1, 0.5, 2, *last), normal(seed + 2, *last)][: len(vectors)]
        if kind == "rms_norm":
            vectors = vectors[:1]

        def function(t: Any, x: Any, *affine: Any) -> Any:
            return getattr(t.nn.functional, kind)(x, last, *affine, eps=1e-3)

        label += f" over {last}"
    add(CASES, label, function, x, *vectors)


for _seed in range(60):
    _kind = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")[_seed % 5]
    _norm(np.random.RandomState(_seed), 10 * _seed, _kind)

add(
    CASES,
    "batch_norm of vectors",
    lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True),
    normal(700, 6, 3),
)
add(CASES, "layer_norm of one row", lambda t, x: t.nn.functional.layer_norm(x, (7,)), normal(701, 7))
add(
    CASES,
    "rms_norm, eps of the dtype",
    lambda t, x: t.nn.functional.rms_norm(x, (5,)),
    normal(702, 3, 5),
    tolerance=1e-7,
)
add(CASES, "local_response_norm", lambda t, x: t.nn.functional.local_response_norm(x, 3, 0.5), normal(703, 2, 5, 3))
