"""Bad input: each mistake gets one clear error that names what was expected and what to do."""

import sys
from types import SimpleNamespace

import pytest

import engine
import engine.nn.functional as F


def ones(*shape, **options):
    return engine.ones(shape, **options)


def test_backward_on_a_non_scalar():
    with pytest.raises(
        RuntimeError,
        match=r"grad can be implicitly created only for scalar outputs, got shape \[2, 3\]; reduce it first",
    ):
        (ones(2, 3, requires_grad=True) * 2).backward()


def test_backward_twice():
    y = ones(2, requires_grad=True).exp().sum()
    y.backward()
    with pytest.raises(
        RuntimeError, match=r"Trying to backward through the graph a second time.*retain_graph=True"
    ) as caught:
        y.backward()
    assert caught.value.__notes__[0] == "Error detected in ExpBackward0 during backward."


def test_backward_without_history():
    for tensor in (ones(1), ones(1, requires_grad=True).detach()):
        with pytest.raises(
            RuntimeError,
            match=r"does not require grad and does not have a grad_fn: nothing in its history requires grad",
        ):
            tensor.backward()


def test_a_leaf_written_in_place():
    with pytest.raises(RuntimeError, match=r"add_: a leaf Variable that requires grad .*inside engine.no_grad\(\)"):
        ones(2, requires_grad=True).add_(1)


SHAPES = {
    "add": (lambda: ones(2, 3) + ones(4), r"add: .*shapes \[2, 3\] and \[4\] do not broadcast"),
    "where": (lambda: engine.where(ones(2) > 0, ones(3), ones(2)), r"where: .*shapes \[2\] and \[3\] do not broadcast"),
    "matmul": (lambda: ones(2, 3) @ ones(2, 3), r"matmul: mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"),
    "bmm": (lambda: engine.bmm(ones(2, 3, 4), ones(3, 4, 5)), r"bmm: .*\[2, 3, 4\] and \[3, 4, 5\]"),
    "linear": (lambda: engine.linear(ones(2, 3), ones(4, 5)), r"linear: .*\(2x3 and 5x4\)"),
    "cat": (
        lambda: engine.cat([ones(2, 3), ones(2, 4)]),
        r"cat: .*Expected size 3 but got size 4 .*\[2, 3\] and \[2, 4\]",
    ),
    "stack": (lambda: engine.stack([ones(2), ones(3)]), r"stack .*\[2\] at entry 0 and \[3\] at entry 1"),
    "mul_": (
        lambda: ones(2, 3).mul_(ones(4, 2, 3)),
        r"mul_: output with shape \[2, 3\] doesn't match the broadcast shape \[4, 2, 3\]",
    ),
    "copy_": (lambda: ones(2).copy_(ones(3)), r"copy_: .*\[3\] does not broadcast to \[2\]"),
    "expand": (lambda: ones(2, 3).expand(4, 3), r"expand: .*Target sizes: \[4, 3\]. Tensor sizes: \[2, 3\]"),
    "view": (lambda: ones(2, 3).view(4), r"shape '\[4\]' is invalid for input of size 6"),
    "conv2d": (lambda: F.conv2d(ones(1, 3, 4, 4), ones(2, 4, 3, 3)), r"conv2d: .*\[2, 4, 3, 3\].*\[1, 3, 4, 4\]"),
    "cross_entropy": (
        lambda: F.cross_entropy(ones(2, 3), engine.zeros(3, dtype=engine.int64)),
        r"cross_entropy: Expected input batch_size \(2\) to match target batch_size \(3\)",
    ),
}


@pytest.mark.parametrize("operator", SHAPES)
def test_shapes_that_do_not_match_name_operator_and_shapes(operator):
    call, message = SHAPES[operator]
    for _ in range(2):  # nothing about a refused call is remembered
        with pytest.raises((RuntimeError, ValueError), match=message):
            call()


def test_unknown_dtypes_list_what_is_known():
    with pytest.raises(
        TypeError, match=r"dtype must be an engine.dtype, got 'flot32'.*expected one of engine.bool, .*engine.float32"
    ):
        engine.zeros(2, dtype="flot32")
    with pytest.raises(TypeError, match=r"use engine\.float32"):
        engine.zeros(2, dtype="float32")


@pytest.mark.parametrize("where", ["tpu", "cuda:x"])
def test_unknown_devices_list_what_is_known(where):
    with pytest.raises(RuntimeError, match=f"unknown device '{where}'; known are cpu, cuda, meta"):
        engine.zeros(2, device=where)
    with pytest.raises(RuntimeError, match="unknown device"):
        engine.zeros(2).to(where)


@pytest.mark.parametrize(
    "ask",
    [lambda: engine.zeros(2, device="cuda"), lambda: engine.zeros(2).to("cuda"), lambda: engine.zeros(2).cuda()],
    ids=["factory", "to", "cuda"],
)
def test_cuda_without_cupy_says_how_to_get_it(ask, monkeypatch):
    monkeypatch.setattr("engine.memory.backend._cupy", None)
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ImportError
    with pytest.raises(RuntimeError, match=r"device 'cuda' needs CuPy, .*pip install 'allstride\[cuda12\]'") as caught:
        ask()
    assert isinstance(caught.value.__cause__, ImportError)


def fake_cupy(count):
    """A module that answers like CuPy on a machine with `count` GPUs; None: with no driver."""

    class CUDARuntimeError(RuntimeError):
        pass

    def devices():
        if count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        return count

    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=devices, CUDARuntimeError=CUDARuntimeError))
    )


@pytest.mark.parametrize(
    ("count", "message"), [(0, "has no NVIDIA GPU"), (None, "finds no usable NVIDIA GPU or driver")]
)
def test_cuda_without_a_gpu_says_that_it_is_missing(count, message, monkeypatch):
    monkeypatch.setattr("engine.memory.backend._cupy", None)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count))
    with pytest.raises(RuntimeError, match=message):
        engine.zeros(2, device="cuda")


@pytest.mark.parametrize("missing", ["NVRTC", "cuBLAS"])
def test_cuda_without_the_toolkits_libraries_names_the_command_that_brings_them(missing, monkeypatch):
    """CuPy's wheel alone: it finds the GPU, and compiles and multiplies nothing."""

    class Cuda(SimpleNamespace):
        @property
        def cublas(self):
            if missing == "cuBLAS":
                raise ImportError("libcublasLt.so.12: cannot open shared object file")
            return self

    def version():
        if missing == "NVRTC":
            raise RuntimeError('Failure finding "libnvrtc.so.12"')
        return (12, 9)

    runtime = fake_cupy(1).cuda.runtime
    runtime.runtimeGetVersion = lambda: 12090
    cuda = Cuda(runtime=runtime, nvrtc=SimpleNamespace(getVersion=version))
    monkeypatch.setattr("engine.memory.backend._cupy", None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    message = rf"not {missing}, a library of the CUDA Toolkit; install it with pip install 'allstride\[cuda12\]'$"
    with pytest.raises(RuntimeError, match=message) as caught:
        engine.zeros(2, device="cuda")
    assert caught.value.__cause__ is not None


def test_values_of_a_meta_tensor_cannot_be_read():
    with pytest.raises((TypeError, NotImplementedError), match="meta"):
        engine.ones(2, device="meta").numpy()


def test_numpy_of_a_tensor_that_requires_grad():
    w = ones(2, requires_grad=True)
    with pytest.raises(
        RuntimeError,
        match=r"Can't call numpy\(\) on Tensor that requires grad; use tensor.detach\(\).numpy\(\) instead",
    ):
        w.numpy()
    with engine.no_grad():
        assert w.numpy().tolist() == [1.0, 1.0]
