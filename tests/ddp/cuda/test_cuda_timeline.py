"""`ddp.timeline` where backward runs on threads of the GPU."""

import ddp
import engine
import engine.nn as nn
from engine.optim import SGD


def test_steps_on_a_gpu(cuda: engine.device) -> None:
    """Every bucket and phase of every step is there, and the numbers are those without it."""
    ends = []
    ddp.init_process_group()
    try:
        for watch in (False, True):
            engine.manual_seed(0)
            net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(cuda)
            wrapped = ddp.DistributedDataParallel(net, bucket_cap_mb=0.0001)
            sgd = SGD(wrapped.parameters(), lr=0.1)

            def step(wrapped: nn.Module = wrapped, sgd: SGD = sgd) -> None:
                sgd.zero_grad()
                wrapped(engine.ones(4, 8, device=cuda)).square().mean().backward()
                sgd.step()

            step()  # from now on buckets stay as they are
            if watch:
                with ddp.timeline(wrapped) as steps:
                    for _ in range(3):
                        step()
            else:
                for _ in range(3):
                    step()
            ends.append([parameter.tolist() for parameter in wrapped.parameters()])
        assert ends[0] == ends[1]
        assert steps.summary().splitlines()[0].startswith("ms, medians of steps 2 to 3;")
        assert steps.straggler is None
        names = [event["name"] for event in steps._trace]
        buckets = len(wrapped.live_reducer().buckets.sizes())
        assert buckets > 1
        assert [names.count(name) for name in ("forward", "backward", "optimizer", "hand out")] == [
            3,
            3,
            3,
            3 * buckets,
        ]
    finally:
        ddp.destroy_process_group()
