"""Matrix products on the device: values and layouts of every kind of operand, no copies where cuBLAS can read the
operand as it lies, and the switches for precision.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.memory import cublas as workspaces
from engine.ops.matmul import gpu
from engine.rules import precision as settings
from tests import cuda_device
from tests.engine.cuda.comparison import assert_same

KINDS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77  # cublasComputeType_t


def transposed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def padded(array: np.ndarray) -> np.ndarray:
    """Rows with a gap behind each."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    wide[..., :-3] = array
    return wide[..., :-3]


def heads(array: np.ndarray) -> np.ndarray:
    """The batch axis inside the rows, as heads are in an attention layer."""
    return np.ascontiguousarray(array.swapaxes(0, -2)).swapaxes(0, -2)


def strided(array: np.ndarray) -> np.ndarray:
    """Gaps in both axes: what cuBLAS cannot read."""
    return np.repeat(array, 2, -1)[..., ::2]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rows": np.ascontiguousarray,
    "columns": transposed,
    "padded": padded,
    "padded columns": lambda array: padded(array.swapaxes(-1, -2)).swapaxes(-1, -2),
    "heads": heads,
    "strided": strided,
}

SHAPES = [
    ((4, 3), (3, 5)),
    ((1, 3), (3, 5)),
    ((4, 1), (1, 5)),
    ((4, 3), (3, 1)),
    ((4, 0), (0, 5)),
    ((0, 3), (3, 5)),
    ((3,), (3, 5)),
    ((4, 3), (3,)),
    ((3,), (3,)),
    ((2, 4, 3), (3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((1, 4, 3), (6, 3, 5)),
    ((2, 3, 4, 3), (2, 3, 3, 5)),
    ((2, 1, 4, 3), (3, 3, 5)),
    ((20, 2, 4, 3), (20, 2, 3, 5)),
    ((2, 4, 3), (3,)),
]


def made(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    array = rng.integers(-3, 4, shape).astype("f8")
    return array + 1j * rng.integers(-3, 4, shape) if kind.startswith("complex") else array


def device_copy(array: np.ndarray, kind: str, device: Any) -> engine.Tensor:
    """`array` on the device, in the strides it has here."""
    host = engine.from_numpy(array)
    target = engine.empty_strided(
        (host.untyped_storage().nbytes() // host.itemsize,), (1,), dtype=getattr(engine, kind), device=device
    ).as_strided(host.shape, host.stride())
    return target.copy_(host.contiguous().to(device).to(target.dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_products(cuda: engine.device, kind: str) -> None:
    for number, (left, right) in enumerate(SHAPES):
        a, b = made(left, kind, number), made(right, kind, number + 100)
        expected = np.matmul(a, b)
        for first, second in itertools.product(LAYOUTS, LAYOUTS) if min(len(left), len(right)) > 1 else [("rows",) * 2]:
            x, y = (device_copy(LAYOUTS[name](array), kind, cuda) for name, array in ((first, a), (second, b)))
            out = x @ y
            assert out.is_cuda
            assert out.is_contiguous()
            found = out.cpu().to(engine.complex128 if kind.startswith("complex") else engine.float64).numpy()
            np.testing.assert_array_equal(found, expected, f"{left} {first} @ {right} {second}")


of_driver = pytest.mark.usefixtures("driver_only")


@pytest.fixture
def driver_only(cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("looks at the calls that cuBLAS got")


@of_driver
@pytest.mark.parametrize("shapes", [((4, 3), (3, 5)), ((2, 4, 3), (2, 3, 5)), ((2, 3, 4, 3), (2, 3, 3, 5))])
def test_operands_are_read_as_they_lie(shapes: tuple[Any, Any], cuda: engine.device) -> None:
    for name in ("rows", "columns", "padded", "padded columns"):
        x, y = (device_copy(LAYOUTS[name](made(shape, "float32", 1)), "float32", cuda) for shape in shapes)
        with cuda_device.counters() as count:
            x @ y
        assert len(count.names) == 1, (name, count.names)
        assert count.names[0].startswith("gemm")


@of_driver
def test_a_batch_with_two_strides_is_a_loop_or_a_copy(cuda: engine.device) -> None:
    for batch, calls in ((4, 4), (20, 1)):
        x = engine.rand(batch, 3, 2, 4, device=cuda).transpose(1, 2)  # as heads lie in an attention layer
        y = engine.rand(batch, 2, 4, 5, device=cuda)
        with cuda_device.counters() as count:
            out = x @ y
        assert sum(name.startswith("gemm") for name in count.names) == calls
        np.testing.assert_allclose(out.cpu().numpy(), np.matmul(x.cpu().numpy(), y.cpu().numpy()), rtol=1e-5)


@of_driver
def test_tf32_only_where_it_is_allowed(cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.matmul, "_precision", "highest")
    x = engine.full((2, 2), 1 + 2.0**-12, device=cuda)
    eye = engine.eye(2, device=cuda)
    assert (x @ eye)[0, 0].item() == 1 + 2.0**-12
    for allow in (
        lambda: setattr(engine.backends.cuda.matmul, "allow_tf32", True),
        lambda: engine.set_float32_matmul_precision("high"),
        lambda: engine.set_float32_matmul_precision("medium"),
    ):
        engine.set_float32_matmul_precision("highest")
        assert engine.backends.cuda.matmul.allow_tf32 is False
        allow()
        assert engine.backends.cuda.matmul.allow_tf32 is True
        assert engine.get_float32_matmul_precision() != "highest"
        with cuda_device.counters() as count:
            assert (x @ eye)[0, 0].item() == 1.0
        assert cuda_device.last_product(count) == (COMPUTE_32F_FAST_TF32, 0)
        double = x.double()
        assert (double @ eye.double())[0, 0].item() == double[0, 0].item()


@of_driver
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_adds_up_in_single(kind: str, cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = engine.ones(1, 4097, dtype=getattr(engine, kind), device=cuda)
    assert (ones @ ones.t()).float().item() == engine.tensor(4097.0).to(ones.dtype).float().item()
    switch = {"float16": "fp16", "bfloat16": "bf16"}[kind]
    for allowed, mode in ((True, 0), (False, 16)):
        monkeypatch.setattr(settings.matmul, f"allow_{switch}_reduced_precision_reduction", allowed)
        with cuda_device.counters() as count:
            ones @ ones.t()
        assert cuda_device.last_product(count) == (COMPUTE_32F, mode)
    cupy = backend.require_cupy()
    assert cupy.cuda.cublas.getMathMode(cupy.cuda.device.get_cublas_handle()) == 0  # of CuPy's own


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "int64"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(kind: str, with_bias: bool, cuda: engine.device) -> None:
    for shape, by_columns in (((4, 3), False), ((2, 4, 3), True), ((3,), False), ((0, 3), False), ((2, 0, 3), True)):
        arrays = made(shape, kind, 1), made((5, 3), kind, 2), made((5,), kind, 3)
        grads = []
        for device in (engine.device("cpu"), cuda):
            x, weight, bias = (engine.from_numpy(each).to(getattr(engine, kind)).to(device) for each in arrays)
            if by_columns:
                weight = weight.t().contiguous().t()
            leaves = [each.requires_grad_(kind != "int64") for each in (x, weight, bias)]
            y = engine.nn.functional.linear(x, weight, bias if with_bias else None)
            if kind != "int64":
                y.backward(engine.arange(y.numel(), dtype=y.dtype, device=device).reshape(y.shape).remainder(3))
            grads.append([y.detach(), *(each.grad for each in leaves[: 3 if with_bias else 2])])
        for found, expected in zip(grads[1], grads[0], strict=True):
            assert_same(found, expected, f"{shape} {kind}", 1e-2 if kind == "bfloat16" else 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_recorded_in_graphs(kind: str, cuda: engine.device) -> None:
    """CuPy refuses to call cuBLAS there."""
    for first, second in (((4, 3), (3, 5)), ((6, 4, 3), (6, 3, 5)), ((2, 3, 4, 3), (3, 3, 5)), ((3,), (3, 5))):
        arrays = made(first, kind, 1), made(second, kind, 2)
        a, b = (engine.from_numpy(each).to(getattr(engine, kind)).to(cuda) for each in arrays)
        a @ b
        recorded = engine.cuda.CUDAGraph()
        with engine.cuda.graph(recorded):
            found = a @ b
        a.add_(1)
        recorded.replay()
        assert_same(found, a.cpu() @ b.cpu(), f"{first} {second} {kind}", 1e-2 if a.itemsize == 2 else 1e-6)


def test_integers_and_refusals(cuda: engine.device) -> None:
    x = engine.arange(6, device=cuda).reshape(2, 3)
    assert (x @ x.t()).tolist() == [[5, 14], [14, 50]]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        x @ engine.ones(3, 2, dtype=engine.int64)


def test_each_stream_and_each_graph_has_a_workspace_of_its_own(cuda):
    """cuBLAS's scratch memory: no allocation in a graph, none shared by products that may run at once, and none of it
    counts as memory of tensors."""
    x = engine.ones(4, 4, device=cuda)
    y = x @ x
    before = engine.cuda.memory_allocated()
    side, graph = engine.cuda.Stream(), engine.cuda.CUDAGraph()
    side.wait_stream(engine.cuda.current_stream())
    with engine.cuda.stream(side):
        z = x @ x
    engine.cuda.current_stream().wait_stream(side)
    eager = dict(workspaces._workspaces)
    assert len({memory.ptr for memory in eager.values()}) == 2
    assert engine.cuda.memory_allocated() == before + z.nbytes // 512 * 512 + 512
    with engine.cuda.graph(graph, stream=side):
        z = x @ x
    assert workspaces._workspaces == eager
    kept = [each for each in graph.pool().kept if getattr(each, "size", 0) in (4 << 20, 32 << 20)]
    assert kept
    assert not {memory.ptr for memory in kept} & {memory.ptr for memory in eager.values()}
    graph.replay()
    assert engine.equal(z, y)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.arange(12.0)[::-2], np.arange(18.0).reshape(6, 3)),
        (np.arange(18.0).reshape(3, 6), np.arange(12.0)[::-2]),
        (np.arange(960.0).reshape(5, 8, 4, 6)[::2, ::2], np.arange(12.0)[::2]),
        (np.arange(1920.0).reshape(5, 8, 2, 4, 6)[:, ::2].swapaxes(0, 2), np.arange(12.0)[::-2]),
        (np.arange(240.0).reshape(2, 5, 4, 6)[::-1, ::2, ::2, ::-2], np.arange(9.0).reshape(3, 3)),
    ],
)
def test_operands_that_are_copied_first(cuda, a, b):
    """Vectors, backwards, and batches of more parts than are called one by one."""
    xp = backend.require_cupy()
    on_device = [strided(xp, array) for array in (a, b)]
    np.testing.assert_array_equal(gpu.product(xp, *on_device).get(), np.matmul(a, b))


def strided(xp: Any, array: np.ndarray) -> Any:
    """An array on the device with the strides that this one has."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    begin = (backend.address(array) - backend.address(owner)) // array.itemsize
    base = xp.asarray(owner.ravel())
    return xp.ndarray(array.shape, array.dtype, base.data + begin * array.itemsize, array.strides)


def test_linear_of_rows_and_weights_with_gaps(cuda):
    wide, weight = np.arange(24.0).reshape(2, 2, 6), np.arange(48.0).reshape(8, 6)
    rows, factors = (engine.tensor(array, device=cuda) for array in (wide, weight))
    found = engine.nn.functional.linear(rows[..., ::2], factors[::2, ::2])
    np.testing.assert_array_equal(found.cpu().numpy(), wide[..., ::2] @ weight[::2, ::2].T)
