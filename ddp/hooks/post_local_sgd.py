"""Post-local SGD, the gradients' half: averaged over all ranks at first, later only within a node, or not at all.

The other half, averaging parameters now and then, is `ddp.training.local_sgd`. Source: Lin, Stich, Patel and Jaggi
(2020), Don't Use Large Mini-Batches, Use Local SGD; post_localSGD_hook.py of
torch.distributed.algorithms.ddp_comm_hooks.
"""

import engine
from ddp.collectives import all_reduce
from ddp.collectives.reductions import ReduceOp
from ddp.execution.futures import Future
from ddp.gradients.grad_bucket import GradBucket
from ddp.groups.process_group import ProcessGroup
from ddp.groups.subgroups import new_subgroups


class PostLocalSGDState:
    """When `post_localSGD_hook` changes from all ranks to the subgroup.

    process_group: of the wrapped module; default all ranks. subgroup: the ranks that go on averaging gradients; default
    those of one node, found (collectively) when they are needed. start_localSGD_iter: steps before that.
    post_local_gradient_allreduce: with False nothing is averaged from then on.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        subgroup: ProcessGroup | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Counts the step, with its last bucket."""
        if bucket.is_last():
            self.iter += 1


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over all ranks until `start_localSGD_iter`, then over the subgroup, or nothing but local gradients."""
    local = state.iter >= state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if not local:
        return bucket.average()
    if not state.post_local_gradient_allreduce:
        return Future(bucket.buffer)
    if state.subgroup is None:
        state.subgroup = new_subgroups(group=state.process_group)[0]
    work = all_reduce(bucket.buffer(), ReduceOp.AVG, state.subgroup, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
