"""Mixed precision on a GPU: its own lists of dtypes, and a scaler that nobody waits for."""

import numpy as np
import pytest

import engine
import engine.nn as nn
import engine.nn.functional as F
from tests import cuda_device
from tests.data import amp_cases

LOW, HIGH = "float16", "float32"

# Dtype under autocast("cuda") of operands in float16 and in float32, as PyTorch's lists for CUDA say.
CASES = {
    "a @ a.T": (LOW, LOW),
    "m.mv(a, a[0])": (LOW, LOW),
    "m.einsum('ij,kj->ik', a, a)": (LOW, LOW),
    "m.addmm(a @ a.T, a, a.T)": (LOW, LOW),
    "F.linear(a, a)": (LOW, LOW),
    "F.conv2d(i, i)": (LOW, LOW),
    "F.scaled_dot_product_attention(c, c, c)": (LOW, LOW),
    "F.prelu(a, a[0, :1])": (LOW, LOW),
    "a.softmax(1)": (HIGH, HIGH),
    "F.log_softmax(a, 1)": (HIGH, HIGH),
    "a.exp()": (HIGH, HIGH),
    "a ** 2": (HIGH, HIGH),
    "2 ** a": (HIGH, HIGH),
    "1 / a": (HIGH, HIGH),
    "a.rsqrt()": (HIGH, HIGH),
    "a.sum()": (HIGH, HIGH),
    "a.sum(1, dtype=m.float16)": (LOW, LOW),
    "a.cumsum(0)": (HIGH, HIGH),
    "a.norm()": (HIGH, HIGH),
    "m.linalg.vector_norm(a)": (HIGH, HIGH),
    "a.logsumexp(1)": (HIGH, HIGH),
    "F.layer_norm(a, (4,))": (HIGH, HIGH),
    "F.group_norm(a, 2)": (HIGH, HIGH),
    "F.mse_loss(a, a)": (HIGH, HIGH),
    "F.cross_entropy(a, y)": (HIGH, HIGH),
    "F.softplus(a)": (HIGH, HIGH),
    "F.interpolate(i, scale_factor=2)": (HIGH, HIGH),
    "F.interpolate(i, scale_factor=2, mode='area')": (LOW, HIGH),
    "F.rms_norm(a, (4,))": (HIGH, HIGH),
    "m.vdot(a[0], f[0])": (HIGH, HIGH),
    "a.mean()": (LOW, HIGH),
    "a.tanh()": (LOW, HIGH),
    "F.gelu(a)": (LOW, HIGH),
    "F.relu(a)": (LOW, HIGH),
    "a.std()": (LOW, HIGH),
    "m.cat([a, a])": (LOW, HIGH),
    "m.cat([a, f])": (HIGH, HIGH),
    "a + f": (HIGH, HIGH),
    "m.addcmul(a, a, a)": (LOW, HIGH),
    "m.addcmul(a, f, a)": (HIGH, HIGH),
    "m.dot(a[0], a[0])": (LOW, HIGH),
    "m.dot(a[0], f[0])": (HIGH, HIGH),
    "m.tensordot(a, f.T, 1)": (HIGH, HIGH),
    "a.double() @ a.double().T": ("float64", "float64"),
    "nn.Linear(4, 2).cuda()(a)": (LOW, LOW),
    "nn.BatchNorm1d(4).cuda()(a)": (LOW, HIGH),
    "nn.LayerNorm(4).cuda()(a)": (HIGH, HIGH),
    "nn.LSTM(4, 2).cuda()(c)[0]": (LOW, LOW),
    "nn.GRU(4, 2).cuda()(c)[0]": (LOW, LOW),
    "nn.LSTMCell(4, 2).cuda()(a)[1]": (LOW, LOW),
    "nn.GRUCell(4, 2).cuda()(a)": (LOW, LOW),
    "nn.RNNCell(4, 2).cuda()(a)": (LOW, LOW),
}


@pytest.mark.parametrize("case", CASES)
def test_dtypes(cuda, case) -> None:
    a = engine.arange(12.0, device=cuda).reshape(3, 4) / 12 + 0.1
    operands = {"a": a, "c": a.reshape(1, 3, 4), "i": a.reshape(1, 1, 3, 4)}
    for kind, expected in zip((engine.float16, engine.float32), CASES[case], strict=True):
        names = {name: tensor.to(kind) for name, tensor in operands.items()}
        names |= {"m": engine, "nn": nn, "F": F, "f": a, "y": engine.tensor([0, 1, 3], device=cuda)}
        with engine.autocast("cuda"):
            assert eval(case, names).dtype.name == expected


def test_each_device_has_blocks_of_its_own(cuda) -> None:
    x, there = engine.ones(2, 2), engine.ones(2, 2, device=cuda)
    with engine.autocast("cuda", dtype=engine.bfloat16):
        assert (there @ there).dtype is engine.bfloat16
        assert (x @ x).dtype is engine.float32
        with engine.autocast("cpu"):
            assert (x @ x).dtype is engine.bfloat16
            assert x.exp().dtype is engine.float32
    with engine.autocast("cpu"):
        assert (there @ there).dtype is engine.float32


def test_binary_cross_entropy_is_refused(cuda) -> None:
    x = engine.full((2,), 0.5, device=cuda)
    with engine.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)
    with engine.autocast("cuda"):
        assert F.binary_cross_entropy(x.cpu(), x.cpu()).dtype is engine.float32


def test_the_older_names(cuda) -> None:
    x = engine.ones(2, 2, device=cuda)
    with engine.cuda.amp.autocast():
        assert (x @ x).dtype is engine.float16
    with engine.cuda.amp.autocast(dtype=engine.bfloat16):
        assert (x @ x).dtype is engine.bfloat16
    assert engine.cuda.amp.GradScaler(init_scale=4.0).scale(x).tolist() == [[4, 4], [4, 4]]

    class Twice(engine.autograd.Function):
        @staticmethod
        @engine.cuda.amp.custom_fwd(cast_inputs=engine.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @engine.cuda.amp.custom_bwd
        def backward(ctx, g):
            return g * 2

    with engine.cuda.amp.autocast():
        assert Twice.apply(x.half()).dtype is engine.float32


def test_the_scaler_gives_pytorchs_numbers(cuda) -> None:
    """Those of the CPU, which are PyTorch's: tests/engine/test_amp.py."""
    found, expected = amp_cases.scale(engine, "cuda"), amp_cases.scale(engine)
    assert found["scales"] == expected["scales"]
    assert found["state"] == expected["state"]
    np.testing.assert_allclose(found["values"], expected["values"], rtol=1e-5)
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=1e-5)


def network(cuda) -> nn.Sequential:
    engine.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(cuda)


def trained(net: nn.Module, optimizer, scaler: engine.GradScaler, cuda, bad: bool = False) -> None:
    x, y = engine.ones(3, 8, device=cuda), engine.zeros(3, dtype=engine.int64, device=cuda)
    optimizer.zero_grad()
    with engine.autocast("cuda", dtype=engine.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss * float("inf") if bad else loss).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_a_step_waits_for_nothing(cuda, kind) -> None:
    net = network(cuda)
    optimizer = getattr(engine.optim, kind)(net.parameters(), lr=0.1)
    scaler = engine.GradScaler("cuda", init_scale=4.0)
    for _ in range(2):
        trained(net, optimizer, scaler, cuda)
    before = [parameter.tolist() for parameter in net.parameters()]
    with cuda_device.counters() as count:
        trained(net, optimizer, scaler, cuda, bad=True)
    assert count.synchronizations == count.pageable == 0, count.waits
    assert [parameter.tolist() for parameter in net.parameters()] == before
    assert scaler.get_scale() == 2
    trained(net, optimizer, scaler, cuda)
    assert [parameter.tolist() for parameter in net.parameters()] != before


def test_an_optimizer_without_a_kernel_waits_once(cuda) -> None:
    class Own(engine.optim.SGD):
        def update(self, group, step, p, g, s):
            p -= 0.5 * g

    net = network(cuda)
    optimizer, scaler = Own(net.parameters(), lr=0.1), engine.GradScaler("cuda", init_scale=4.0)
    trained(net, optimizer, scaler, cuda)
    before = [parameter.tolist() for parameter in net.parameters()]
    with cuda_device.counters() as count:
        trained(net, optimizer, scaler, cuda, bad=True)
    assert count.synchronizations == 1 or not cuda_device.ours(), count.waits
    assert [parameter.tolist() for parameter in net.parameters()] == before


@pytest.mark.parametrize("dtype", [engine.float32, engine.float64, engine.bfloat16])
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_unscaling(cuda, dtype, bad) -> None:
    """Gradients of any layout, one of them without elements and one with gaps."""
    weights = [engine.ones(size, dtype=dtype, device=cuda) for size in ((3,), (40, 50), (0,), (6, 4))]
    weights[1] = weights[1].T
    weights = [nn.Parameter(weight) for weight in weights]
    scaler, optimizer = engine.GradScaler("cuda", init_scale=4.0), engine.optim.SGD(weights, lr=1.0)
    scaler.scale(engine.ones(1, device=cuda))
    for weight in weights:
        weight.grad = engine.full_like(weight, 8.0)
    weights[3].grad = engine.full((6, 8), 8.0, dtype=dtype, device=cuda)[:, ::2]
    if bad is not None:
        weights[1].grad[7, 9] = bad
    scaler.unscale_(optimizer)
    expected = np.full((50, 40), 2.0)
    if bad is not None:
        expected[7, 9] = bad
    np.testing.assert_array_equal(weights[1].grad.cpu().double().numpy(), expected)
    assert weights[0].grad.tolist() == [2, 2, 2]
    assert weights[3].grad.tolist() == [[2] * 4] * 6
    weights[3].grad = weights[3].grad.contiguous()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (4 if bad is None else 2)
    assert weights[0].tolist() == ([-1] * 3 if bad is None else [1] * 3)


def test_checking_without_unscaling_leaves_gradients(cuda) -> None:
    weight = nn.Parameter(engine.ones(5, device=cuda))
    scaler, optimizer = engine.GradScaler("cuda", init_scale=4.0), engine.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    (found,) = scaler._check_inf_per_device(optimizer).values()
    assert found.item() == 0
    assert weight.grad.tolist() == [4] * 5
    weight.grad[3] = float("nan")
    (found,) = scaler._check_inf_per_device(optimizer).values()
    assert found.item() == 1


def test_master_weights_under_the_scaler(cuda) -> None:
    """bfloat16 parameters whose float32 copies keep steps that bfloat16 would round away."""
    weight = nn.Parameter(engine.ones(4, dtype=engine.bfloat16, device=cuda))
    optimizer = engine.optim.SGD([{"params": [weight], "master_weights": True}], lr=2.0**-10)
    scaler = engine.GradScaler("cuda", init_scale=4.0)
    for _ in range(8):
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [1 - 8 * 2.0**-10] * 4


def test_a_captured_step(cuda) -> None:
    """Casts, random numbers, scaler and optimizer in a CUDA graph: the bits of the eager step, an overflow included."""

    def prepared():
        engine.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 4)).to(cuda)
        optimizer, scaler = engine.optim.AdamW(net.parameters(), lr=0.1), engine.GradScaler("cuda", 4.0, 2.0, 0.5, 3)
        target = engine.ones(3, 4, device=cuda)

        def step(x: engine.Tensor) -> engine.Tensor:
            optimizer.zero_grad()
            with engine.autocast("cuda"):
                loss = F.mse_loss(net(x), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step, net, scaler

    (eager, *own), (step, *others) = prepared(), prepared()
    captured = engine.compile(step)
    for number in range(10):
        x = engine.full((3, 4), float("inf") if number == 6 else 1.0, device=cuda)
        place = engine.cuda.get_rng_state()
        eager(x)
        engine.cuda.set_rng_state(place)
        captured(x)
        assert own[1].state_dict() == others[1].state_dict()
        assert own[0][0].weight.tolist() == others[0][0].weight.tolist()
