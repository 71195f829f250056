"""cuDNN in place of this package's kernels: by value where it is installed; what it is asked for, anywhere."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.backends import cudnn as switches
from engine.memory import backend, cudnn
from engine.nn.attention import SDPBackend, sdp_kernel, sdpa_kernel
from engine.ops.attention import cudnn as attention
from engine.ops.conv import cudnn as conv
from engine.ops.shared.windows import ConvWindow

TOLERANCE = {engine.float32: 1e-5, engine.float16: 2e-3, engine.bfloat16: 2e-2}
HALVES = [engine.float16, engine.bfloat16]


@pytest.fixture
def installed(cuda: engine.device) -> engine.device:
    """A GPU for which cuDNN is installed."""
    if not switches.is_available():
        pytest.skip("needs a GPU, cuDNN and nvidia-cudnn-frontend")
    return cuda


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls cuDNN has served since this was last asked."""
    calls = []
    run = cudnn.Operation.__call__
    monkeypatch.setattr(cudnn.Operation, "__call__", lambda self, *arrays: (calls.append(0), run(self, *arrays)))

    def count() -> int:
        found = len(calls)
        calls.clear()
        return found

    return count


def both(step: Callable[[], list[engine.Tensor]], dtype: engine.dtype, scale: float = 1.0) -> None:
    """Equal but for rounding with cuDNN and without, and the same bits twice with it."""
    found, again = step(), step()
    with switches.flags(enabled=False, allow_tf32=switches.allow_tf32):
        expected = step()
    for one, same, other in zip(found, again, expected, strict=True):
        assert one.dtype is other.dtype
        assert one.stride() == other.stride()
        assert bool((one == same).all())
        one, other = (each.detach().double().cpu().numpy() for each in (one, other))
        size = max(np.abs(other).max(), 1.0)
        np.testing.assert_allclose(one / size, other / size, rtol=0, atol=scale * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", [((2, 3, 64, 32), 64), ((2, 4, 100, 64), 77), ((5, 33, 128), 33), ((40, 16), 40)])
def test_attention_is_that_of_our_kernels(
    shapes: Any, causal: bool, dtype: engine.dtype, installed: engine.device, served: Callable[[], int]
) -> None:
    shape, keys = shapes
    given = [engine.randn(*shape[:-2], count, shape[-1]) for count in (shape[-2], keys, keys)]
    given = [each.to(installed, dtype).requires_grad_() for each in given]
    direction = engine.randn(*shape).to(installed, dtype)

    def step() -> list[engine.Tensor]:
        out = F.scaled_dot_product_attention(*given, is_causal=causal)
        return [out, *engine.autograd.grad(out, given, direction)]

    both(step, dtype, 2)
    assert served() == 4


def test_attention_of_heads_in_the_memory_of_positions(installed: engine.device, served: Callable[[], int]) -> None:
    rows = engine.randn(2, 48, 3, 4, 64).to(installed, engine.bfloat16).requires_grad_()

    def step() -> list[engine.Tensor]:
        query, key, value = rows.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return [out, *engine.autograd.grad(out.float().square().sum(), [rows])]

    both(step, engine.bfloat16, 2)
    assert served() == 4


@pytest.mark.parametrize("kind", ["mask", "dropout", "float32", "shared heads", "wide"])
def test_the_rest_of_attention_is_left_to_our_kernels(
    kind: str, installed: engine.device, served: Callable[[], int]
) -> None:
    query = engine.randn(2, 4, 16, 256 if kind == "wide" else 32).to(installed, engine.bfloat16).requires_grad_()
    key = query[:, :1] if kind == "shared heads" else query
    if kind == "float32":
        query = key = query.detach().float().requires_grad_()
    mask = engine.ones(16, 16, dtype=engine.bool, device=installed) if kind == "mask" else None
    F.scaled_dot_product_attention(query, key, key, mask, 0.5 if kind == "dropout" else 0.0).sum().backward()
    assert served() == 0


def test_attention_by_the_kernel_that_was_asked_for(installed: engine.device, served: Callable[[], int]) -> None:
    x = engine.randn(2, 4, 16, 32).to(installed, engine.bfloat16)
    for wanted, calls in ((SDPBackend.CUDNN_ATTENTION, 1), ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], 0)):
        with sdpa_kernel(wanted):
            F.scaled_dot_product_attention(x, x, x)
        assert served() == calls
    F.scaled_dot_product_attention(x, x, x)
    assert served() == 1


CONVOLUTIONS = {
    "3x3": ((4, 16, 9, 10), (24, 16, 3, 3), {"padding": 1}),
    "stride": ((2, 8, 11, 12), (16, 8, 3, 3), {"stride": 2, "padding": 1}),
    "dilation": ((2, 8, 13, 13), (8, 8, 3, 3), {"dilation": 2}),
    "groups": ((2, 16, 8, 8), (32, 8, 3, 3), {"groups": 2, "padding": 1}),
    "few channels": ((2, 3, 16, 16), (8, 3, 5, 5), {"padding": 2}),
    "one axis": ((2, 8, 30), (16, 8, 5), {"padding": 2}),
    "three axes": ((2, 8, 5, 6, 7), (8, 8, 3, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("dtype", [engine.float32, *HALVES])
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_is_that_of_our_kernels(
    name: str, transposed: bool, last: bool, dtype: engine.dtype, installed: engine.device, full_precision: None
) -> None:
    shape, weight, options = CONVOLUTIONS[name]
    axes = len(shape) - 2
    function = getattr(F, f"conv_transpose{axes}d" if transposed else f"conv{axes}d")
    if transposed:
        shape = (shape[0], weight[0], *shape[2:])
    given = [engine.randn(*size) for size in (shape, weight)]
    given.append(engine.randn(weight[1] * options.get("groups", 1) if transposed else weight[0]))
    formats = {2: engine.channels_last, 3: engine.channels_last_3d}
    if last and axes in formats:
        given[:2] = [each.to(memory_format=formats[axes]) for each in given[:2]]
    given = [each.to(installed, dtype).requires_grad_() for each in given]

    def step() -> list[engine.Tensor]:
        out = function(*given, **options)
        return [out, *engine.autograd.grad(out.float().square().sum(), given)]

    both(step, dtype, 4)


def test_convolution_is_served(installed: engine.device, served: Callable[[], int]) -> None:
    for dtype in (engine.float32, *HALVES):
        x, weight = (engine.randn(2, 16, 8, 8).to(installed, dtype).requires_grad_() for _ in range(2))
        weight = weight[:, :, :3, :3].contiguous().detach().requires_grad_()
        F.conv2d(x, weight, padding=1).float().sum().backward()
        # Of float32 there may be no plan for a gradient that gives the same bits in every run (1 of 3 on an H200).
        assert served() == 3 if dtype in HALVES else served() >= 1, dtype


def test_a_captured_step_has_the_same_bits(installed: engine.device, served: Callable[[], int]) -> None:
    query = engine.randn(2, 4, 64, 64).to(installed, engine.bfloat16).requires_grad_()

    def step() -> engine.Tensor:
        query.grad = None
        F.scaled_dot_product_attention(query, query, query, is_causal=True).float().square().sum().backward()
        return query.grad.clone()

    expected = step()
    captured = engine.compile(step)
    for _ in range(4):
        found = captured()
    assert served() >= 2
    assert bool((found == expected).all())


# --- what it is asked for, without it ---------------------------------------------------------------------------------


class _Tensor:
    def __init__(self, name: str, **facts: Any) -> None:
        self.facts = {"name": name, **facts}

    def __getattr__(self, name: str) -> Callable[[Any], "_Tensor"]:
        assert name.startswith("set_")

        def set_fact(value: Any) -> _Tensor:
            self.facts[name.removeprefix("set_")] = value
            return self

        return set_fact


class _Graph:
    """Takes down what it is asked for."""

    def __init__(self, **options: Any) -> None:
        self.options, self.called, self.given = options, [], {}
        graphs.append(self)

    def tensor(self, dim: list[int], stride: list[int]) -> _Tensor:
        return _Tensor("given", dim=dim, stride=stride)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            self.called.append(name)
            if name in refuses:
                raise refuses[name]
            self.given[name] = given or args
            results = {"sdpa": 2, "sdpa_backward": 3}.get(name, 1 if name.startswith("conv") else 0)
            made = [_Tensor(name) for _ in range(results)]
            return 64 if name == "get_workspace_size" else made[0] if results == 1 else made

        return call


class _Unsupported(Exception):
    pass


graphs: list[_Graph] = []
refuses: dict[str, Exception] = {}  # by step


@pytest.fixture
def imitation(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[_Graph]]:
    """The graphs that were described to something in place of the frontend."""
    names = ("FLOAT", "HALF", "BFLOAT16")
    notes = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE", "DOWN_CONVERT_INPUTS")
    module = SimpleNamespace(
        pygraph=_Graph, create_handle=object, set_stream=lambda **_: None, backend_version=lambda: 91900,
        __version__="1.26.0",
        data_type=SimpleNamespace(**{name: name for name in names}), heur_mode=SimpleNamespace(A="A", FALLBACK="F"),
        numerical_note=SimpleNamespace(**{name: name for name in notes}), cudnnGraphNotSupportedError=_Unsupported,
    )  # fmt: skip
    monkeypatch.setattr(cudnn, "frontend", lambda: module)
    monkeypatch.setattr(cudnn, "handle", lambda: "handle")
    for plans in (attention._forward, attention._backward, conv._operation):
        plans.cache_clear()
    yield graphs
    for plans in (attention._forward, attention._backward, conv._operation):
        plans.cache_clear()
    graphs.clear()
    refuses.clear()


def layout(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return shape, np.empty(shape, f"V{itemsize}").strides


def test_what_attention_asks_for(imitation: list[_Graph], cuda: engine.device) -> None:
    heads = layout((4, 16, 32), 2)
    half = np.dtype("e")
    assert attention._forward((heads,) * 4, half, True, 0.125, 0) is not None
    assert attention._backward((heads,) * 8, half, False, 0.5, 0) is not None
    forward, backward = imitation
    given = forward.given["sdpa"]
    assert (given["attn_scale"], given["use_causal_mask"], given["generate_stats"]) == (0.125, True, True)
    assert given["q"].facts["dim"] == [1, 4, 16, 32]
    assert given["q"].facts["stride"] == [2048, 512, 32, 1]
    assert forward.options["io_data_type"] == "HALF"
    assert forward.options["compute_data_type"] == "FLOAT"
    given = backward.given["sdpa_backward"]
    assert given["use_deterministic_algorithm"] is True
    assert given["stats"].facts["dim"] == [1, 4, 16, 1]
    assert given["stats"].facts["data_type"] == "FLOAT"
    for graph in imitation:
        assert graph.given["deselect_numeric_notes"][0] == ["NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"]
        order = [graph.called.index(name) for name in ("validate", "build_operation_graph", "build_plans")]
        assert order == sorted(order)


@pytest.mark.parametrize("name", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_what_convolution_asks_for(name: str, imitation: list[_Graph], cuda: engine.device) -> None:
    layouts = layout((2, 8, 9), 4), layout((16, 4, 3), 4), layout((2, 16, 5), 4)
    window = ConvWindow((2,), (1,), (1,), 2)
    assert conv._operation(name, layouts, np.dtype("f"), window, False, 0) is not None
    (graph,) = imitation
    given = graph.given[name]
    assert (given["padding"], given["stride"], given["dilation"]) == ([0, 1], [1, 2], [1, 1])
    first = next(value for key, value in given.items() if key in ("image", "loss"))
    assert (first.facts["dim"], first.facts["stride"]) == ([2, 8, 1, 9], [72, 9, 9, 1])
    assert set(graph.given["deselect_numeric_notes"][0]) >= {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}


def test_which_attention_was_asked_for() -> None:
    assert cudnn.attends
    with sdpa_kernel(SDPBackend.MATH):
        assert not cudnn.attends
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]):
            assert cudnn.attends
        assert not cudnn.attends
    with sdp_kernel(enable_cudnn=False):
        assert not cudnn.attends
    assert cudnn.attends


def test_what_it_has_no_plan_for_is_left_to_our_kernels(imitation: list[_Graph], cuda: engine.device) -> None:
    refuses["check_support"] = _Unsupported()
    expected = None
    for enabled in (False, True):
        switches.enabled = enabled
        try:
            x = engine.arange(72.0, device=cuda).reshape(1, 2, 6, 6)
            found = F.conv2d(x, engine.ones(2, 2, 3, 3, device=cuda)).tolist()
        finally:
            switches.enabled = True
        assert len(imitation) == enabled
        assert expected in (None, found)
        expected = found


def test_a_cudnn_that_is_older_than_its_frontend_is_told_of_once(imitation: list[_Graph], cuda: engine.device) -> None:
    refuses["build_operation_graph"] = RuntimeError("set_attribute(RESHAPE_MODE): BAD_PARAM")
    heads = layout((4, 16, 32), 2)
    try:
        with pytest.warns(RuntimeWarning, match=r"cuDNN 91900 .* frontend 1.26.0 .*RESHAPE_MODE"):
            assert attention._backward((heads,) * 8, np.dtype("e"), False, 0.5, 0) is None
        assert attention._backward((heads,) * 8, np.dtype("e"), True, 0.5, 0) is None
    finally:
        cudnn._warn_of_versions.cache_clear()


def test_it_is_told_apart_whether_it_is_there(cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    cudnn.frontend.cache_clear()
    try:
        assert not switches.is_available()
        assert switches.version() is None
        assert not switches.is_acceptable(engine.ones(1, device=cuda))
        monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace())  # some folder that has this name
        cudnn.frontend.cache_clear()
        assert switches.version() is None
        assert cudnn.not_tried() == ""
        versions = [("1.17.0", 91900), ("1.18.2", 91900), ("1.26.0", 92800), ("1.27.0", 92800), ("1.18.0", 91400)]
        for (version, library), used in zip(versions, (False, True, True, False, False), strict=True):
            cudnn.frontend.cache_clear()
            found = SimpleNamespace(__version__=version, backend_version=lambda library=library: library)
            monkeypatch.setitem(sys.modules, "cudnn", found)
            assert switches.version() == (library if used else None), version
            assert cudnn.not_tried() == ("" if used else f"cuDNN {library} with frontend {version}")
        assert F.conv1d(engine.ones(1, 1, 4, device=cuda), engine.ones(1, 1, 2, device=cuda)).tolist() == [[[2.0] * 3]]
    finally:
        cudnn.frontend.cache_clear()
    assert backend.require_cupy() is not None
