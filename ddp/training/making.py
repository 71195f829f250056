"""What making a wrapper takes: its arguments checked, the ranks' replicas compared and made equal, and the Reducer."""

from functools import partial
from typing import TYPE_CHECKING, Any

from ddp import replicas
from ddp.gradients.drift import Drift
from ddp.gradients.of_shards import ReducerOfShards
from ddp.gradients.reducer import Reducer
from ddp.replicas import placement
from ddp.replicas.agreement import Replica, check_replicas
from ddp.replicas.contents import layouts
from engine.reports.layout_report import name_parameters

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel

_NAME = "DistributedDataParallel"
# Of its attributes those that must be the same on every rank.
_ALIKE = (
    "bucket_cap_mb",
    "bucket_cap_mb_list",
    "broadcast_buffers",
    "gradient_as_bucket_view",
    "static_graph",
    "on_drift",
    "_delayed",
)


def agree(net: "DistributedDataParallel", init_sync: bool, problem: Exception | None) -> Reducer:
    """Collective: check that the ranks agree, take over rank 0's values if wanted, and make the Reducer."""
    try:
        compare(net, problem, init_sync)
    except RuntimeError:
        if problem is not None:
            raise problem from None
        raise
    if init_sync:
        replicas.copy_from(0, net._contents.tensors(net._start_buffers), net.process_group)
    return reducer(net)


def compare(net: "DistributedDataParallel", problem: Exception | None = None, init_sync: bool = False) -> None:
    """Collective: raises on every rank when the ranks' replicas or options are not alike, or one has a problem."""
    options = {name: getattr(net, name) for name in _ALIKE}
    mine = Replica(
        str(problem or ""),
        options | {"init_sync": init_sync, "num_shards": net.job and net.job.num_shards},
        layouts(net._contents.parameters()),
        layouts(net._contents.trainable()),
        layouts(net._contents.buffers()),
    )
    check_replicas(mine, net.process_group.exchange)


def problem(net: "DistributedDataParallel", only_defaults: dict[str, Any], hooked: bool) -> Exception | None:
    """What is wrong on this rank. only_defaults: arguments that must be None. hooked: whether PyTorch's argument for
    the parameters that are summed last was given.
    """
    if hooked != bool(net._delayed):
        return ValueError(
            f"{_NAME}: delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time."
        )
    missing = set(net._delayed) - {path for path, _ in net._contents.trainable()}
    if missing:
        return ValueError(f"{_NAME}: delay_all_reduce_named_params names no trainable parameter {min(missing)!r}")
    if any(value is not None for value in only_defaults.values()):
        given = ", ".join(argument for argument, value in only_defaults.items() if value is not None)
        return ValueError(
            f"{_NAME}: {given} given, but mixed_precision has no meaning here (use autocast), nor has device_mesh "
            "(pass process_group)"
        )
    if net.on_drift not in ("error", "warn", "ignore"):
        return ValueError(f"{_NAME}: expected on_drift 'error', 'warn' or 'ignore', got {net.on_drift!r}")
    for cap in (*net.bucket_cap_mb_list, 1 if net.bucket_cap_mb is None else net.bucket_cap_mb):
        if cap <= 0:
            return ValueError(f"{_NAME}: expected a positive bucket_cap_mb, got {cap}")
    if not net._contents.trainable():
        return RuntimeError(f"{_NAME} is not needed when a module doesn't have any parameter that requires a gradient.")
    return placement.check(net._contents.trainable())


def reducer(net: "DistributedDataParallel") -> Reducer:
    """Collective: the Reducer, and what `forward` needs to know of the module."""
    trainable = net._contents.trainable()
    name_parameters(trainable)
    net._contents.note()
    group, job = net.process_group, net.job
    transports = {
        where: group.transport if job else group.transport_on(where) for where in placement.devices(trainable)
    }
    kind = Reducer if job is None else partial(ReducerOfShards, shards=job.num_shards)
    with group.meeting("the making of gradient buckets"):
        made = kind(
            trainable,
            {device: transport.independent() for device, transport in transports.items()},
            net.bucket_limits(),
            net.gradient_as_bucket_view,
            net.find_unused_parameters,
            net.static_graph,
            [parameter for name, parameter in trainable if name in net._delayed],
            group.exchange if group.size() > 1 else None,
            leave_unused=net.leave_unused,
        )
    made.synchronize = net.require_backward_grad_sync
    made.weight = net.gradient_weight
    if net.on_drift != "ignore" and group.size() > 1 and not net.leave_unused:
        voices = group.size() if job is None else job.num_shards
        made.drift = Drift(trainable, voices, job, net.on_drift == "error")
    group.models += 1
    made.buckets.watch(group.subchannel(f"the gradients of model {group.models}"))
    return made
