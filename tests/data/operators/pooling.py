"""Cases of engine.ops.pooling.max_pool, avg_pool and the adaptive kinds."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case
from tests.data.operators.spatial import LAYOUTS, add, draw, image, several

CASES: dict[str, Case] = {}


def _pooling(rng: np.random.RandomState, seed: int, kind: str) -> None:
    dims = draw(rng, 1, 2, 2, 3)
    size = several(rng, dims, 4, 5, 7) if dims < 3 else several(rng, dims, 3, 4)
    layout = draw(rng, *LAYOUTS)
    x = image(seed, (draw(rng, 1, 2), draw(rng, 1, 2, 3), *size), layout)
    kernel = several(rng, dims, 1, 2, 3)
    stride = draw(rng, None, several(rng, dims, 1, 2))
    padding = tuple(draw(rng, 0, window // 2) for window in kernel)
    ceil_mode = bool(rng.rand() < 0.4)
    target = tuple(int(draw(rng, 1, 2, 3, old)) for old in size)
    label = f"{kind}_pool{dims}d {layout} {size} kernel {kernel} stride {stride} padding {padding}"
    if kind == "max":
        dilation = several(rng, dims, 1, 1, 2)
        if any(by * (window - 1) + 1 > old for by, window, old in zip(dilation, kernel, size, strict=True)):
            dilation = (1,) * dims
        indices = bool(rng.rand() < 0.5)
        add(
            CASES,
            f"{label} dilation {dilation}",
            lambda t, x: getattr(t.nn.functional, f"max_pool{dims}d")(
                x, kernel, stride, padding, dilation, ceil_mode, indices
            ),
            x,
        )
    elif kind == "avg":
        options: dict[str, Any] = {"count_include_pad": bool(rng.rand() < 0.5)}
        if dims > 1 and rng.rand() < 0.3:
            options["divisor_override"] = 3
        add(
            CASES,
            f"{label} {options}",
            lambda t, x: getattr(t.nn.functional, f"avg_pool{dims}d")(x, kernel, stride, padding, ceil_mode, **options),
            x,
        )
    else:
        options = {"return_indices": True} if kind == "adaptive_max" else {}
        add(
            CASES,
            f"{kind} {layout} {size} to {target}",
            lambda t, x: getattr(t.nn.functional, f"{kind}_pool{dims}d")(x, target, **options),
            x,
        )


for _seed in range(60):
    _pooling(np.random.RandomState(_seed), _seed, ("max", "avg", "adaptive_max", "adaptive_avg")[_seed % 4])

for _name in ("max", "avg", "adaptive_avg"):
    add(
        CASES,
        f"{_name}_pool2d without a batch",
        lambda t, x, n=_name: getattr(t.nn.functional, f"{n}_pool2d")(x, 2),
        image(80, (2, 5, 6), "row-major"),
    )
for _layout in ("row-major", "channels-last"):
    add(
        CASES,
        f"max_pool2d 2x2 {_layout}",
        lambda t, x: t.nn.functional.max_pool2d(x, 2, return_indices=True),
        image(81, (2, 3, 6, 7), _layout),
    )
    add(
        CASES,
        f"max_pool2d 2x2, ceil_mode, ties {_layout}",
        lambda t, x: t.nn.functional.max_pool2d(x, 2, ceil_mode=True, return_indices=True),
        np.round(image(82, (2, 3, 5, 7), _layout)),
        twice=False,  # at a tie differences are those of the other element
    )
    add(
        CASES,
        f"adaptive_avg_pool2d to one {_layout}",
        lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1),
        image(83, (2, 3, 5, 7), _layout),
    )
    add(
        CASES,
        f"adaptive_avg_pool2d, one axis kept {_layout}",
        lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, (None, 2)),
        image(84, (2, 3, 5, 7), _layout),
    )
    add(
        CASES,
        f"lp_pool2d {_layout}",
        lambda t, x: t.nn.functional.lp_pool2d(x, 3, 2),
        abs(image(85, (2, 3, 4, 5), _layout)) + 0.1,
    )
