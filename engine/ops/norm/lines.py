"""What a replay (`engine.calls.straight`) calls in place of the functions of layer norm and batch norm: the kernels of
small row-major arrays.
"""

from math import prod
from typing import Any

import numpy as np

from engine.calls.straight import Layout, Lines, straight
from engine.ops.norm import batch_norm, layer_norm
from engine.ops.norm.kernels import batch_norm as channels
from engine.ops.norm.kernels import layer_norm as rows
from engine.sharing.threads import WORTH

_ALL = ("{out0} = {memory0}", "{out1} = {memory1}", "{out2} = {memory2}")


def _alike(kind: np.dtype, *arrays: Any) -> bool:
    """Whether kernels for an element type take arrays that lie like this (None where there is none) as they are."""
    return all(each is None or (isinstance(each, Layout) and each.compiled and each.dtype == kind) for each in arrays)


def _or_absent(name: str, vector: Any) -> str:
    return "{absent}" if vector is None else name


# --- layer norm -------------------------------------------------------------------------------------------------------


def _few_rows(input: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(input, Layout) and input.compiled and len(shape) == 1 and not rows._is_shared(input.size)


@straight(layer_norm._layer_norm)
def _layer_norm(
    made: Any, xp: Any, input: Any, weight: Any, bias: Any, shape: tuple[int, ...], eps: float
) -> Lines | None:
    if not (_few_rows(input, shape) and _alike(input.dtype, weight, bias)):
        return None
    given = [input.as_rows("{1}"), _or_absent("{2}", weight), _or_absent("{3}", bias)]
    return Lines(
        *_ALL,
        f"{{kernel}}({', '.join(given)}, {{5}}, {input.as_rows('{out0}')}, {{out1}}, {{out2}})",
        kernel=rows._layer_norm_forward[input.dtype.char],
        absent=rows._absent(input.dtype),
    )


@straight(layer_norm._layer_norm_backward)
def _layer_norm_backward(
    made: Any,
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    shape: tuple[int, ...],
    eps: float,
) -> Lines | None:
    if not (_few_rows(input, shape) and _alike(input.dtype, g, weight)):
        return None
    weight_sums, bias_sums = rows._scratch(input.size // max(shape[0], 1), shape[0], input.dtype)
    given = [g.as_rows("{0}"), input.as_rows("{3}"), "{5}", "{6}", _or_absent("{4}", weight)]
    return Lines(
        *_ALL,
        f"{{kernel}}({', '.join(given)}, {input.as_rows('{out0}')}, {{weight_sums}}, {{bias_sums}})",
        "{join}({weight_sums}, {bias_sums}, {out1}, {out2})",
        kernel=rows._layer_norm_backward[input.dtype.char],
        join=rows._join[input.dtype.char],
        absent=rows._absent(input.dtype),
        weight_sums=weight_sums,
        bias_sums=bias_sums,
    )


# --- batch norm -------------------------------------------------------------------------------------------------------


def _few_channels(input: Any) -> bool:
    return isinstance(input, Layout) and input.compiled and 0 < input.size < WORTH


def _as_image(input: Layout, name: str) -> str:
    """The expression for (N, C, d...) as the kernels take it: (N, C), or (N, C, L)."""
    if len(input.shape) in (2, 3):
        return name
    return f"{name}.reshape({input.shape[0]}, {input.shape[1]}, {prod(input.shape[2:])})"


@straight(batch_norm._batch_norm)
def _batch_norm(
    made: Any,
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: Any,
    eps: float,
) -> Lines | None:
    if not (_few_channels(input) and _alike(input.dtype, weight, bias, running_mean, running_var)):
        return None
    if isinstance(momentum, Layout):
        return None
    kind, (batch, width) = input.dtype, input.shape[:2]
    count = input.size // width
    image, shares = _as_image(input, "{1}"), ", ".join(map(repr, channels.shares(momentum, count)))
    moving = f"{_or_absent('{4}', running_mean)}, {_or_absent('{5}', running_var)}"
    factors = f"{'{out2}' if weight is None else '{scale}'}, {'{zeros}' if bias is None else '{3}'}"
    names = {"variance": np.empty(width, kind), "scale": np.empty(width, kind), "zeros": np.zeros(width, kind)}
    if len(input.shape) == 2:
        step = channels._rows_at_once(width)
        moments = [
            f"{{moments}}({image}, {step}, {{first}}, {{second}})",
            f"{{join}}({batch}, {step}, {{first}}, {{second}}, {{out1}}, {{variance}})",
        ]
        kernels = channels._moments_rows, channels._normalise_rows
        names |= _of_blocks(batch, width, kind) | {"join": channels._join_moments[kind.char]}
    else:
        moments = [f"{{moments}}({image}, 0, {{out1}}, {{variance}})"]
        kernels = channels._moments_planes, channels._normalise_planes
    return Lines(
        *_ALL,
        *moments,
        f"{{settle}}({{out1}}, {{variance}}, {moving}, {shares}, {{7}}, {{out2}})",
        *(() if weight is None else ("{multiply}({out2}, {2}, {scale})",)),
        f"{{normalise}}({image}, {{out1}}, {factors}, {_as_image(input, '{out0}')})",
        moments=kernels[0][kind.char],
        settle=channels._settle[kind.char],
        multiply=np.multiply,
        normalise=kernels[1][kind.char],
        absent=channels._absent(kind),
        **names,
    )


def _of_blocks(batch: int, width: int, kind: np.dtype) -> dict[str, Any]:
    first, second = channels._scratch(batch, width, kind)
    return {"first": first, "second": second}


@straight(batch_norm._batch_norm_backward)
def _batch_norm_backward(
    made: Any, g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, eps: float
) -> Lines | None:
    if not (needs[0] and _few_channels(input) and _alike(input.dtype, g, weight)):
        return None
    total = "{out2}" if needs[2] else "{total}"
    kind, (batch, width) = input.dtype, input.shape[:2]
    images = f"{_as_image(g, '{0}')}, {_as_image(input, '{3}')}"
    names = {name: np.empty(width, kind) for name in ("total", "projected", "scale", "average", "slope")}
    if len(input.shape) == 2:
        sums = [
            f"{{sums}}({images}, {channels._rows_at_once(width)}, {{5}}, {{first}}, {{second}})",
            f"{{join}}({{first}}, {{second}}, {total}, {{projected}})",
        ]
        kernels = channels._gradient_sums_rows, channels._input_gradient_rows
        names |= _of_blocks(batch, width, kind) | {"join": channels._join_sums[kind.char]}
    else:
        sums = [f"{{sums}}({images}, 0, {{5}}, {total}, {{projected}})"]
        kernels = channels._gradient_sums_planes, channels._input_gradient_planes
    of_batch = f"{{6}}, {_or_absent('{4}', weight)}, {total}, {{projected}}, {input.size // width}"
    return Lines(
        *(line for line, each in zip(_ALL, made, strict=False) if each is not None),
        *sums,
        f"{{coefficients}}({of_batch}, {{scale}}, {{average}}, {{slope}})",
        f"{{kernel}}({images}, {{5}}, {{scale}}, {{average}}, {{slope}}, {_as_image(input, '{out0}')})",
        *(("{multiply}({projected}, {6}, {out1})",) if needs[1] else ()),
        sums=kernels[0][kind.char],
        coefficients=channels._coefficients[kind.char],
        kernel=kernels[1][kind.char],
        multiply=np.multiply,
        absent=channels._absent(kind),
        **names,
    )
