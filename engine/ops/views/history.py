"""The history of views: what a write through a view does to its base, and views taken anew from a changed base. Who may
be written in place at all: `engine.autograd.writes`.

A view shares memory and version counter with its base, so a write through either changes both. `Tensor._view_version`
says up to which version the history of a view is true. When the counter has moved on, `refresh` gives the view the
history `as_strided(base)`; when a view itself was written, `rewrite_base` makes the base's history `scatter_view(base,
view)` first (PyTorch calls that node CopySlices).

Some views cannot follow: those made in no_grad or inference mode, one of several made at once, and what a user's
Function returned. Their `_view_version` is negative and says why (`engine.autograd.versions`); a write to their memory
while recording raises.
"""

from collections.abc import Callable
from typing import Any

from engine.autograd.modes import enable_grad, state
from engine.autograd.node import Edge
from engine.autograd.versions import made_at
from engine.autograd.writes import check_history, restricted_view, take_history
from engine.calls.dispatch import apply
from engine.calls.namespaces import OPERATORS
from engine.calls.operator import define
from engine.calls.recording import OperatorNode
from engine.memory import backend
from engine.ops.views.as_strided import AS_STRIDED, scatter_strided, strided
from engine.rules.spec import Spec
from engine.tensor import Tensor


def refresh(view: Tensor, base: Tensor) -> None:
    """Gives `view` the history `base` has now, if the memory was written since the view got the one it has.

    Raises: RuntimeError when the view is restricted.
    """
    assert view._counter is not None
    version = view._counter.value
    if not base._requires_grad:
        return
    if view._view_version < 0:
        if made_at(view._view_version) != version:
            raise restricted_view(view, "its base or another view of its base has been")
        return
    view._view_version = version
    with enable_grad():
        source, spec, offset = _in_one_dtype(base, view)
        fresh = apply(AS_STRIDED, (source,), (tuple(spec.shape), spec.stride, offset))
        if spec is not view._spec:
            fresh = apply(OPERATORS["view_as_complex"], (fresh,))
    take_history(view, fresh)


def _in_one_dtype(base: Tensor, view: Tensor) -> tuple[Tensor, Spec, int]:
    """A base, the Spec of a view of it and the elements between their starts; as real numbers where one is complex and
    the other is not (`imag`, `view_as_complex` ...).
    """
    spec = view._spec
    if spec.dtype is not base._spec.dtype:
        if spec.dtype.is_complex:
            spec = apply(OPERATORS["view_as_real"], (Tensor(view._array, spec),))._spec
        else:
            base = apply(OPERATORS["view_as_real"], (base,))
    return base, spec, (backend.address(view._array) - backend.address(base._array)) // spec.dtype.itemsize


def adopt_history(target: Tensor, written: Tensor) -> None:
    """After a recorded write: `target` has the history of `written`; a view passes it on to its base."""
    base = target._base
    if base is None:
        take_history(target, written)
    else:
        rewrite_base(base, target, written)


# --- the base of a written view ---------------------------------------------------------------------------------------


class CopySlices(OperatorNode):
    """The history of a base after a view of it was written: its old value, with the view's new value scattered into
    it.
    """

    __slots__ = ()

    def name(self) -> str:
        return "CopySlices"


def _without_view(g: Any, nd: Any, input_spec: Spec, source_spec: Spec, stride: tuple[int, ...], offset: int) -> Any:
    """The base's gradient with zeros where the view was written."""
    shape, size = tuple(input_spec.shape), tuple(source_spec.shape)
    if not nd.records and input_spec.dense:
        kept = strided(nd.xp.empty(input_spec.numel, g.dtype), shape, input_spec.stride, 0)
        kept[...] = g
        strided(kept, size, stride, offset)[...] = 0
        return kept
    xp = backend.array_module(source_spec.device)
    inside = scatter_strided(xp, xp.ones(size), shape, input_spec.stride, size, stride, offset) != 0
    if not nd.records:
        return xp.where(inside, xp.zeros((), g.dtype), g)
    return nd.where(Tensor(inside, backend.spec_of_array(inside, source_spec.device)), 0.0, g)


def _view_only(g: Any, nd: Any, input_spec: Spec, source_spec: Spec, stride: tuple[int, ...], offset: int) -> Any:
    """The view's part of the base's gradient."""
    shape, size = tuple(input_spec.shape), tuple(source_spec.shape)
    if not nd.records and input_spec.dense and getattr(g, "strides", None) == input_spec.byte_strides:
        return strided(g, size, stride, offset)
    return nd.as_strided_gather(g, shape, input_spec.stride, size, stride, offset)


SCATTER_VIEW = define(
    "scatter_view",
    rule=lambda input, source, stride, offset: input,
    forward=lambda xp, input, source, stride, offset: input,
    backward=(_without_view, _view_only),
    inputs="input source",
    attributes="stride offset",
)


def rewrite_base(base: Tensor, view: Tensor, written: Tensor) -> None:
    """After `view` was written in place with the result `written`: the base's history is its old one with `written`
    scattered into it.
    """
    if not base.requires_grad and not written.requires_grad:
        return
    with enable_grad():
        whole, spec, offset = _in_one_dtype(base, view)
        part = written if spec is view._spec else apply(OPERATORS["view_as_real"], (written,))
        edges: list[Edge | None] = [
            whole.gradient_edge() if whole.requires_grad else None,
            part.gradient_edge() if part.requires_grad else None,
        ]
        key = ((spec.stride, offset), whole._spec, spec)
        plan = SCATTER_VIEW.plans.get(key) or SCATTER_VIEW.plan(key)
        mask = whole.requires_grad + 2 * part.requires_grad
        node = CopySlices(edges, plan, (), (), (), plan.operator.step(mask, 2, False, False))
        result = Tensor(whole._array, whole._spec)
        result._requires_grad, result._grad_fn, result._output_nr = True, node, 0
        take_history(base, result if whole is base else apply(OPERATORS["view_as_complex"], (result,)))
    assert view._counter is not None
    view._view_version = view._counter.value - 1  # its own history is replayed from the base when somebody asks


# --- in-place changes of shape and strides ----------------------------------------------------------------------------


def become_view(target: Tensor, operation: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`target` itself gets the shape and strides of `operation(target, *arguments)`, a view of it (`t_`, `unsqueeze_`
    ...); returns it.
    """
    name = f"{operation.__name__}_"
    recorded = state.grad_enabled and target.requires_grad
    if recorded:
        check_history(target, name)
    changed = operation(target, *arguments)
    base = target._base
    target._bump_version(name)
    target._take_memory(changed._array, changed._spec)
    if recorded:
        take_history(target, changed)
    if base is not None and target._view_version >= 0:
        target._view_version = target._version
    return target
