"""Cases of engine.ops.conv.operator: every rank, groups, padding by name, transposition, the two row-major shortcuts.

In three dimensions the inputs are row-major: PyTorch has no channels-last kernel for float64 there, the engine has.
"""

from typing import Any

import numpy as np

from tests.data.operators.case import Case
from tests.data.operators.spatial import add, draw, image, several

CASES: dict[str, Case] = {}


def _convolution(rng: np.random.RandomState, seed: int) -> None:
    dims = draw(rng, 1, 2, 2, 3)
    groups = draw(rng, 1, 1, 2)
    inputs, outputs = groups * draw(rng, 1, 2), groups * draw(rng, 1, 2)
    size, kernel = several(rng, dims, 4, 5), several(rng, dims, 1, 2, 3)
    stride, padding, dilation = several(rng, dims, 1, 1, 2), several(rng, dims, 0, 1, 2), several(rng, dims, 1, 1, 2)
    batch = draw(rng, 1, 2)
    layout = "row-major" if dims == 3 else draw(rng, "row-major", "channels-last", "permuted", "sliced")
    weight_layout = "row-major" if dims == 3 else draw(rng, "row-major", "channels-last")
    x = image(seed, (batch, inputs, *size), layout)
    label = f"{layout} and {weight_layout} kernel {kernel} stride {stride} padding {padding} dilation {dilation}"
    tensors = [x]
    if rng.rand() < 0.4:
        extra = tuple(int(rng.randint(max(step, by))) for step, by in zip(stride, dilation, strict=True))
        if any(
            (old - 1) * step - 2 * pad + by * (window - 1) + more < 0
            for old, step, pad, by, window, more in zip(size, stride, padding, dilation, kernel, extra, strict=True)
        ):
            padding = (0,) * dims
        tensors.append(image(seed + 1, (inputs, outputs // groups, *kernel), weight_layout))
        tensors.append(image(seed + 2, (outputs,), "row-major"))
        name = f"conv_transpose{dims}d"

        def function(t: Any, x: Any, w: Any, b: Any) -> Any:
            return getattr(t.nn.functional, name)(x, w, b, stride, padding, extra, groups, dilation)
    else:
        reach = [by * (window - 1) + 1 for by, window in zip(dilation, kernel, strict=True)]
        if any(old + 2 * pad < need for old, pad, need in zip(size, padding, reach, strict=True)):
            dilation = (1,) * dims
        tensors.append(image(seed + 1, (outputs, inputs // groups, *kernel), weight_layout))
        tensors.append(image(seed + 2, (outputs,), "row-major"))
        name = f"conv{dims}d"
        by_name = draw(rng, None, None, None, "same", "valid")
        steps = (1,) * dims if by_name == "same" else stride

        def function(t: Any, x: Any, w: Any, b: Any) -> Any:
            return getattr(t.nn.functional, name)(x, w, b, steps, by_name or padding, dilation, groups)

        label += f" {by_name or ''}"
    add(CASES, f"{name} groups {groups} {label}", function, *tensors)


for _seed in range(30):
    _convolution(np.random.RandomState(_seed), 10 * _seed)

for _layout in ("row-major", "channels-last"):
    for _name, _shape, _weight, _options in (
        ("few channels, many pixels", (2, 1, 9, 10), (3, 1, 3, 3), {"padding": 1}),
        ("few channels, strided", (2, 2, 17, 18), (2, 2, 3, 3), {"padding": 1, "stride": 2}),
        ("1x1", (2, 5, 8, 9), (3, 5, 1, 1), {}),
        ("1x1 strided", (2, 3, 8, 9), (2, 3, 1, 1), {"stride": 2}),
        ("depthwise", (2, 4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
        ("depthwise, two filters a channel", (2, 3, 5, 5), (6, 1, 3, 3), {"groups": 3, "stride": 2}),
        ("one pixel", (2, 3, 3, 3), (4, 3, 3, 3), {}),
    ):
        add(
            CASES,
            f"conv2d {_name} {_layout}",
            lambda t, x, w, o=_options: t.nn.functional.conv2d(x, w, **o),
            image(500, _shape, _layout),
            image(501, _weight, _layout),
        )
add(
    CASES,
    "conv2d without a batch",
    lambda t, x, w: t.nn.functional.conv2d(x, w, None, 1, "same"),
    image(510, (2, 4, 5), "row-major"),
    image(511, (3, 2, 2, 3), "row-major"),
)
