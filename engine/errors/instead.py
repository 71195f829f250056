"""What of PyTorch is not here and what to use in its place, by PyTorch's names."""

_NO_SHARDED_PARAMETERS = (
    "every rank keeps the whole model: DistributedDataParallel, with ddp.ZeroRedundancyOptimizer to share out the "
    "optimizer's state; FSDP itself runs on PyTorch with ddp.torch_backend"
)
_NO_TENSOR_PARALLELISM = "a tensor lies whole on its rank; groups of ranks are made by new_group and new_subgroups"
_NO_REMOTE_CALLS = "there are no remote calls: ranks talk by collectives, send and recv"
_NO_GRAPHS_OF_MODULES = "modules are not rewritten here; engine.trace shows the calls, hooks change what they compute"
_NO_TRANSFORMS = (
    "write the batch as an axis; derivatives are those of torch.autograd.grad and torch.autograd.functional"
)
_NO_NESTED_TENSORS = "there are no nested tensors: torch.nn.utils.rnn.pad_sequence and pack_padded_sequence"
_NO_TORCHSCRIPT = "a TorchScript file is a program; save the state_dict with torch.save and load it into the module"
_NO_EXTENSIONS = "extensions in C++ are not loaded; docs/custom_operators.md has operators written in Python"

_INSTEAD = {
    "torch.distributed.fsdp": _NO_SHARDED_PARAMETERS,
    "torch.distributed._composable": _NO_SHARDED_PARAMETERS,
    "torch.distributed.checkpoint": (
        "ddp.checkpoint.Manager, save and load keep what any number of ranks continues; torch.save on one rank the rest"
    ),
    "torch.distributed.tensor": _NO_TENSOR_PARALLELISM,
    "torch.distributed._tensor": _NO_TENSOR_PARALLELISM,
    "torch.distributed.device_mesh": _NO_TENSOR_PARALLELISM,
    "torch.distributed.init_device_mesh": _NO_TENSOR_PARALLELISM,
    "torch.distributed.DeviceMesh": _NO_TENSOR_PARALLELISM,
    "torch.distributed.pipelining": _NO_REMOTE_CALLS,
    "torch.distributed.rpc": _NO_REMOTE_CALLS,
    "torch.distributed.autograd": _NO_REMOTE_CALLS,
    "torch.distributed.nn.RemoteModule": _NO_REMOTE_CALLS,
    "torch.distributed.optim.DistributedOptimizer": _NO_REMOTE_CALLS,
    "torch.cuda.nccl": "DistributedDataParallel sums gradients by NCCL where it is installed",
    "torch.func": _NO_TRANSFORMS,
    "torch.vmap": _NO_TRANSFORMS,
    "torch.fx": _NO_GRAPHS_OF_MODULES,
    "torch.export": _NO_GRAPHS_OF_MODULES,
    "torch._C.Node": _NO_GRAPHS_OF_MODULES,
    "torch.nested": _NO_NESTED_TENSORS,
    "torch.jagged": _NO_NESTED_TENSORS,
    "torch.jit": _NO_TORCHSCRIPT,
    "torch.classes": _NO_EXTENSIONS,
    "torch.ops": _NO_EXTENSIONS,
    "torch.utils.cpp_extension": _NO_EXTENSIONS,
}


def instead(path: str) -> str:
    """What to use in the place of a name, or of one above it; "" where that is not known."""
    while path and path not in _INSTEAD:
        path = path.rpartition(".")[0]
    return _INSTEAD.get(path, "")
