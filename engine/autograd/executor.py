"""Backward: GraphTask (one run), dependency counts, the ready queue, and the public `backward` and `grad`.

A node runs when every gradient that will ever reach it has arrived. Among ready nodes the one recorded last runs first, and AccumulateGrad before all
others, so a leaf's gradient is final, and can be reduced, as early as possible. Gradients travel as raw arrays; under create_graph they
travel as Tensors and everything done to them is recorded.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from engine import backend
from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.node import Edge, Node, TensorHooks
from engine.autograd.modes import state
from engine.spec import Spec
from engine.tensor import Tensor

_REENTRANT_DEPTH_OF_ONE_THREAD = 40  # a backward inside a backward costs about 12 Python frames; deeper ones move to a fresh thread


class GraphTask:
    """The state of one backward run."""

    def __init__(self, keep_graph: bool, recorded: bool, depth: int) -> None:
        self.keep_graph = keep_graph
        self.recorded = recorded
        self.depth = depth
        self.dependencies: dict[Node, int] = {}
        self.not_ready: dict[Node, list[Any]] = {}
        self.needed: set[Node] | None = None  # None: every node runs
        self.captures: dict[Node, list[tuple[int, int]]] = {}  # node -> (gradient slot, position among the requested inputs)
        self.captured: dict[int, Any] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.node: Node | None = None  # the one that is running

    def count_dependencies(self, roots: Sequence[Node], lowest: int) -> None:
        """How many gradients each node waits for. Nodes nearer to the leaves than every requested input are not visited."""
        dependencies = self.dependencies
        seen = set(roots)
        stack = list(seen)
        while stack:
            node = stack.pop()
            if node.topological < lowest:
                continue
            for edge in node.next_edges:
                if edge is not None:
                    following = edge[0]
                    if following in dependencies:
                        dependencies[following] += 1
                    else:
                        dependencies[following] = 1
                        if following not in seen:
                            seen.add(following)
                            stack.append(following)

    def request(self, roots: Sequence[Node], inputs: Sequence[Edge], accumulate: bool) -> None:
        """Restricts the run to the nodes on a path to the requested inputs."""
        wanted = {edge[0] for edge in inputs}
        lowest = min(node.topological for node in wanted)
        if not accumulate:
            for position, (node, slot) in enumerate(inputs):
                self.captures.setdefault(node, []).append((slot, position))
        # A node is needed iff one of its edges leads to a requested node or to a needed one. Iterative post-order: chains may be 100,000 long.
        needed: set[Node] = set()
        reaches: dict[Node, bool] = {}
        stack: list[tuple[Node, bool]] = [(node, False) for node in roots]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                reaches[node] = node in wanted or any(edge is not None and reaches.get(edge[0], False) for edge in node.next_edges)
                if any(edge is not None and reaches.get(edge[0], False) for edge in node.next_edges):
                    needed.add(node)
            elif node not in reaches:
                reaches[node] = False
                if node.topological >= lowest:
                    stack.append((node, True))
                    stack.extend((edge[0], False) for edge in node.next_edges if edge is not None and edge[0] not in reaches)
        self.needed = needed | wanted if accumulate else needed


class _Local(threading.local):
    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []
        self.depth = 0


_local = _Local()


def queue_callback(callback: Callable[[], None]) -> None:
    """Runs `callback` at the end of the backward that is running on this thread.

    Raises: RuntimeError outside a backward pass.
    """
    if not _local.tasks:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    _local.tasks[-1].callbacks.append(callback)


def current_node() -> Node | None:
    """The node that this thread is running, for hooks and debugging."""
    return _local.tasks[-1].node if _local.tasks else None


def run_backward(
    roots: Sequence[Edge], gradients: Sequence[Any], keep_graph: bool, create_graph: bool, inputs: Sequence[Edge] | None, accumulate: bool
) -> list[Any] | None:
    """Runs one GraphTask and returns the captured gradients (None unless `inputs` were asked for without accumulation).

    `gradients` are Tensors, one a root. A backward started inside a node of another one runs as a task of its own, to any depth.
    """
    if _local.depth and _local.depth % _REENTRANT_DEPTH_OF_ONE_THREAD == 0:
        return _on_fresh_thread(lambda: _run(roots, gradients, keep_graph, create_graph, inputs, accumulate))
    return _run(roots, gradients, keep_graph, create_graph, inputs, accumulate)


def _on_fresh_thread(function: Callable[[], Any]) -> Any:
    """Runs `function` on a thread with an empty Python stack and this thread's modes."""
    outcome: dict[str, Any] = {}
    modes, depth = dict(state.__dict__), _local.depth

    def body() -> None:
        state.__dict__.update(modes)
        _local.depth = depth + 1
        try:
            outcome["value"] = function()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread whatever it is
            outcome["error"] = error

    thread = threading.Thread(target=body, name="engine-reentrant-backward")
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _run(
    roots: Sequence[Edge], gradients: Sequence[Any], keep_graph: bool, create_graph: bool, inputs: Sequence[Edge] | None, accumulate: bool
) -> list[Any] | None:
    task = GraphTask(keep_graph, create_graph, _local.depth)
    buffers: dict[Node, list[Any]] = {}
    for (node, slot), gradient in zip(roots, gradients, strict=True):
        value = gradient if create_graph else gradient._array
        buffer = buffers.setdefault(node, [None] * len(node.output_specs))
        buffer[slot] = value if buffer[slot] is None else buffer[slot] + value
    del gradients, gradient, value, buffer
    task.count_dependencies(list(buffers), min((edge[0].topological for edge in inputs), default=0) if inputs else 0)
    if inputs is not None:
        task.request(list(buffers), inputs, accumulate)
    before = state.grad_enabled
    state.grad_enabled = create_graph
    _local.tasks.append(task)
    _local.depth += 1
    try:
        _drain(task, buffers)
        for callback in task.callbacks:  # a callback may queue further ones
            callback()
    finally:
        state.grad_enabled = before
        _local.tasks.pop()
        _local.depth -= 1
    if inputs is None or accumulate:
        return None
    return [task.captured.get(position) for position in range(len(inputs))]


def _drain(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """Runs the roots and everything that becomes ready. Roots that other roots lead to wait like any other node."""
    queue: list[tuple[int, Node, list[Any]]] = []  # sequence numbers differ, so nodes are never compared
    dependencies, not_ready, recorded, needed = task.dependencies, task.not_ready, task.recorded, task.needed
    for node in list(buffers):
        if node in dependencies:
            not_ready[node] = buffers.pop(node)
        else:
            heappush(queue, (-node.sequence, node, buffers.pop(node)))
    while queue:
        _, node, buffer = heappop(queue)
        results = _evaluate(task, node, buffer)
        if results is None:
            results = (None,) * len(node.next_edges)
        specs = node.input_specs
        leaves: list[tuple[Node, list[Any]]] = []
        position = -1
        for edge in node.next_edges:
            position += 1
            if edge is None:
                continue
            following, slot = edge
            remaining = dependencies.get(following)
            if remaining is None:
                continue  # nearer to the leaves than every requested input
            gradient = results[position]
            if gradient is not None:
                spec = specs[position]
                if recorded:
                    gradient = _conform_tensor(node, position, gradient, spec)
                elif gradient.shape != spec.shape or gradient.dtype is not spec.dtype.numpy:
                    gradient = _conform(node, position, gradient, spec)
            buffer = not_ready.get(following)  # type: ignore[assignment]
            if buffer is None:
                buffer = [None] * len(following.output_specs)
                if remaining > 1:
                    not_ready[following] = buffer
            elif remaining == 1:
                del not_ready[following]
            if gradient is not None:
                held = buffer[slot]
                buffer[slot] = gradient if held is None else _add(buffer, slot, gradient, recorded)
                held = None
            dependencies[following] = remaining - 1
            if remaining == 1:
                if type(following) is AccumulateGrad:
                    leaves.append((following, buffer))
                else:
                    heappush(queue, (-following.sequence, following, buffer))
        # AccumulateGrad looks at reference counts: nothing here may hold a gradient while it runs.
        results = gradient = buffer = None  # type: ignore[assignment]
        if leaves:
            state.producer = node
            for leaf, buffer in leaves:
                _evaluate(task, leaf, buffer)
    assert not not_ready or needed is not None, f"could not compute gradients for {[node.name() for node in not_ready]}"


def _evaluate(task: GraphTask, node: Node, buffer: list[Any]) -> Sequence[Any] | None:
    """Hooks, the node itself, hooks, release. None where the node need not run."""
    task.node = node
    try:
        if node.extras is None and task.needed is None and not (type(node) is AccumulateGrad and node.leaf_hooks is not None):
            results: Sequence[Any] | None = node.apply(buffer, task.recorded)
        else:
            results = _evaluate_with_extras(task, node, buffer)
    except Exception as error:
        _name_the_node(error, node)
        raise
    if results is not None:
        if not task.keep_graph:
            node.release()
        if state.anomaly and state.check_nan:
            _check_nan(node, results)
    return results


def _evaluate_with_extras(task: GraphTask, node: Node, buffer: list[Any]) -> Sequence[Any] | None:
    """The same where somebody registered hooks, or asked for the gradients of certain inputs only."""
    captures = task.captures.get(node)
    runs = task.needed is None or node in task.needed
    if captures is not None and runs:
        _capture(task, captures, buffer)  # a node that also runs is captured before its hooks (spec section 5.6)
    if runs or captures is not None:
        buffer = _run_pre_hooks(task, node, buffer, runs)
    if captures is not None and not runs:
        _capture(task, captures, buffer)
    if not runs:
        return None
    if node.extras is None or not node.extras.post_hooks:
        return node.apply(buffer, task.recorded)
    kept = tuple(buffer)
    return _run_post_hooks(task, node, node.apply(buffer, task.recorded), kept)


def _capture(task: GraphTask, captures: list[tuple[int, int]], buffer: list[Any]) -> None:
    for slot, position in captures:
        task.captured[position] = buffer[slot]


def _add(buffer: list[Any], slot: int, gradient: Any, recorded: bool) -> Any:
    """The sum of the gradient in the buffer and another one."""
    return buffer[slot] + gradient


def _conform(node: Node, position: int, gradient: Any, spec: Spec) -> Any:
    """A raw gradient made to look like the input it belongs to: broadcasting undone, dtype cast. The only place that does so."""
    if gradient.shape != spec.shape:
        gradient = _sum_to_shape(node, position, gradient, spec)
    if gradient.dtype != spec.dtype.numpy:
        if spec.dtype.category < 3 and gradient.dtype.kind == "c":
            gradient = gradient.real
        gradient = gradient.astype(spec.dtype.numpy)
    return gradient


def _sum_to_shape(node: Node, position: int, gradient: Any, spec: Spec) -> Any:
    leading, kept = broadcast_axes(node, position, gradient.shape, spec.shape)
    # keepdims leaves the strides of a row-major sum, so that the contract is met without another copy
    total = gradient.sum(axis=leading + kept, keepdims=True)
    return total.reshape(spec.shape)


def broadcast_axes(node: Node, position: int, given: tuple[int, ...], expected: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of `given` to sum so that it becomes `expected`: leading ones, and those of size 1 in `expected`.

    Raises: RuntimeError naming the node when `expected` does not broadcast to `given`.
    """
    extra = len(given) - len(expected)
    kept = tuple(extra + axis for axis, size in enumerate(expected) if size == 1 and extra + axis >= 0 and given[extra + axis] != 1)
    if extra < 0 or any(size != given[extra + axis] and extra + axis not in kept for axis, size in enumerate(expected)):
        raise RuntimeError(
            f"Function {node.name()} returned an invalid gradient at index {position} - got {list(given)} but expected shape compatible with {list(expected)}"
        )
    return tuple(range(extra)), kept


def _conform_tensor(node: Node, position: int, gradient: Any, spec: Spec) -> Tensor:
    """The same for a Tensor, recorded."""
    if not isinstance(gradient, Tensor):
        raise TypeError(f"Function {node.name()} returned a gradient of type {type(gradient).__name__} at index {position}; expected a Tensor or None")
    if gradient.shape != spec.shape:
        leading, kept = broadcast_axes(node, position, gradient.shape, spec.shape)
        gradient = gradient.sum(leading + kept, True).reshape(spec.shape)
    if gradient.dtype is not spec.dtype:
        if gradient.is_complex() and not spec.dtype.is_complex:
            gradient = gradient.real
        gradient = gradient.to(spec.dtype)
    return gradient


def as_tensor(value: Any, like: Spec) -> Tensor | None:
    """A raw gradient as a Tensor, for hooks and Functions."""
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, backend.SCALAR):
        value = np.asarray(value)
    return Tensor(value, backend.spec_of_array(value, like.device))


def _run_pre_hooks(task: GraphTask, node: Node, buffer: list[Any], node_runs: bool) -> list[Any]:
    """Tensor hooks (retain_grad last), then the node's own, which a merely captured node skips."""
    extras = node.extras
    if (extras is None or not (extras.tensor_hooks or extras.pre_hooks)) and not (isinstance(node, AccumulateGrad) and node.leaf_hooks is not None):
        return buffer
    gradients = [as_tensor(value, spec) for value, spec in zip(buffer, node.output_specs, strict=True)]
    slots: dict[int, TensorHooks] = {} if extras is None else dict(extras.tensor_hooks)
    if isinstance(node, AccumulateGrad) and node.leaf_hooks is not None:
        slots[0] = node.leaf_hooks
    for slot, hooks in slots.items():
        for hook in tuple(hooks.hooks.values()):
            gradients[slot] = _checked(hook, hook(gradients[slot]), gradients[slot])
        if hooks.retain is not None and gradients[slot] is not None:
            hooks.retain(gradients[slot])
    if node_runs:
        for hook in tuple(extras.pre_hooks.values()) if extras is not None else ():
            replaced = hook(tuple(gradients))
            if replaced is not None:
                replaced = replaced if isinstance(replaced, tuple) else (replaced,)
                if len(replaced) != len(gradients):
                    raise RuntimeError(f"prehook {_label(hook)} returned {len(replaced)} gradients, expected {len(gradients)}")
                gradients = [_checked(hook, new, old) for new, old in zip(replaced, gradients, strict=True)]
    return gradients if task.recorded else [None if tensor is None else tensor._array for tensor in gradients]


def _run_post_hooks(task: GraphTask, node: Node, results: Sequence[Any], kept: tuple[Any, ...]) -> Sequence[Any]:
    outputs = tuple(as_tensor(value, spec) for value, spec in zip(kept, node.output_specs, strict=True))
    inputs = tuple(as_tensor(value, spec) for value, spec in zip(results, node.input_specs, strict=False))
    for hook in tuple(node.extras.post_hooks.values()) if node.extras is not None else ():
        replaced = hook(inputs, outputs)
        if replaced is not None:
            replaced = replaced if isinstance(replaced, tuple) else (replaced,)
            if len(replaced) != len(inputs):
                raise RuntimeError(f"hook {_label(hook)} of {node.name()} returned {len(replaced)} gradients, expected {len(inputs)}")
            inputs = tuple(_checked(hook, new, old) for new, old in zip(replaced, inputs, strict=True))
    return inputs if task.recorded else [None if tensor is None else tensor._array for tensor in inputs]


def _label(hook: Callable[..., Any]) -> str:
    return repr(getattr(hook, "__name__", type(hook).__name__))


def _checked(hook: Callable[..., Any], new: Any, old: Tensor | None) -> Tensor | None:
    """What a hook returned, if it may replace the gradient it was given."""
    if new is None:
        return old
    if not isinstance(new, Tensor):
        raise TypeError(f"expected hook {_label(hook)} to return a Tensor or None, got {type(new).__name__}")
    if old is None:
        raise RuntimeError(f"can't replace a None gradient with a non-None value (hook {_label(hook)})")
    for what, got, expected in (("size", list(new.shape), list(old.shape)), ("type", new.dtype, old.dtype), ("device", new.device, old.device)):
        if got != expected:
            raise RuntimeError(f"hook {_label(hook)} has changed the {what} of value: expected {expected}, got {got}")
    return new


def _name_the_node(error: Exception, node: Node) -> None:
    """Says which node failed (and, in anomaly mode, where forward made it) without touching the exception's type or text."""
    if getattr(error, "_engine_named", False):
        return
    error.add_note(f"raised in backward by {node.name()}")
    if node.extras is not None and node.extras.forward_stack:
        error.add_note("Traceback of the forward call that caused the error:\n" + "".join(node.extras.forward_stack))
    error._engine_named = True  # type: ignore[attr-defined]


def _check_nan(node: Node, results: Sequence[Any]) -> None:
    for position, value in enumerate(results):
        array = value._array if isinstance(value, Tensor) else value
        if array is not None and array.dtype.kind in "fc" and bool((array != array).any()):
            error = RuntimeError(f"Function '{node.name()}' returned nan values in its {position}th output.")
            _name_the_node(error, node)
            raise error


# --- the public calls -------------------------------------------------------------------------------------------------------------------------


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Tensor) or value is None else tuple(value)


def _root_gradients(outputs: tuple[Tensor, ...], given: tuple[Any, ...], create_graph: bool) -> list[Tensor]:
    from engine.ops.factories import ones_like

    if len(given) != len(outputs):
        raise RuntimeError(f"backward: got {len(outputs)} tensors and {len(given)} gradients; expected one gradient a tensor")
    gradients = []
    for output, gradient in zip(outputs, given, strict=True):
        if not isinstance(output, Tensor):
            raise TypeError(f"backward: expected Tensors as roots, got {type(output).__name__}")
        if not output.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn: nothing in its history requires grad, "
                "or it was made under no_grad or by detach()"
            )
        if gradient is None:
            if output.numel() != 1:
                raise RuntimeError(
                    f"grad can be implicitly created only for scalar outputs, got shape {list(output.shape)}; "
                    "reduce it first (.sum() or .mean()) or pass gradient= of that shape"
                )
            if not output.is_floating_point():
                raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {output.dtype}")
            gradient = ones_like(output.detach())
        elif not isinstance(gradient, Tensor):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(gradient).__name__}")
        elif gradient.shape != output.shape:
            raise RuntimeError(f"Mismatch in shape: gradient has shape {list(gradient.shape)} and the output has shape {list(output.shape)}")
        elif gradient.is_complex() != output.is_complex():
            raise RuntimeError(f"gradient and output must both be complex or both real, got {gradient.dtype} for {output.dtype}")
        elif gradient.dtype is not output.dtype:
            gradient = gradient.to(output.dtype)
        gradients.append(gradient if create_graph else gradient.detach() if gradient.requires_grad else gradient)
    return gradients


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Accumulates the gradients of `tensors` in the leaves they depend on (or in `inputs` only), as torch.autograd.backward.

    Raises: RuntimeError for a root without history, a non-scalar root without gradient, a mismatched gradient, an empty `inputs`, or a graph whose
    saved tensors were freed by an earlier backward.
    """
    outputs = _as_tuple(tensors)
    given = (None,) * len(outputs) if grad_tensors is None else _as_tuple(grad_tensors)
    requested = None
    if inputs is not None:
        requested = [tensor.gradient_edge() for tensor in _as_tuple(inputs)]
        if not requested:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if create_graph:
        warnings.warn(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient which can cause a memory "
            "leak. Use autograd.grad when creating the graph to avoid this, or reset the .grad fields to None after use.",
            UserWarning,
            stacklevel=3,
        )
    gradients = _root_gradients(outputs, given, create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    run_backward([output.gradient_edge() for output in outputs], gradients, keep, create_graph, requested, True)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, without touching any `.grad`, as torch.autograd.grad.

    Raises: RuntimeError for an input that does not require grad or (unless allow_unused) was not used; ValueError for contradictory arguments.
    """
    if is_grads_batched:
        raise NotImplementedError("grad: is_grads_batched needs vmap, which this engine does not have; loop over the rows of grad_outputs")
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    roots, wanted = _as_tuple(outputs), _as_tuple(inputs)
    if not wanted:
        raise ValueError("grad requires non-empty inputs.")
    for tensor in wanted:
        if not tensor.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    given = (None,) * len(roots) if grad_outputs is None else _as_tuple(grad_outputs)
    gradients = _root_gradients(roots, given, create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    requested = [tensor.gradient_edge() for tensor in wanted]
    found = run_backward([root.gradient_edge() for root in roots], gradients, keep, create_graph, requested, False)
    assert found is not None
    results = []
    for tensor, value in zip(wanted, found, strict=True):
        if value is None:
            if materialize_grads:
                from engine.ops.factories import zeros_like

                results.append(zeros_like(tensor.detach()))
                continue
            if not allow_unused:
                raise RuntimeError(
                    "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the desired behavior."
                )
        results.append(as_tensor(value, tensor._spec))
    return tuple(results)


