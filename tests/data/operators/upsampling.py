"""Cases of engine.ops.resample.upsampling."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case
from tests.data.operators.spatial import LAYOUTS, add, draw, image, several

CASES: dict[str, Case] = {}

_MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}


def _interpolation(rng: np.random.RandomState, seed: int) -> None:
    dims = draw(rng, 1, 2, 2, 3)
    mode = draw(rng, *_MODES[dims])
    layout = draw(rng, *LAYOUTS)
    x = image(seed, (draw(rng, 1, 2), draw(rng, 1, 2), *several(rng, dims, 3, 4, *((5,) if dims < 3 else ()))), layout)
    options: dict[str, Any] = {"mode": mode}
    if mode.endswith("linear") or mode == "bicubic":
        options["align_corners"] = draw(rng, None, True, False)
        if dims == 2 and rng.rand() < 0.4:
            options["antialias"] = True
    if rng.rand() < 0.5:
        # PyTorch 2.13 with antialias gives every row of a result of width 1 the values of the first.
        options["size"] = several(
            rng, dims, 2, 6, *((9,) if dims < 3 else ()), *(() if "antialias" in options else (1,))
        )
    else:
        options["scale_factor"] = [draw(rng, 0.7, 1.7, 2.0) for _ in range(dims)]
        if rng.rand() < 0.3:
            options["recompute_scale_factor"] = True
    add(CASES, f"{layout} {x.shape} {options}", lambda t, x: t.nn.functional.interpolate(x, **options), x)


for _seed in range(60):
    _interpolation(np.random.RandomState(_seed), _seed)

for _layout in ("row-major", "channels-last"):
    add(
        CASES,
        f"pixel_shuffle {_layout}",
        lambda t, x: t.nn.functional.pixel_shuffle(x, 2),
        image(90, (2, 8, 2, 3), _layout),
    )
    add(
        CASES,
        f"pixel_unshuffle {_layout}",
        lambda t, x: t.nn.functional.pixel_unshuffle(x, 2),
        image(91, (2, 2, 4, 6), _layout),
    )
