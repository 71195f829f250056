"""Matrix products on a GPU through cuBLAS. Row-major, column-major and transposed operands and batches are read as they
lie, by leading dimensions and batch strides, and results are written in the layout that is asked for.

What cuBLAS is asked is a plan, remembered by the layouts of the operands (`engine.ops.matmul.plans`). Half precision is
added up in single. Single precision may be rounded to TF32 inside a product, and partial sums to half precision, where
`engine.backends.cuda.matmul` allows it. Integers, which cuBLAS does not multiply, go to cupy.matmul.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.plan import Plan
from engine.kernels.cuda.launch import Prepared, gpu_in_use
from engine.memory import backend
from engine.ops.copy.cuda import fill_rows, plan_of_rows
from engine.ops.matmul import plans
from engine.rules.precision import matmul as allowed
from engine.rules.spec import Spec

Array = Any


def product(xp: ModuleType, a: Array, b: Array) -> Array:
    """a @ b as `numpy.matmul` has it: vectors, matrices, batches that broadcast. The result is row-major."""
    dtype = a.dtype
    plan = plans.product((a.shape, a.strides), (b.shape, b.strides), dtype, b.dtype, allowed.allow_tf32)
    if plan is None:
        return xp.matmul(a, b)
    shape, calls = plan
    out = backend.device_empty(shape, dtype)
    calls.run(a, b, out)
    return out


def matmul(xp: ModuleType, a: Array, b: Array) -> Array:
    """xp.matmul; on a GPU this module's, since CuPy's cannot be recorded in a CUDA graph."""
    return np.matmul(a, b) if xp is np else product(xp, a, b)


def write(xp: ModuleType, a: Array, b: Array, out: Array, add: bool = False, tf32: bool | None = None) -> None:
    """out = a @ b, or out += a @ b: (..., M, K) and (..., K, N), leading axes broadcast. All of one dtype that cuBLAS
    has; the last two axes of `out` are row-major or column-major. `tf32`: in place of the switch of matrix products.
    """
    rounded = allowed.allow_tf32 if tf32 is None else tf32
    layouts = (a.shape, a.strides), (b.shape, b.strides), (out.shape, out.strides)
    plans.write(*layouts, out.dtype, add, rounded).run(a, b, out)


# --- linear -----------------------------------------------------------------------------------------------------------


def linear(xp: ModuleType, input: Array, weight: Array, bias: Array = None) -> Array:
    """input @ weight.T + bias. The bias is there first and the product is added to it: both are rounded once."""
    dtype = input.dtype
    layouts = (input.shape, input.strides), (weight.shape, weight.strides)
    plan = plans.linear(*layouts, dtype, weight.dtype, bias is not None, allowed.allow_tf32)
    if plan is None:
        rows = input.reshape(prod(input.shape[:-1]), input.shape[-1])
        out = xp.matmul(rows, weight.T)
        return (out if bias is None else out + bias).reshape(*input.shape[:-1], weight.shape[0])
    shape, calls = plan
    out = backend.device_empty(shape, dtype)
    if bias is not None:
        fill_rows(out, bias)
    calls.run(input, weight, out)
    return out


def planned(plan: Plan) -> Callable[..., Array] | None:
    """`product` or `linear` for one plan of `mm` or `addmm`, of (input, mat2) or (bias, input, weight), whose copies
    and calls are settled; None for dtypes that cuBLAS does not multiply, and without elements.
    """
    *biases, input, other = plan.input_specs
    shape, dtype = tuple(plan.out.shape), plan.out.dtype.numpy
    kinds = {spec.dtype for spec in (*plan.input_specs, plan.out)}
    if len(kinds) > 1 or dtype.char not in plans.TYPES or not plan.out.numel:
        return None
    if any(bias.shape != shape[-1:] for bias in biases):
        return None
    layouts = tuple([(tuple(spec.shape), tuple(spec.byte_strides)) for spec in (input, other)])
    turned, empty = plan.attributes[-1], backend.device_empty
    calls: dict[bool, plans.Calls] = {}

    def calls_of(rounded: bool) -> plans.Calls:
        find = partial(plans.linear, add=bool(biases)) if turned else plans.product
        found = find(*layouts, dtype, dtype, tf32=rounded)
        assert found is not None
        made = calls[rounded] = found[1]
        return made

    def multiplied(input: Array, other: Array) -> Array:
        out = empty(shape, dtype)
        (calls.get(allowed.allow_tf32) or calls_of(allowed.allow_tf32)).run(input, other, out)
        return out

    if not biases:
        return multiplied
    step = tuple(biases[0].byte_strides)
    fills: dict[bool, Prepared] = {}

    def added(bias: Array, input: Array, other: Array) -> Array:
        out = empty(shape, dtype)
        in_line = not bias.data.ptr & 15  # as new memory is
        fill = fills.get(in_line)
        if fill is None:
            fill = plan_of_rows(shape, step, dtype, dtype, in_line, gpu_in_use())
            assert fill is not None
            fills[in_line] = fill
        fill(bias, out)
        (calls.get(allowed.allow_tf32) or calls_of(allowed.allow_tf32)).run(input, other, out)
        return out

    return added


def linear_input_slope(xp: ModuleType, g: Array, weight: Array, input_spec: Spec) -> Array:
    """g @ weight in the shape of the input."""
    found = product(xp, _rows(g), weight)
    return found if len(input_spec.shape) == 2 else found.reshape(tuple(input_spec.shape))


def linear_weight_slope(xp: ModuleType, g: Array, input: Array, weight_spec: Spec, into: Array) -> Array:
    """gᵀ @ input: written to `into` where that can take it, else in memory that lies as a dense weight does."""
    out_features, in_features = weight_spec.shape
    g, rows = _rows(g), _rows(input)
    if g.dtype.char not in plans.TYPES or g.dtype != rows.dtype:
        return xp.matmul(g.T, rows)
    if into is None or into.dtype != g.dtype or not (into.flags.c_contiguous or into.flags.f_contiguous):
        by_columns = not weight_spec.contiguous and weight_spec.dense
        sizes = (in_features, out_features) if by_columns else (out_features, in_features)
        into = backend.device_empty(sizes, g.dtype)
        into = into.T if by_columns else into
    write(xp, g.T, rows, into)
    return into


def _rows(array: Array) -> Array:
    """All rows as one matrix."""
    return array if array.ndim == 2 else array.reshape(prod(array.shape[:-1]), array.shape[-1])
