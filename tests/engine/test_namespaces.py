"""PyTorch's module paths: what is there, what a package above provides, and what refuses with advice."""

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import engine
from engine import compat, jit, multiprocessing, nn
from engine.errors import absent
from engine.nn.attention import SDPBackend, sdpa_kernel
from engine.testing import assert_close

PATHS = """
accelerator amp autograd autograd.function autograd.functional backends.cuda backends.cudnn backends.mps cuda cuda.amp
data data.dataloader data.dataset data.sampler distributions distributions.categorical distributions.normal
distributions.transformed_distribution distributions.transforms func fx hub jit linalg
multiprocessing nn nn.attention nn.common_types nn.functional nn.init nn.modules nn.modules.activation
nn.modules.batchnorm nn.modules.container nn.modules.conv nn.modules.dropout nn.modules.instancenorm nn.modules.lazy
nn.modules.linear nn.modules.loss nn.modules.module nn.modules.normalization nn.modules.pooling nn.modules.rnn
nn.modules.sparse nn.modules.transformer nn.modules.utils nn.parallel nn.parameter nn.utils nn.utils.clip_grad
nn.utils.fusion nn.utils.parametrizations nn.utils.parametrize nn.utils.rnn nn.utils.stateless onnx optim
optim.lr_scheduler optim.swa_utils random serialization special testing utils utils.checkpoint utils.data
utils.data.dataloader utils.data.dataset utils.data.sampler
""".split()  # noqa: SIM905 - a list would take a line a name


@pytest.mark.parametrize("path", PATHS)
def test_the_path_can_be_imported_and_read(path: str) -> None:
    module = importlib.import_module(f"engine.{path}")
    found = engine
    for part in path.split("."):
        found = getattr(found, part)
    assert found is module


def test_layers_are_found_under_pytorchs_files() -> None:
    assert nn.modules.activation.MultiheadAttention is nn.MultiheadAttention
    assert nn.modules.batchnorm._BatchNorm in nn.BatchNorm2d.__mro__
    assert nn.modules.conv._ConvNd in nn.Conv2d.__mro__
    assert nn.modules.rnn.LSTMCell is nn.LSTMCell
    assert nn.modules.linear.NonDynamicallyQuantizableLinear in type(nn.MultiheadAttention(2, 1).out_proj).__mro__
    assert engine.utils.data.DataLoader is engine.data.DataLoader


def test_the_star_brings_functions_and_dtypes_and_no_modules() -> None:
    brought: dict[str, object] = {}
    exec("from engine import *", brought)
    for name in ("tensor", "float32", "Tensor", "no_grad", "save", "load", "pi", "manual_seed", "allclose"):
        assert brought[name] is getattr(engine, name)
    assert not {"nn", "optim", "ops", "random", "pooling"} & brought.keys()
    assert not [name for name in ("pooling", "pointwise", "loss", "index") if hasattr(engine, name)]


def test_methods_in_place_and_losses_are_functions_as_well() -> None:
    x = engine.zeros(2)
    assert engine.exp_(x) is x
    assert x.tolist() == [1.0, 1.0]
    assert engine.detach(x).tolist() == [1.0, 1.0]
    assert engine.cosine_similarity is nn.functional.cosine_similarity
    with pytest.raises(AttributeError, match="no attribute 'explode_'"):
        _ = engine.explode_


def test_memory_methods() -> None:
    x = engine.arange(6.0).reshape(2, 3)
    assert not x.is_pinned()
    assert not x.is_shared()
    assert x.to_dense() is x
    assert x.new(2, 2).shape == (2, 2)
    assert x.new([1, 2]).dtype is engine.float32
    assert engine.empty(1).resize_as_(x).shape == (2, 3)
    assert x.clone().swapaxes_(0, 1).shape == (3, 2)
    assert engine.ones(2).subtract_(engine.ones(2), alpha=3).tolist() == [-2.0, -2.0]
    assert engine.full((2,), 7.0).divide_(2, rounding_mode="floor").tolist() == [3.0, 3.0]
    engine.manual_seed(0)
    trials = engine.empty(4000).geometric_(0.25)
    assert trials.min() == 1
    assert abs(trials.mean().item() - 4) < 0.3
    assert abs(engine.empty(4000).log_normal_(0.0, 0.5).log().std().item() - 0.5) < 0.05
    with pytest.raises(NotImplementedError, match="tensors are not shared between processes"):
        x.share_memory_()
    with pytest.raises(RuntimeError, match=r"geometric_ expects p to be in \(0, 1\), but got p=2"):
        x.geometric_(2)


@pytest.mark.parametrize("module", [engine, nn, nn.utils, engine.optim, engine.data])
def test_every_public_name_is_there(module: object) -> None:
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name)


def test_importing_engine_leaves_the_rest_for_later() -> None:
    program = "import sys, engine; print(*sorted(name for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numba", "llvmlite", "safetensors", "cupy", "mpi4py", "ddp", "multiprocessing"}
    assert not heavy & set(loaded)
    assert not {name for name in loaded if name.startswith(("engine.nn", "engine.optim", "engine.data"))}


def test_names_of_a_package_above() -> None:
    with pytest.raises(AttributeError, match=r"module 'engine.jit' has no attribute 'fork'"):
        _ = jit.fork
    absent.provide("engine.jit.something", 7)
    try:
        assert absent.found("engine.jit", "something") == 7
    finally:
        del absent._provided["engine.jit.something"]


def test_ddp_puts_its_names_where_pytorch_has_them() -> None:
    program = (
        "import engine as torch\n"
        "try: torch.nn.parallel.DistributedDataParallel\n"
        "except AttributeError as error: print(error)\n"
        "import ddp\n"
        "assert torch.nn.parallel.DistributedDataParallel is ddp.DistributedDataParallel\n"
        "assert torch.utils.data.distributed.DistributedSampler is ddp.DistributedSampler\n"
        "assert torch.nn.SyncBatchNorm is ddp.SyncBatchNorm\n"
        "assert torch.distributed is ddp\n"
        "from ddp.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook as powerSGD\n"
        "from ddp.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState\n"
        "from ddp.algorithms.model_averaging.averagers import PeriodicModelAverager\n"
        "from ddp.distributed import DistributedDataParallel\n"
        "from ddp.distributed_c10d import ProcessGroup\n"
        "from ddp.elastic.multiprocessing.errors import record\n"
        "from ddp.optim import ZeroRedundancyOptimizer\n"
        "import ddp.hooks\n"
        "assert default_hooks.fp16_compress_hook is ddp.hooks.fp16_compress_hook\n"
        "assert powerSGD.PowerSGDState is ddp.hooks.PowerSGDState\n"
        "assert record(print) is print\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "use `from ddp import DistributedDataParallel`" in done.stdout


def test_calls_without_an_answer_say_what_to_do() -> None:
    refused = [
        (lambda: engine.onnx.export(nn.Linear(1, 1), (), "f"), "save the state_dict with engine.save"),
        (lambda: engine.hub.load("a/b", "c"), "nothing is downloaded here"),
        (lambda: engine.hub.load_state_dict_from_url("http://localhost"), "nothing is downloaded here"),
        (lambda: engine.hub.download_url_to_file("http://localhost", "f"), "nothing is downloaded here"),
        (lambda: engine.fx.symbolic_trace(nn.Linear(1, 1)), "engine.trace shows the calls"),
    ]
    for call, message in refused:
        with pytest.raises(NotImplementedError, match=message):
            call()
    assert engine.fx.wrap("len") == "len"


def test_script_runs_as_it_is_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "told", set())

    def double(x: engine.Tensor) -> engine.Tensor:
        return x * 2

    with pytest.warns(UserWarning, match=r"engine.jit.script: there is no TorchScript here; it runs as it is"):
        assert jit.script(double) is double
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jit.script(double) is double
    with pytest.warns(UserWarning, match=r"engine.jit.trace"):
        assert jit.trace(double, engine.ones(1)) is double
    assert not jit.is_scripting()
    assert not jit.is_tracing()
    assert jit.unused(double) is jit.export(double) is jit.ignore(double) is jit.script_if_tracing(double) is double
    assert jit.ignore(drop=True)(double) is double


def test_one_attention_kernel_serves_all_backends() -> None:
    q = engine.randn(1, 2, 3, 4)
    plain = nn.functional.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        assert engine.equal(nn.functional.scaled_dot_product_attention(q, q, q), plain)


def test_data_parallel_on_one_device_is_the_module() -> None:
    model = nn.DataParallel(nn.Linear(2, 1))
    x = engine.ones(3, 2)
    assert engine.equal(model(x), model.module(x))
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    with pytest.raises(RuntimeError, match=r"and 2 were wanted; use ddp.DistributedDataParallel under ddprun"):
        nn.DataParallel(nn.Linear(2, 1), device_ids=[0, 1])


def test_spawn_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    calls: list[tuple[int, str]] = []
    multiprocessing.spawn(lambda rank, name: calls.append((rank, name)), args=("a",), nprocs=2, join=True)
    assert calls == [(1, "a")]
    with pytest.raises(
        RuntimeError, match=r"asked for 4 processes, and 2 run this script; start it with `ddprun -n 4`"
    ):
        multiprocessing.spawn(lambda rank: None, nprocs=4)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    multiprocessing.spawn(lambda rank: calls.append((rank, "alone")))
    assert calls[-1] == (0, "alone")
    assert multiprocessing.cpu_count() > 0


def test_assert_close(tmp_path: Path) -> None:
    assert_close(engine.ones(2), engine.ones(2) + 1e-7)
    assert_close({"a": [1.0, engine.ones(1)]}, {"a": [1.0, engine.ones(1)]})
    assert_close(engine.tensor([float("nan")]), engine.tensor([float("nan")]), equal_nan=True)
    assert_close(1, 1.0, check_dtype=False)
    wrong = [
        ((engine.ones(2), engine.ones(2) + 1e-3), {}, r"Mismatched elements: 2 / 2"),
        ((engine.ones(2), engine.ones(3)), {}, "'shape' do not match"),
        ((engine.ones(2), engine.ones(2).double()), {}, "'dtype' do not match"),
        ((engine.ones(2, 2), engine.ones(2, 2).t()), {"check_stride": True}, r"strides do not match: \(2, 1\)"),
        (([1.0], [1.0, 2.0]), {}, "lengths of the sequences do not match"),
        (({"a": 1.0}, {"b": 1.0}), {}, "keys of the mappings do not match"),
        (({"a": [1.0]}, {"a": [2.0]}), {}, r"Tensor-likes\['a'\]\[0\] are not close"),
        ((1.0, 2.0), {"msg": "own words"}, "^own words$"),
        ((engine.tensor([1]), engine.tensor([2])), {}, "Greatest absolute difference: 1.0 at index \\(0,\\)"),
    ]
    for pair, options, message in wrong:
        with pytest.raises(AssertionError, match=message):
            assert_close(*pair, **options)
    with pytest.raises(ValueError, match="give both tolerances or none"):
        assert_close(1.0, 1.0, rtol=0.1)


def test_dir_names_what_is_for_users() -> None:
    """No files of the packages, no imports, and everything that is named can be had."""
    import types

    import ddp
    import engine.utils

    assert not {"Any", "absent", "dispatch", "methods", "ops", "plan"} & set(dir(engine))
    assert {"Tensor", "load", "autograd", "nn", "autocast", "kl_div"} <= set(dir(engine))
    assert "Any" not in engine.__all__
    assert dir(engine.utils) == ["checkpoint", "data", "hooks"]
    assert {"DistributedDataParallel", "all_reduce", "nn", "hooks"} <= set(dir(ddp))
    files = {name for name in dir(ddp) if isinstance(getattr(ddp, name), types.ModuleType)}
    assert files <= {"algorithms", "distributed", "elastic", "hooks", "nn", "optim"}
    assert all(hasattr(engine, name) for name in dir(engine) if not name.startswith("__"))
