"""Cases of engine.ops.shape.padding and engine.ops.conv.im2col."""

import numpy as np

from tests.data.operators.case import Case
from tests.data.operators.spatial import LAYOUTS, add, draw, image, several

CASES: dict[str, Case] = {}


def _padding(rng: np.random.RandomState, seed: int) -> None:
    dims = draw(rng, 1, 2, 3)
    layout = draw(rng, *LAYOUTS)
    x = image(seed, (draw(rng, 1, 2), draw(rng, 1, 2), *several(rng, dims, 3, 4)), layout)
    mode = draw(rng, "constant", "reflect", "replicate", "circular")
    if mode == "constant":
        pad = several(rng, 2 * draw(rng, 1, dims, dims + 1), 0, 1, 2, -1)
        value = float(draw(rng, 0, 1.5))
    else:
        pad = several(rng, 2 * dims, 0, 1, 2, *(() if mode == "circular" else (-1,)))
        value = None
    add(
        CASES,
        f"pad {mode} {layout} {x.shape} by {pad}",
        lambda t, x: t.nn.functional.pad(x, pad, mode, value),
        x,
    )


for _seed in range(40):
    _padding(np.random.RandomState(_seed), _seed)

for _layout in ("row-major", "channels-last"):
    for _options in (
        {"kernel_size": 2},
        {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (1, 2)},
        {"kernel_size": 1},
    ):
        add(
            CASES,
            f"unfold {_layout} {_options}",
            lambda t, x, o=_options: t.nn.functional.unfold(x, **o),
            image(90, (2, 2, 4, 5), _layout),
        )
for _options, _windows in (({"kernel_size": 2}, 12), ({"kernel_size": (2, 3), "padding": (1, 0), "stride": (2, 1)}, 9)):
    _window = 4 if _options["kernel_size"] == 2 else 6
    add(
        CASES,
        f"fold {_options}",
        lambda t, x, o=_options: t.nn.functional.fold(x, (4, 5), **o),
        image(91, (2, 2 * _window, _windows), "row-major"),
    )
