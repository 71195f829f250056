"""AccumulateGrad: the sink node of a leaf. It stores the gradient so that the gradient layout contract holds.

The contract (PyTorch's grad_layout_contract.h): the gradient of a non-overlapping and dense variable has the variable's
strides, that of any other is row-major; so the optimizer and the Reducer walk variable and gradient in the same memory
order. A gradient that arrives obeying the contract and that nobody else holds is *stolen* (its memory becomes `.grad`);
otherwise it is copied into an obedient layout. A gradient that arrives later is added in place, or out of place under
create_graph.

Stealing asks who else holds the array and the memory under it (`sys.getrefcount`, calibrated below). PyTorch counts
references to the tensor object only, so there `p.view(3).backward(g)` makes p.grad share the memory of the user's g;
here g's memory has a second owner, and it is copied.
"""

import sys
import threading
import weakref
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from engine.autograd.gradients import owns_memory
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.calls.namespaces import tensor_namespace as on_tensors
from engine.memory import backend
from engine.reports import layout_report as report
from engine.rules import layout
from engine.rules.spec import Spec
from engine.tensor import AutogradMeta, Tensor
from engine.tensor.sparse import SparseTensor
from engine.tensor.tensor import creation

_accumulation = threading.RLock()  # two backward passes on different threads may meet in one leaf


class AccumulateGrad(Node):
    """Adds the gradient it is given to `variable.grad`.

    The leaf owns its node, which refers back weakly: making one a step would cost 2 µs a parameter, and a strong
    reference back would keep dropped parameters alive until the garbage collector runs. (PyTorch has it the other way
    round.) The gradient of a leaf that nobody holds any more is dropped, since nobody could look at it.
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__((), (), (variable._spec,))
        self.sequence = (
            2**64 - 1
        )  # runs before every other ready node: a finished gradient can be on its way while backward goes on
        self._variable = weakref.ref(variable)

    @property
    def variable(self) -> Tensor | None:
        """The leaf (None once nobody holds it)."""
        return self._variable()

    def name(self) -> str:
        return "AccumulateGrad"

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        variable = self._variable()
        if variable is None:
            return ()
        if variable._grad_fn is not None:
            raise RuntimeError(
                "AccumulateGrad: the leaf was moved into the graph interior by an in-place operation after it was used"
            )
        gradient = gradients[0]
        gradients[0] = None
        meta = variable._meta or variable._autograd_meta()
        arrived = gradient is not None and variable._requires_grad
        if arrived:
            references = _UNSHARED
            if self.extras is not None and self.extras.post_hooks:
                references += 1  # the executor keeps what it gives to post-hooks
            unshared = sys.getrefcount(gradient) <= references
            _accumulation.acquire()  # as a context manager it takes 0.15 µs more
            try:
                if recorded:
                    _accumulate_recorded(variable, gradient)
                else:
                    _accumulate(variable, meta, gradient, unshared)
            finally:
                _accumulation.release()
        if meta.post_accumulate:
            for hook in tuple(meta.post_accumulate.values()):
                if hook(variable) is not None:
                    raise RuntimeError("hooks registered with register_post_accumulate_grad_hook must return None")
        if meta.listener is not None:
            meta.listener(arrived, meta.grad)
        return ()


def new_accumulator(self: Tensor) -> Edge:
    """The edge to the sink node of a leaf, made."""
    meta = self._autograd_meta()
    with creation:
        edge = meta.accumulator
        if edge is None:
            edge = meta.accumulator = (AccumulateGrad(self), 0)
    return edge


def offered(node: Node) -> Any:
    """The raw memory in which the gradient that is about to be computed for `node` may be written, or None.

    That is the destination of a leaf (a part of a bucket) where no other gradient reaches the leaf in this run, none is
    there from before, and no hook looks at it. It saves a copy: 0.4 to 0.7 of 10 ms for a step of 1.9 M
    parameters on two ranks.
    """
    if type(node) is not AccumulateGrad or node.extras is not None:
        return None
    variable = node._variable()
    if variable is None or variable._meta is None:
        return None
    meta = variable._meta
    if meta.destination is None or meta.grad is not None or meta.destination_of is not variable._spec:
        return None
    task = state.tasks[-1]
    if task.dependencies.get(node) != 1 or node in task.not_ready:
        return None
    if task.needed is not None and node not in task.needed:  # the gradient goes to who asked for it
        return None
    return meta.destination._array


def _references_of_unshared() -> int:
    """What `sys.getrefcount` says, called as `apply` calls it, of an object that only apply's local variable holds."""
    gradients: list[Any] = [np.empty(1)]
    gradient = gradients[0]
    gradients[0] = None
    return sys.getrefcount(gradient) if gradient is not None else 0


_UNSHARED = _references_of_unshared()


def _accumulate(variable: Tensor, meta: AutogradMeta, gradient: Any, unshared: bool) -> None:
    """The branches of PyTorch's accumulateGrad with grad mode off, on raw arrays."""
    own = variable._spec
    if (
        unshared
        and meta.grad is None
        and meta.destination_of is None
        and gradient.__class__ is np.ndarray
        and gradient.base is None
        and gradient.strides == own.byte_strides
        and gradient.shape == own.shape
        and own.steady
    ):  # the usual case, where the general one below comes to the same: 0.3 µs less
        meta.grad = Tensor(gradient, own)
        return
    target = meta.destination
    if target is not None and gradient is target._array and meta.grad is None:  # written there: `offered` has looked
        _arrive(meta, target)
        return
    if meta.destination_of is not variable._spec and meta.destination_of is not None:
        raise _converted(variable, meta.destination_of)
    if gradient.__class__ is SparseTensor or meta.grad.__class__ is SparseTensor:
        _accumulate_sparse(variable, meta, gradient)
        return
    if meta.grad is not None:
        total = meta.grad
        if gradient.shape != total._spec.shape:
            raise RuntimeError(
                f"AccumulateGrad: the gradient has shape {list(gradient.shape)} and the .grad that is there "
                f"{list(total._spec.shape)} (was .data swapped?); set .grad to None first"
            )
        array = total._array
        array += gradient
        total._bump_version("AccumulateGrad")
        return
    if (
        gradient.shape != variable._spec.shape
    ):  # .data was swapped after the graph was built: the gradient is that of the old one
        fresh = np.array(gradient) if type(gradient) is not np.ndarray else gradient.copy()
        meta.grad = Tensor(fresh, backend.spec_of_array(fresh, variable._spec.device))
        return
    if target is not None:
        if gradient.strides == target._array.strides:
            target._array[...] = gradient
        else:
            began = perf_counter()
            target._array[...] = gradient
            _report(variable, gradient, perf_counter() - began, "bucket")
        _arrive(meta, target)
        return
    spec = _obedient_spec(variable, gradient)
    if unshared and spec is not None and owns_memory(gradient):
        meta.grad = Tensor(gradient, spec)
        return
    began = perf_counter()
    meta.grad = copy_by_contract(variable, gradient)
    if spec is None:
        _report(variable, gradient, perf_counter() - began, None)


def _arrive(meta: AutogradMeta, target: Tensor) -> None:
    """The gradient is in its destination."""
    counter = target._counter or target._version_counter()  # 0.2 µs less than _bump_version, once a parameter and step
    counter.value += 1
    counter.last_writer = "AccumulateGrad"
    meta.grad = target


def _accumulate_sparse(variable: Tensor, meta: AutogradMeta, gradient: Any) -> None:
    """A gradient by rows stays so until a dense one is added.

    Raises: RuntimeError where it is to be averaged over ranks in a bucket, whose memory is dense.
    """
    if meta.destination_of is not None:
        raise RuntimeError(
            f"DistributedDataParallel: the gradient of {meta.name or 'a parameter'} of shape {list(variable.shape)} is "
            "sparse, and gradients are averaged as dense memory here; make its Embedding with sparse=False"
        )
    if meta.grad is None:
        meta.grad = gradient
    elif gradient.__class__ is SparseTensor:
        meta.grad = meta.grad.detach() + gradient
    else:
        meta.grad = meta.grad + Tensor(gradient, backend.spec_of_array(gradient, variable._spec.device))


def _report(variable: Tensor, gradient: Any, seconds: float, consumer: str | None) -> None:
    """Tells `engine.reports.layout_report` of a copy that another layout of the gradient would have saved."""
    stride = tuple(step // gradient.itemsize for step in gradient.strides)
    if report.is_breach(stride, variable):
        producer = state.tasks[-1].producer
        report.note(variable, stride, "?" if producer is None else producer.name(), seconds, consumer)


def _converted(variable: Tensor, before: Spec | None) -> RuntimeError:
    """The error for a leaf that is not what it was when its gradient was given a destination."""
    assert before is not None
    name = (variable._meta.name if variable._meta is not None else None) or "a parameter"
    now = variable._spec
    return RuntimeError(
        f"{name} was {list(before.shape)} {before.dtype} with strides {before.stride} when it was wrapped, and is "
        f"{list(now.shape)} {now.dtype} with strides {now.stride} now; convert the model (.to(), .half(), .data = ...) "
        "before wrapping it in DistributedDataParallel"
    )


def _obedient_spec(variable: Tensor, gradient: Any) -> Spec | None:
    """The Spec of the gradient if it obeys the contract as it is, else None."""
    spec = variable._spec
    if isinstance(gradient, backend.SCALAR):
        return None
    if gradient.strides == spec.byte_strides and spec.steady:
        return spec
    if gradient.strides and min(gradient.strides) < 0:  # a flipped view, which no Tensor can be
        return None
    found = backend.spec_of_array(gradient, spec.device)
    obeys = layout.obeys_layout_contract(spec.shape, found.stride, spec.stride) or not state.layout_contract
    return found if obeys else None


def copy_by_contract(variable: Tensor, gradient: Any) -> Tensor:
    """A copy of a raw gradient in the layout the contract asks for; its version is 1, since it was filled in place."""
    spec = variable._spec
    stride = layout.contract_strides(spec.shape, spec.stride)
    target = spec if stride == spec.stride else spec.like(stride=stride)
    memory = backend.empty(target)
    memory[...] = gradient
    copy = Tensor(memory, target)
    copy._bump_version("AccumulateGrad")
    return copy


def _accumulate_recorded(variable: Tensor, gradient: Tensor) -> None:
    """The same with grad mode on (create_graph): nothing is stolen or written in place, and the result has a
    history.
    """
    meta = variable._autograd_meta()
    if meta.grad is not None:
        meta.grad = meta.grad + gradient
        return
    spec = variable._spec
    meta.grad = on_tensors.lay_out(gradient, layout.contract_strides(spec.shape, spec.stride))
