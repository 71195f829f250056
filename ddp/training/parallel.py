"""DistributedDataParallel: one model, a replica on every rank, gradients averaged during backward."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import engine
import engine.nn as nn
from ddp import losses, replicas
from ddp.gradients.plan import choose_limits
from ddp.gradients.reducer import Reducer
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.hooks import Hook, check_hook
from ddp.hooks.post_local_sgd import PostLocalSGDState
from ddp.replicas import placement
from ddp.replicas.contents import Contents
from ddp.training import making
from ddp.training.buffers import Buffers, _BufferCommHookLocation
from ddp.training.job_type import JobOfShards
from ddp.training.join import Join
from ddp.training.step_check import note_optimizer, refuse_local_gradients
from ddp.training.torch_names import IGNORED, TorchNames
from ddp.training.uneven_batches import uneven
from engine.calls.effects import effect
from engine.nn.state import own_modules
from engine.optim import register_optimizer_step_pre_hook

_MIB = 1024 * 1024
register_optimizer_step_pre_hook(refuse_local_gradients)
register_optimizer_step_pre_hook(note_optimizer)


class DistributedDataParallel(TorchNames):
    """Wraps `module` so that after backward every rank holds the mean of all ranks' gradients.

    When it is made, the ranks check that their models agree (name, shape, strides and dtype of every parameter and
    buffer; all ranks raise if not) and take over the values of rank 0. Gradients are views into buckets with their
    parameters' strides; a bucket is summed as soon as it is full, while backward goes on (`ddp.gradients.reducer`,
    which states the rule for accumulated and unused gradients). `engine.autograd.grad` does not reduce anything, nor
    are gradients averaged of what `functional_call` puts in the place of parameters.

    Args:
        module: the model, on its device and in its memory format already.
        broadcast_buffers: before each forward that records, and the first that does not after one, buffers (batch norm
            statistics) become those of rank 0. With False they are not taken over at the start, either.
        forward_sync_buffers: the same for the forward only, and wins over broadcast_buffers.
        init_sync: with False making the wrapper is not collective: nothing is taken over, and the ranks' models are
            compared at the first forward that records.
        process_group: the ranks; default all.
        bucket_cap_mb: MiB of a bucket. By default 25, and 1 for the first, so that communication starts early; where
            gradients go over a network, from 0.25 to 25, chosen by what a sum takes there and by the model's size. A
            hook that compresses bucket by bucket (PowerSGD, top k) does the same in every run where it is given.
        find_unused_parameters: do not wait for parameters that the loss does not depend on, so that their buckets are
            on their way early. Without it they are noticed at the end of backward; the result is the same.
        gradient_as_bucket_view: with False, `.grad` is memory of its own and a copy is made in and out of the bucket
            (PyTorch's default; here the default is True).
        static_graph: every step uses the same parameters equally often, as the first one will show; allows re-entrant
            checkpoints that use a parameter several times.
        delay_all_reduce_named_params: (name, parameter) of those that are summed last, in buckets of their own. PyTorch
            asks for param_to_hook_all_reduce with it, which tells when; here that is when their gradients are there.
        bucket_cap_mb_list: MiB of the first, second, ... bucket, the last one repeats; wins over bucket_cap_mb.
        leave_unused: with True, `.grad` of a parameter that had no gradient on this rank stays as it is, though other
            ranks had one (and got the mean): an optimizer skips it here, so the replicas differ from then on. Without
            it every rank gets the mean, and a parameter is left alone where no rank used it.
        skip_all_reduce_unused_params, batched_grad_copy: no effect: a bucket nobody used must tell so in its header,
            and gradients are not copied.
        on_drift: every backward compares between the ranks how many forwards they have trained, the learning rates of
            their optimizers, and every fourth time a part of the parameters, all in turn: two tensors or 256 KiB
            (`ddp.gradients.drift`). What differs is an "error" on every rank, or a "warn"ing on rank 0, with rank,
            tensor and step; "ignore" does not compare.
            An optimizer that steps under `no_sync` ends it.
        job: the gradients of each step are those of its shards, summed to the same bits by any number of ranks; see
            `ddp.Job`.
        device_ids: [the GPU of the module], from then on inputs of `forward` are moved there; by default they are
            left where they are. A module in host memory takes none.
        output_device, dim, check_reduction, mixed_precision, device_mesh: PyTorch's, of which only the defaults have a
            meaning here (output_device may be the module's GPU, too).

    Raises, on every rank: RuntimeError when no parameter requires grad or a DistributedDataParallel is inside;
    ValueError when models or options differ between ranks, and for device_ids, mixed_precision or a device_mesh.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        delay_all_reduce_named_params: Iterable[tuple[str, nn.Parameter]] | None = None,
        param_to_hook_all_reduce: nn.Parameter | None = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        job: JobOfShards | None = None,
        leave_unused: bool = False,
        on_drift: str = "error",
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"DistributedDataParallel: expected a Module, got {type(module).__name__}")
        self.process_group = resolve(process_group)
        self.module = module
        self.job = job
        self.leave_unused = leave_unused
        if None not in (broadcast_buffers, forward_sync_buffers) and broadcast_buffers != forward_sync_buffers:
            warnings.warn(
                f"DistributedDataParallel: forward_sync_buffers={forward_sync_buffers} wins over "
                f"broadcast_buffers={broadcast_buffers}; pass one of them",
                stacklevel=2,
            )
        self._start_buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        self.broadcast_buffers = self._start_buffers if forward_sync_buffers is None else forward_sync_buffers
        self.bucket_cap_mb = bucket_cap_mb
        self.bucket_cap_mb_list = list(bucket_cap_mb_list or ())
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.gradient_weight = 1.0
        self.on_drift = on_drift
        self.around_forward: Callable[[], AbstractContextManager[object]] | None = None  # of whoever watches
        self._joining: Join | None = None
        self._standing_in = False  # for want of data: this rank's gradients do not count
        self.parameters_to_ignore = set(getattr(module, IGNORED, ()))
        self._contents = Contents(module, self.parameters_to_ignore)
        self._shared_buffers = Buffers(self._contents, self.process_group)
        self._delayed = [name for name, _ in delay_all_reduce_named_params or ()]
        self.device_ids, problem = placement.read(module, device_ids, output_device)
        only_defaults = {"mixed_precision": mixed_precision, "device_mesh": device_mesh}
        if any(isinstance(child, DistributedDataParallel) for child in module.modules()):
            nested = "DistributedDataParallel: the module is, or contains, a DistributedDataParallel already"
            problem = problem or RuntimeError(f"{nested}; wrap it once, outermost")
        problem = problem or making.problem(self, only_defaults, param_to_hook_all_reduce is not None)
        problem = problem or (None if job is None else job.problem(self))
        if job is None:
            losses.refuse("DistributedDataParallel without a job", "pass job=ddp.Job(...)")
        if self.device_ids is not None and problem is None:
            self.register_forward_pre_hook(placement.Mover(self.device_ids[0]), with_kwargs=True)
        if problem is not None and not init_sync:
            raise problem
        self.reducer: Reducer | None = None
        if job is not None:
            job.between(self._enter, job, init_sync, problem)
        elif init_sync:
            self.reducer = making.agree(self, init_sync, problem)

    # --- making one ---------------------------------------------------------------------------------------------------

    def _enter(self, job: JobOfShards, init_sync: bool, problem: Exception | None) -> None:
        """Collective: as part of the job."""
        self.reducer = making.agree(self, init_sync, problem)
        job.enter(self)

    def bucket_limits(self) -> list[int]:
        """Bytes of the first, second, ... bucket."""
        if self.bucket_cap_mb_list:
            return [int(cap * _MIB) for cap in self.bucket_cap_mb_list]
        if self.bucket_cap_mb is not None:
            return [int(self.bucket_cap_mb * _MIB)]
        trained = [parameter for _, parameter in self._contents.trainable()]
        on_device = any(parameter.is_cuda for parameter in trained)
        times = None if on_device else self.process_group.sum_times
        return choose_limits(sum(parameter.nbytes for parameter in trained), times)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "module" and hasattr(self.module, name):
                advice = f"the wrapped module has it: use .module.{name}"
                raise AttributeError(f"'DistributedDataParallel' object has no attribute '{name}'; {advice}") from None
            raise

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: everything but what belongs to this process."""
        if self.process_group is not resolve(None):
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default process group. That is, "
                "when you have called init_process_group and have not passed process_group argument to DDP constructor"
            )
        local = ("reducer", "process_group", "_contents", "_shared_buffers")
        state = {name: value for name, value in self.__dict__.items() if name not in local}
        return state | {
            "_joining": None,
            "_standing_in": False,
            "around_forward": None,
            "job": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The ranks join at the first forward that records: one of them may have made a copy for itself."""
        self.__dict__.update(state)
        self.process_group = resolve(None)
        self._contents = Contents(self.module, self.parameters_to_ignore)
        self._shared_buffers = Buffers(self._contents, self.process_group)
        self.reducer = None

    # --- using it -----------------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the module.

        It is collective where it takes over buffers: every forward that records outside of `no_sync`, and the first
        one without gradients after such a one (an evaluation; on one rank only, call `module` itself). So is the
        forward after a parameter was unfrozen, which has to be done on all ranks alike.
        Raises RuntimeError when a parameter was exchanged since the module was wrapped: nobody would average its
        gradients.
        """
        if self.around_forward is not None:
            with self.around_forward():
                return self._forward(*inputs, **keywords)
        return self._forward(*inputs, **keywords)

    def _forward(self, *inputs: Any, **keywords: Any) -> Any:
        module: Any = own_modules(self)["module"]  # `self.module` takes a microsecond more
        if engine.is_grad_enabled():
            self._prepare(module)
        elif self._shared_buffers.differ:
            self._make_buffers_equal()
        if self._shared_buffers.hook is None:
            return module(*inputs, **keywords)
        self._run_buffer_hook(_BufferCommHookLocation.PRE_FORWARD)
        outputs = module(*inputs, **keywords)
        self._run_buffer_hook(_BufferCommHookLocation.POST_FORWARD)
        return outputs

    @effect
    def _prepare(self, module: nn.Module) -> None:
        reducer = self.live_reducer()
        reducer.forwards += 1
        if reducer.drift is not None:
            reducer.drift.forwards += module.training
        if reducer.taken_over:
            raise RuntimeError("DistributedDataParallel: the module was wrapped again since; use the later wrapper")
        unfrozen = self._contents.check()
        if reducer.failed:
            reducer.recover()
        if unfrozen:
            making.compare(self)
            self.renew_reducer()
        synchronize = self.require_backward_grad_sync
        buffers = self._shared_buffers.differ = synchronize and self._shares_buffers()
        vote = None if self._joining is None else self._joining.before_step(synchronize, buffers)
        if buffers:
            root = self._shared_buffers.root() if vote is None else vote.active - 1
            self._shared_buffers.take_over(root, evaluating=not module.training)

    def _shares_buffers(self) -> bool:
        """Whether forward makes buffers equal. A job does so after its shards."""
        shared = self.broadcast_buffers and self._contents.has_buffers()
        return shared and self._shared_buffers.hook is None and self.job is None

    @effect
    def _make_buffers_equal(self) -> None:
        """Collective: before a forward without gradients, what forwards that recorded have done to them."""
        self._shared_buffers.differ = False
        if self._joining is None and self._shares_buffers():
            self._shared_buffers.take_over(self._shared_buffers.root(), evaluating=True)

    @effect
    def _run_buffer_hook(self, location: _BufferCommHookLocation) -> None:
        if engine.is_grad_enabled() and self.require_backward_grad_sync:
            self._shared_buffers.run_hook(location)

    @property
    def forwards(self) -> int:
        """How many forwards have recorded so far."""
        return 0 if self.reducer is None else self.reducer.forwards

    def live_reducer(self) -> Reducer:
        """The Reducer; collective where this wrapper was unpickled or copied and has none yet."""
        if self.reducer is None:
            self.reducer = making.agree(self, False, None)
        return self.reducer

    def set_gradient_weight(self, weight: float) -> None:
        """How much this rank's gradients count from now on: the mean is sum(weight * gradient) / sum(weight).

        With the number of its samples (or tokens) as weight, ranks whose batches differ in size get what one process
        would get on all samples together. A rank of weight 0 takes part and contributes nothing.
        Raises ValueError unless the weight is finite and at least 0; and backward, on every rank, if all are 0.
        """
        if not 0 <= weight < math.inf:
            raise ValueError(f"set_gradient_weight: expected a finite weight of at least 0, got {weight}")
        if self.job is not None and weight != int(weight):
            raise ValueError(
                f"set_gradient_weight: in a job weights are whole numbers (of samples, or tokens), whose sum does not "
                f"depend on who adds them; got {weight}"
            )
        self.gradient_weight = float(weight)
        if self.reducer is not None and not self._standing_in:
            self.reducer.weight = self.gradient_weight

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Collective: from now on `hook(state, bucket)` reduces every bucket of gradients; see `ddp.hooks`.

        A copy of the wrapper (pickle, deepcopy) does not have the hook.
        Raises TypeError unless `hook` can be called; ValueError for annotations that contradict `ddp.hooks`;
        RuntimeError when there is one already.
        """
        check_hook(hook)
        if self.job is not None:
            raise ValueError(
                "register_comm_hook: in a job gradients are summed by shards, so that the number of ranks does not "
                "matter; a hook knows ranks only. Leave out the hook, or job="
            )
        reducer = self.live_reducer()
        reducer.register_hook(state, hook)
        if isinstance(state, PostLocalSGDState):
            reducer.drift = None  # replicas differ between two averages

    def overlap(self) -> dict[str, float]:
        """How much of the last backward's communication was hidden behind it: see `ddp.gradients.times`."""
        if self.reducer is None:
            raise RuntimeError("DistributedDataParallel: this copy has not trained yet, so there is nothing to tell")
        return self.reducer.times.overlap()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate local gradients; the next one outside averages the sums.

        What counts is where backward runs (in PyTorch, where forward ran).
        """
        before = self.require_backward_grad_sync
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Around a training loop whose number of batches differs between ranks: who is through waits for the others.

        Waiting ranks take part in the others' steps (one backward a forward) with zeros; in the end all have the model
        of the highest rank that took the last step. With `divide_by_initial_world_size=False` gradients are divided by
        the number of ranks that have data, not of all. With `throw_on_early_termination` every rank raises RuntimeError
        as soon as one is through. An exception inside is passed on at once.

        The optimizers of waiting ranks do not step, so states that they keep differ afterwards, as in PyTorch:
        `ddp.uneven` has neither that flaw nor a context.
        """
        if not enable:
            yield
            return
        if self.job is not None:
            raise ValueError("join: the shards of a job have equally many batches on every rank (ddp.ShardSampler)")
        reducer = self.live_reducer()
        joining = self._joining = Join(self.process_group, throw_on_early_termination)
        reducer.drift, drift = None, reducer.drift  # who waits does not step, so no forward is counted meanwhile
        try:
            yield
        finally:
            self._joining = None
        if reducer.failed:  # and caught inside: the others wait for it, not for a vote
            reducer.recover()
        joining.take_part(reducer, self._shared_buffers, reducer.weight if divide_by_initial_world_size else 0.0)
        if joining.root is not None:
            replicas.copy_from(joining.root, self._contents.tensors(self.broadcast_buffers), self.process_group)
        reducer.drift = drift

    @effect
    def _set_sync(self, synchronize: bool) -> None:
        self.require_backward_grad_sync = synchronize
        if self.reducer is not None:
            self.reducer.synchronize = synchronize

    # --- for ddp.uneven and ddp.Job -----------------------------------------------------------------------------------

    def follow_batches(self, batches: "uneven[Any] | None") -> None:
        """Take buffers over from the rank that `batches` says, not from rank 0."""
        self._shared_buffers.batches = batches

    def stand_in(self, stands_in: bool) -> None:
        """Whether this rank has no data: then its gradients weigh nothing, but for what was accumulated before."""
        self._standing_in = stands_in
        reducer = self.live_reducer()
        reducer.weight = self.gradient_weight if not stands_in or reducer.buckets.local_gradients() else 0.0

    def current_buffers(self) -> list[engine.Tensor]:
        """Those that are not ignored, as they are now."""
        return self._contents.current_buffers()

    def renew_reducer(self) -> None:
        """Collective: buckets made anew, as the job or the process group asks for them now."""
        before = self.live_reducer()
        before.detach()
        self.reducer = making.reducer(self)
        self.reducer.succeed(before)

    def take_over_buffers(self, root: int) -> None:
        """Collective: the buffers of one rank become those of all, if they are to be alike."""
        if self.broadcast_buffers:
            self._shared_buffers.take_over(root)
