"""A process group of PyTorch whose collectives are those of ddp.

PyTorch's functions call these methods, and its C++ those that DistributedDataParallel and the functional collectives
need. Ranks are numbers in the group; `opts` are PyTorch's objects with options.
"""

import datetime
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import ddp
import engine
from ddp.collectives.reductions import Op, _make_nccl_premul_sum, check_reduction
from ddp.execution.work import Work
from ddp.torch_backend.memory import shared
from ddp.torch_backend.progress import progress
from ddp.torch_backend.sums import Sums
from ddp.torch_backend.torch_work import TorchWork

NAME = "allstride"

Tensors = Sequence[torch.Tensor]

_SMALL_BYTES = 1 << 10

_NAMED = {getattr(dist.ReduceOp.RedOpType, name): operation for name, operation in ddp.ReduceOp.__members__.items()}


def create(options: Any, backend_options: Any) -> "TorchGroup":
    """Collective over the group's ranks: what PyTorch calls to make one. Raises ValueError for options of a backend."""
    if backend_options is not None:
        raise ValueError(f"{NAME}: expected no pg_options, got {type(backend_options).__name__}; leave them out")
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    with progress.lock:
        if not ddp.is_initialized():
            ddp.init_process_group()
        known = ddp.get_world_size()
        if options.group_size > known:
            raise RuntimeError(
                f"{NAME}: a world of {options.group_size} ranks was asked for, but MPI sees {known}; start the script "
                "with mpirun or ddprun, not with torchrun"
            )
        members = ddp.new_group(
            ranks, options.timeout, use_local_synchronization=True, group_desc=options.group_id, sort_ranks=False
        )
    return TorchGroup(members, options.store)


class TorchGroup(dist.ProcessGroup):
    """See the module. members: the group of ddp."""

    def __init__(self, members: ddp.ProcessGroup, store: Any) -> None:
        super().__init__(int(members.rank), members.size())
        self._members = members
        self._sums = Sums(members)
        # Under Join PyTorch's Reducer keeps the work of a number, but not the Python object, and asks it in backward.
        self._kept: deque[TorchWork] = deque(maxlen=64)
        self._store = store
        self._name = self._description = ""

    # PyTorch keeps names in a group's C++ backends, of which there is none; its C++ asks by the names in camel case.

    def getBackendName(self) -> str:
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def get_group_store(self) -> Any:
        return self._store

    def shutdown(self) -> None:
        """Waits for nobody."""
        with progress.lock:
            if self._members.lines is not None or self._members.comm is not None:
                ddp.destroy_process_group(self._members)

    abort = shutdown

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._members.timeout = self._members.channel.timeout = timeout.total_seconds()

    def broadcast(self, tensors: Any, opts: Any = None) -> TorchWork:
        given = _list(tensors)
        root = _root(opts)
        return self._begin(ddp.broadcast, given, [(shared(_one("broadcast", given)),)], group_src=root)

    def allreduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        given, operation = _list(tensors), _operation(opts)
        with progress.lock:
            works = [self._all_reduce(shared(tensor), operation) for tensor in given]
        work = TorchWork(works, given)
        if sum(tensor.nbytes for tensor in given) <= _SMALL_BYTES:
            self._kept.append(work)
        return work

    def _all_reduce(self, tensor: engine.Tensor, operation: Op) -> Work:
        check_reduction("all_reduce", operation, tensor.dtype)
        if isinstance(operation, ddp.ReduceOp) and self._sums.serves(operation, tensor):
            return self._sums.begin(tensor, operation)
        work = ddp.all_reduce(tensor, operation, self._members, async_op=True)
        assert work is not None
        return work

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> TorchWork:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        given = _list(tensors)
        tensor = shared(_one("reduce", given))
        return self._begin(ddp.reduce, given, [(tensor, None, _operation(opts))], group_dst=_root(opts))

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        (outputs,) = output_tensors
        given = _one("allgather", _list(input_tensors))
        return self._begin(ddp.all_gather, output_tensors, [([shared(output) for output in outputs], shared(given))])

    def allgather_coalesced(self, output_tensor_lists: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        calls = [
            ([shared(outputs[index]) for outputs in output_tensor_lists], shared(given))
            for index, given in enumerate(input_tensors)
        ]
        return self._begin(ddp.all_gather, output_tensor_lists, calls)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TorchWork:
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        calls = [_flat_pair(output, given) for output, given in zip(outputs, inputs, strict=True)]
        return self._begin(ddp.all_gather_into_tensor, list(outputs), calls)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        output = _one("reduce_scatter", _list(output_tensors))
        (inputs,) = input_tensors
        call = (shared(output), [shared(part) for part in inputs], _operation(opts))
        return self._begin(ddp.reduce_scatter, [output], [call])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TorchWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        operation = _operation(opts)
        calls = [(*_flat_pair(output, given), operation) for output, given in zip(outputs, inputs, strict=True)]
        return self._begin(ddp.reduce_scatter_tensor, list(outputs), calls)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        outputs = [shared(output) for output in output_tensors[0]] if output_tensors else None
        given = shared(_one("gather", _list(input_tensors)))
        return self._begin(ddp.gather, output_tensors, [(given, outputs)], group_dst=_root(opts))

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> TorchWork:
        output = _one("scatter", _list(output_tensors))
        inputs = [shared(given) for given in input_tensors[0]] if input_tensors else None
        return self._begin(ddp.scatter, [output], [(shared(output), inputs)], group_src=_root(opts))

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> TorchWork:
        call = ([shared(output) for output in output_tensors], [shared(given) for given in input_tensors])
        return self._begin(ddp.all_to_all, list(output_tensors), [call])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> TorchWork:
        call = (shared(output), shared(input), list(output_split_sizes), list(input_split_sizes))
        return self._begin(ddp.all_to_all_single, [output], [call])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> TorchWork:
        return self._begin(ddp.barrier, [], [()])

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> TorchWork:
        return self._message(ddp.isend, tensors, tag, group_dst=dst)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> TorchWork:
        return self._message(ddp.irecv, tensors, tag, group_src=src)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> TorchWork:
        return self._message(ddp.irecv, tensors, tag)

    def _message(self, function: Callable[..., Work | None], tensors: Tensors, tag: int, **peer: int) -> TorchWork:
        given = _one(function.__name__, _list(tensors))
        with progress.lock:
            work = function(shared(given), group=self._members, tag=tag, **peer)
        assert work is not None
        return TorchWork([work], [given])

    def _begin(
        self, function: Callable[..., Work | None], results: Any, calls: Sequence[tuple[Any, ...]], **root: int
    ) -> TorchWork:
        """Each of `calls` of one collective, under way."""
        with progress.lock:
            works = [function(*call, group=self._members, async_op=True, **root) for call in calls]
        return TorchWork([work for work in works if work is not None], results)


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _one(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{NAME}: {name}: expected a list of one tensor, got {len(tensors)}")
    return tensors[0]


def _flat_pair(first: torch.Tensor, second: torch.Tensor) -> tuple[Any, Any]:
    """Two tensors of which one is as large as those of all ranks together, as rows: PyTorch only counts elements."""
    return shared(first.view(-1)), shared(second.view(-1))


def _root(opts: Any) -> int:
    """PyTorch's options, or a number in their place."""
    return opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank


def _operation(opts: Any) -> Op:
    """PyTorch's options, or its operation in their place, in ours."""
    asked = getattr(opts, "reduceOp", opts)
    if asked is None:
        return ddp.ReduceOp.SUM
    kind = getattr(asked, "op", asked)
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        factor = asked.__getstate__()[1]
        return _make_nccl_premul_sum(shared(factor) if isinstance(factor, torch.Tensor) else factor)
    return _NAMED[kind]
