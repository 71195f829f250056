"""What a wrapped module tells about itself and its last step, under the names of PyTorch's DDP logging data."""

from typing import TYPE_CHECKING, Any

from ddp.training.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel


def logging_data(net: "DistributedDataParallel") -> dict[str, Any]:
    """Numbers and strings; flags are 0 or 1. `*_time` are nanoseconds of the last backward, left out before it.

    Those of PyTorch's keys that speak of CUDA devices or NCCL are missing.
    """
    reducer = net.live_reducer()
    parameters = reducer.parameters
    users = reducer.buckets.users()
    data: dict[str, Any] = {
        "world_size": net.process_group.size(),
        "rank": net.process_group.rank,
        "module_name": type(net.module).__name__,
        "backend_name": "mpi",
        "iteration": net.forwards,
        "device_ids": "",
        "output_device": -1,
        "is_multi_device_module": 0,
        "broadcast_buffers": int(net.broadcast_buffers),
        "forward_sync_buffers": int(net.broadcast_buffers),
        "bucket_cap_bytes": reducer.buckets.limits[-1],
        "bucket_sizes": ", ".join(map(str, reducer.buckets.sizes())),
        "has_rebuilt_buckets": int(reducer.rebuilt),
        "num_buckets_reduced": len(reducer.buckets.sizes()) if any(users) else 0,
        "find_unused_parameters": int(net.find_unused_parameters),
        "gradient_as_bucket_view": int(net.gradient_as_bucket_view),
        "static_graph": int(net.static_graph),
        "comm_hook": "" if reducer.hook is None else getattr(reducer.hook[1], "__name__", "a hook"),
        "has_sync_bn": int(any(isinstance(module, SyncBatchNorm) for module in net.module.modules())),
        "num_parameter_tensors": len(parameters),
        "total_parameter_size_bytes": sum(parameter.nbytes for parameter in parameters),
        "unused_parameter_size": sum(p.nbytes for p, count in zip(parameters, users, strict=True) if not count),
        "dtypes": ", ".join(dict.fromkeys(str(parameter.dtype.name) for parameter in parameters)),
    }
    if net.find_unused_parameters and not net.static_graph:
        data["can_set_static_graph"] = int(reducer.buckets.same_use)
    if reducer.times.done:
        seconds = reducer.times.overlap()
        hidden = seconds["communication"] - seconds["exposed"]
        data["backward_compute_time"] = int(1e9 * seconds["backward"])
        data["backward_comm_time"] = int(1e9 * seconds["communication"])
        data["backward_compute_comm_overlap_time"] = int(1e9 * max(0.0, hidden))
    return data
