"""What users may look at and change in the recorded graph, as torch.autograd.graph: nodes, gradient edges, hooks on
saved tensors and on several gradients.

The last part is for packages that reduce gradients (ddp).
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import is_
from typing import Any, Literal, NamedTuple

from engine.autograd.executor import failures, watchers
from engine.autograd.gradients import gradient_of
from engine.autograd.modes import state
from engine.autograd.node import Edge as Edge
from engine.autograd.node import Node as Node
from engine.autograd.node import RemovableHandle as RemovableHandle
from engine.autograd.places import current_place, event_after
from engine.autograd.saved import Pack, Unpack
from engine.autograd.task import current_task
from engine.autograd.task import current_task_id as current_task_id
from engine.autograd.task import queue_callback as queue_callback
from engine.autograd.task import reached_nodes as _reached_nodes
from engine.rules.device import CPU, device
from engine.tensor import Tensor

# --- gradient edges ---------------------------------------------------------------------------------------------------


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor is computed: gradient slot `output_nr` of `node`. It keeps the graph alive.

    `backward` and `grad` accept one wherever they accept a tensor.
    """

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The gradient edge of a tensor.

    Raises: RuntimeError when the tensor does not require grad.
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients; call "
            "requires_grad_() on it first"
        )
    return GradientEdge(*tensor.gradient_edge())


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Counts an in-place write that the engine did not see (through `tensor.numpy()`, say), so that the check of saved
    tensors notices it.
    """
    if isinstance(tensor, Tensor):
        tensor._bump_version("increment_version")
        return
    for written in tensor:
        written._bump_version("increment_version")


def version_of(tensor: Tensor) -> int:
    """How many in-place writes to a tensor's memory the engine has seen, or was told of."""
    return tensor._version


# --- hooks on saved tensors -------------------------------------------------------------------------------------------


class saved_tensors_hooks:
    """Context manager: what operations inside save for backward is given to `pack_hook(tensor)`, and only its result is
    kept.

    Backward calls `unpack_hook(packed)`, which must return a Tensor with the same values. The innermost pair counts.

    Raises: RuntimeError on entry inside `disable_saved_tensors_hooks`; TypeError unless both can be called.
    """

    def __init__(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        if not callable(pack_hook) or not callable(unpack_hook):
            raise TypeError(
                f"saved_tensors_hooks: expected two functions, got {type(pack_hook).__name__} and "
                f"{type(unpack_hook).__name__}"
            )
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if state.saved_tensor_hooks_disabled is not None:
            raise RuntimeError(state.saved_tensor_hooks_disabled)
        state.saved_tensor_hooks = (*state.saved_tensor_hooks, (self.pack_hook, self.unpack_hook))

    def __exit__(self, *_: object) -> None:
        state.saved_tensor_hooks = state.saved_tensor_hooks[:-1]


class save_on_cpu(saved_tensors_hooks):
    """Context manager: saved tensors wait for backward in host memory, and return to their device when it needs them.

    pin_memory: in page-locked memory, so that the CPU waits for no copy. Tensors in host memory stay as they are.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Tensor) -> tuple[device, Tensor, Any]:
            where = tensor.device
            if where.type != "cuda" or not pin_memory:
                return where, tensor if where is CPU else tensor.cpu(), None
            assert where.index is not None
            return where, tensor.to(CPU, non_blocking=True), event_after(current_place(where.index))

        def unpack(packed: tuple[device, Tensor, Any]) -> Tensor:
            where, saved, copied = packed
            if copied is not None:
                assert where.index is not None
                current_place(where.index).raw.wait_event(copied)
            return saved.to(where, non_blocking=copied is not None)

        super().__init__(pack, unpack)


class allow_mutation_on_saved_tensors(saved_tensors_hooks):
    """Context manager: what is saved for backward inside may be written in place afterwards; backward uses what it was.

    Each saved tensor is copied when it is saved (PyTorch copies at the write), so a step needs that much more memory.
    """

    def __init__(self) -> None:
        super().__init__(lambda tensor: tensor.clone(), lambda copy: copy)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Context manager: `saved_tensors_hooks` raises RuntimeError with this message inside.

    Raises: the same at once when hooks are active already.
    """
    if state.saved_tensor_hooks:
        raise RuntimeError(error_message)
    before = state.saved_tensor_hooks_disabled
    state.saved_tensor_hooks_disabled = error_message
    try:
        yield
    finally:
        state.saved_tensor_hooks_disabled = before


# --- hooks on several gradients ---------------------------------------------------------------------------------------


class _Handles(RemovableHandle):
    """Several handles removed as one."""

    def __init__(self, handles: Iterable[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def remove(self) -> None:
        """Takes all the hooks away."""
        for handle in self.handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: Literal["all", "any"] = "all"
) -> RemovableHandle:
    """Runs `fn` once a backward: with "all" when the gradients of all `tensors` that this backward computes are there,
    with "any" at the first.

    With "all", `fn(gradients)` gets a list with one entry a tensor, None for those this backward does not reach; with
    "any", `fn(gradient)`.
    Raises: ValueError for another mode; RuntimeError when a tensor does not require grad ("all").
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    lock = threading.Lock()  # nodes of one backward may run on several threads
    if mode == "any":
        return _Handles(tensor.register_hook(_first_of(fn, lock)) for tensor in tensors if tensor.requires_grad)
    gather = _Gather(tensors, fn, lock)
    return _Handles(tensor.register_hook(partial(gather, position)) for position, tensor in enumerate(tensors))


def _first_of(fn: Callable[[Tensor], None], lock: threading.Lock) -> Callable[[Tensor], None]:
    def first_only(gradient: Tensor) -> None:
        task = current_task()
        with lock:
            if lock in task.scratch:
                return
            task.scratch[lock] = True
        fn(gradient)

    return first_only


class _Gather:
    """Collects the gradients of one backward and calls `fn` with the last. It refers to nodes weakly, since they hold
    it as their hook.
    """

    def __init__(
        self, tensors: Sequence[Tensor], fn: Callable[[list[Tensor | None]], None], lock: threading.Lock
    ) -> None:
        self.nodes = [weakref.ref(get_gradient_edge(tensor).node) for tensor in tensors]
        self.fn = fn
        self.lock = lock

    def __call__(self, position: int, gradient: Tensor) -> None:
        task = current_task()
        with self.lock:
            if self.lock not in task.scratch:
                alive = [node() for node in self.nodes]
                expected = sum(node is not None and task.will_run(node) for node in alive)
                task.scratch[self.lock] = [expected, [None] * len(alive)]
            progress = task.scratch[self.lock]
            progress[0] -= 1
            progress[1][position] = gradient
            complete = progress[0] == 0
        if complete:
            self.fn(progress[1])


# --- for packages that reduce gradients (ddp) -------------------------------------------------------------------------


def listen_to_gradients(
    variable: Tensor, listener: Callable[[bool, Tensor | None], None] | None, destination: Tensor | None
) -> None:
    """`listener(arrived, grad)` runs whenever backward has reached a leaf: after accumulation and the user's hooks on
    it.

    arrived: whether there was a gradient. grad: the leaf's `.grad` now. A leaf has one listener; a later one takes its
    place. destination: where the first gradient is written, which thereby becomes `.grad`; None: it stays where it
    comes.

    Raises: RuntimeError unless `variable` is a leaf that requires grad and `destination` has its shape and dtype.
    """
    if not variable.requires_grad or not variable.is_leaf:
        raise RuntimeError("listen_to_gradients: expected a leaf that requires grad, got a tensor that is none")
    if destination is not None and (destination.shape != variable.shape or destination.dtype is not variable.dtype):
        raise RuntimeError(
            f"listen_to_gradients: expected a destination {list(variable.shape)} {variable.dtype}, "
            f"got {list(destination.shape)} {destination.dtype}"
        )
    meta = variable._autograd_meta()
    meta.listener, meta.destination, meta.destination_of = listener, destination, variable._spec


def gradients_are(variables: Iterable[Tensor], gradients: Iterable[Tensor]) -> bool:
    """Whether `.grad` of each of these leaves, all of which are listened to, is this very tensor: one loop in C."""
    return all(map(is_, map(gradient_of, variables), gradients))


def stop_listening(variable: Tensor, listener: Callable[[bool, Tensor | None], None]) -> None:
    """Undoes `listen_to_gradients`, unless another listener has taken over."""
    meta = variable._meta
    if meta is not None and meta.listener is listener:
        meta.listener = meta.destination = meta.destination_of = None


def watch_backward(around: Callable[[], AbstractContextManager[object]]) -> RemovableHandle:
    """Has every backward (and `grad`) run inside a context manager that `around` makes, one that is inside of another
    backward on the same thread excepted. Returns the handle that ends it.
    """
    return RemovableHandle(watchers, around)


def watch_failures(callback: Callable[[], None]) -> RemovableHandle:
    """Has `callback` run, still inside of it, whenever an exception ends a backward, the outermost where they nest.

    Returns the handle that ends it.
    """
    return RemovableHandle(failures, callback)


def are_reached(variables: Iterable[Tensor]) -> list[bool]:
    """For each leaf, whether the backward that is running on this thread (the outermost, where they nest) leads to it.

    Raises: RuntimeError outside a backward pass.
    """
    return _reached_nodes([variable.gradient_edge()[0] for variable in variables])
