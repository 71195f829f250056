"""What of a call is settled once for all calls alike: the rule's checks, the kernel, the layout of its results.

`engine.calls.dispatch` looks plans up; `engine.calls.operator` says what an operator consists of.
"""

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from engine.calls.namespaces import raw_namespace
from engine.calls.node_names import node_name_of_call
from engine.memory import backend
from engine.rules.device import CPU, device
from engine.rules.spec import Spec, spec_of

if TYPE_CHECKING:
    from engine.calls.operator import Operator

Array = Any


class Plan:
    """Everything about a call that depends only on the Specs of its inputs and its attributes.

    `into`: of (inputs, result), the kernel that writes to memory which lies as the result's Spec says and may be an
    input's; None where there is none.
    """

    __slots__ = ("attributes", "input_specs", "into", "nd", "operator", "out", "outs", "run")

    def __init__(self, operator: "Operator", input_specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> None:
        self.operator = operator
        self.input_specs = input_specs
        self.attributes = attributes
        self.into: Callable[..., None] | None = None
        moved = _on_one_device(input_specs)
        if moved is not None:
            self._run_on_one_device(operator, *moved)
            return
        try:
            outs = operator.rule(*operator.grouped(input_specs), *attributes)
        except RuntimeError as error:
            # "The size of tensor a ..." does not say of which operation; "add: The size ..." does.
            if type(error) is not RuntimeError or re.match(rf"{operator.name}|\w+(\(\))?:", str(error)):
                raise
            raise RuntimeError(f"{operator.name}: {error}") from None
        self.outs: tuple[Spec, ...] = (outs,) if isinstance(outs, Spec) else tuple(outs)
        self.out: Any = self.outs[0] if self.outs else None
        where = self._device()
        self.operator = own = operator.on_device(where.type)
        kinds = {spec.dtype for spec in (*input_specs, *self.outs) if spec is not None}
        if any(kind.is_complex for kind in kinds):
            self.operator = own.for_complex()
        elif own.elementwise and any(kind.itemsize == 2 and kind.is_floating_point for kind in kinds):
            self.operator = own.for_half_precision()
        self.operator = self.operator.named(node_name_of_call(operator.name, input_specs, attributes))
        if where.type == "meta":
            self.run: Callable[..., Any] = self._run_meta
            return
        xp = backend.array_module(where)
        if self.out is not None and self.out.device.type == "cuda":
            self.operator = self.operator.with_streams()
        self.nd = raw_namespace(xp)
        kernel = operator.kernels.get(where.type, operator.forward)
        planned = operator.planned.get(where.type)
        run = None if planned is None else planned(self)
        if run is not None:
            self.run = run
        elif operator.prepare is not None:
            self.run = operator.prepare(xp, self)
        else:
            if operator.before_list is not None:
                call = partial(call_with_list, kernel, xp, operator.before_list, attributes)
            else:
                call = partial(call_kernel, kernel, xp, attributes) if attributes else partial(kernel, xp)
            self.run = partial(self._first_run, call)

    def _device(self) -> device:
        """The device of the call; a 0-dim CPU tensor may stand beside tensors elsewhere."""
        found = {spec.device for spec in self.input_specs if spec is not None and spec.number is None and spec.ndim}
        if not found:
            found = {spec.device for spec in self.input_specs if spec is not None and spec.number is None} or {
                self.outs[0].device
            }
        if len(found) > 1:
            listed = ", ".join(sorted(map(str, found)))
            raise RuntimeError(
                f"{self.operator.name}: expected all tensors to be on the same device, but found {listed}; move them "
                f"with .to(device)"
            )
        return found.pop()

    def _run_on_one_device(self, operator: "Operator", specs: tuple[Spec, ...], places: tuple[int, ...]) -> None:
        """0-dim host tensors beside tensors on a GPU: the call with copies of them there, made when it runs."""
        there = operator.plans.get((self.attributes, *specs)) or operator.plan((self.attributes, *specs))
        self.outs, self.out, self.nd = there.outs, there.out, there.nd
        self.operator = there.operator.for_host_scalars()
        self.run = partial(_run_with_copies, there, places)

    def _run_meta(self, *arrays: Array) -> Any:
        return None if self.operator.single else (None,) * (len(self.outs) + self.operator.residuals)

    def _first_run(self, kernel: Callable[..., Any], *arrays: Array) -> Any:
        """Runs the kernel and settles whether its results need to be laid out anew from now on."""
        result = kernel(*arrays)
        fits = _fits(result, self.outs[0]) if self.operator.single else all(map(_fits, result, self.outs))
        if self.operator.view:
            assert fits, f"{self.operator.name}: the kernel must return a view laid out by the rule"
            self.run = kernel
            return result
        self.run = kernel if fits else partial(self._run_and_lay_out, kernel)
        return result if fits else self._lay_out(result)

    def _run_and_lay_out(self, kernel: Callable[..., Any], *arrays: Array) -> Any:
        return self._lay_out(kernel(*arrays))

    def _lay_out(self, result: Any) -> Any:
        if self.operator.single:
            return _laid_out(result, self.outs[0])
        settled = [_laid_out(array, spec) for array, spec in zip(result, self.outs, strict=False)]
        return (*settled, *result[len(settled) :])


def _on_one_device(specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], tuple[int, ...]] | None:
    """The Specs with 0-dim host tensors moved to the GPU that the others are on, and their places; None where there is
    nothing to move.
    """
    tensors = [spec for spec in specs if spec is not None and spec.number is None]
    found = {spec.device for spec in tensors if spec.ndim} or {spec.device for spec in tensors} - {CPU}
    if len(found) != 1:
        return None
    where = found.pop()
    if where.type != "cuda":
        return None
    places = tuple(
        place
        for place, spec in enumerate(specs)
        if spec is not None and spec.number is None and not spec.ndim and spec.device is CPU
    )
    if not places:
        return None
    moved = (spec_of((), (), spec.dtype, where) if place in places else spec for place, spec in enumerate(specs))
    return tuple(moved), places


def _run_with_copies(plan: Plan, places: tuple[int, ...], *arrays: Array) -> Any:
    xp = plan.nd.xp
    return plan.run(*(xp.asarray(array) if place in places else array for place, array in enumerate(arrays)))


def call_kernel(kernel: Callable[..., Any], xp: ModuleType, attributes: tuple[Any, ...], *arrays: Array) -> Any:
    """The kernel of an operator with attributes."""
    return kernel(xp, *arrays, *attributes)


def call_with_list(
    kernel: Callable[..., Any], xp: ModuleType, before: int, attributes: tuple[Any, ...], *arrays: Array
) -> Any:
    """The kernel of an operator whose last input is a list."""
    if before:
        return kernel(xp, *arrays[:before], arrays[before:], *attributes)
    return kernel(xp, arrays, *attributes)


def _fits(array: Array, spec: Spec) -> bool:
    """Whether a kernel's result is laid out as the rule says, up to axes that address nothing."""
    if array is None:
        return True
    if getattr(array, "shape", None) != spec.shape or not hasattr(array, "flags"):
        if hasattr(array, "shape") and array.shape != spec.shape:
            raise AssertionError(f"kernel returned shape {array.shape}, the rule said {spec}")
        return False
    if isinstance(array, backend.SCALAR) or array.dtype != spec.dtype.numpy:
        return False
    if spec.numel < 2:
        return True
    return all(
        size == 1 or mine == rule for size, mine, rule in zip(spec.shape, array.strides, spec.byte_strides, strict=True)
    )


def _laid_out(array: Array, spec: Spec) -> Array:
    """`array` itself or a copy of it, in the rule's strides and dtype."""
    if array is not None and not _fits(array, spec):
        copy = backend.empty(spec)
        copy[...] = array
        return copy
    return array
