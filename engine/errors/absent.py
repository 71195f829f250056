"""Names that PyTorch has and `engine` has not: what a package above it provides, or where to look instead."""

from typing import Any

_ELSEWHERE = {
    "engine.distributed": "it is the package ddp: `import ddp as dist`",
    "engine.nn.parallel.DistributedDataParallel": "use `from ddp import DistributedDataParallel`",
    "engine.autograd.forward_ad": (
        "there is no forward mode; engine.autograd.functional.jvp gives J v by differentiating twice"
    ),
    "engine.func.jvp": "there is no forward mode; engine.autograd.functional.jvp gives J v by differentiating twice",
    "engine.func.vmap": "there is no vmap; write the batch as an axis",
    "engine.nn.SyncBatchNorm": "use ddp.SyncBatchNorm",
    "engine.data.distributed": "use `from ddp import DistributedSampler`",
    "engine.data.DistributedSampler": "use `from ddp import DistributedSampler`",
    "engine.jit": "there is no compiler; a module is used as it is",
    "engine.onnx": "save the state_dict with engine.save, a safetensors file that PyTorch reads, and export from there",
    "engine.sparse_csr_tensor": "sparse tensors are in coordinate format: engine.sparse_coo_tensor",
    "engine.__version__": "the distribution is not installed; `pip install -e .` makes it known",
}


_provided: dict[str, Any] = {}


def provide(path: str, value: Any) -> None:
    """Puts a name into one of these packages, for a package above that must not be imported here."""
    _provided[path] = value


def provided(path: str) -> Any:
    """What a package above put there, or None."""
    return _provided.get(path)


def absent(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have, with what to use instead where that is known."""
    elsewhere = _ELSEWHERE.get(f"{module}.{name}")
    advice = "" if elsewhere is None else f": {elsewhere}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{advice}")


def found(module: str, name: str) -> Any:
    """What was provided under that name. Raises: `absent`."""
    try:
        return _provided[f"{module}.{name}"]
    except KeyError:
        raise absent(module, name) from None
