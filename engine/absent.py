"""What PyTorch has and this library has not: where to look instead, for the AttributeErrors of `engine` and its
packages.
"""

_ELSEWHERE = {
    "engine.distributed": "it is the package ddp: `import ddp as dist`",
    "engine.nn.parallel": "use `from ddp import DistributedDataParallel`",
    "engine.nn.DataParallel": "one process drives one device here; use ddp.DistributedDataParallel under ddprun",
    "engine.nn.SyncBatchNorm": "use ddp.SyncBatchNorm",
    "engine.utils.data.distributed": "use `from ddp import DistributedSampler`",
    "engine.utils.data.DistributedSampler": "use `from ddp import DistributedSampler`",
    "engine.compile": "there is no compiler; leave the call out, eager mode is all there is",
    "engine.jit": "there is no compiler; a module is used as it is",
    "engine.onnx": "save the state_dict with engine.save, a safetensors file that PyTorch reads, and export from there",
    "engine.sparse": "tensors are strided",
    "engine.__version__": "the distribution is not installed; `pip install -e .` makes it known",
}


def absent(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have, with what to use instead where that is known."""
    elsewhere = _ELSEWHERE.get(f"{module}.{name}")
    advice = "" if elsewhere is None else f": {elsewhere}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}")
