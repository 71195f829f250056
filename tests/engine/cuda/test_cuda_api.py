"""`engine.cuda`: devices, memory and their statistics, and what is said where there is no GPU."""

import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest

import engine
from engine.cuda.memory import in_words
from tests import cuda_device

QUESTIONS = {
    "is_available": False,
    "device_count": 0,
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    "memory_stats": {},
    "is_initialized": False,
    "is_bf16_supported": False,
    "is_current_stream_capturing": False,
    "empty_cache": None,
    "reset_peak_memory_stats": None,
}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(engine.memory.backend, "_cupy", None)
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.fixture
def on_driver(cuda):
    if not cuda_device.ours():
        pytest.skip("reads what only the CPU driver counts")
    return cuda


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_have_answers_without_a_gpu(name, no_gpu):
    assert getattr(engine.cuda, name)() == QUESTIONS[name]


NEEDS = {
    "current_device": lambda: engine.cuda.current_device(),
    "stream": lambda: engine.cuda.Stream(),
    "synchronize": lambda: engine.cuda.synchronize(),
    "mem_get_info": lambda: engine.cuda.mem_get_info(),
    "name": lambda: engine.cuda.get_device_name(),
    "init": lambda: engine.cuda.init(),
    "graph": lambda: engine.cuda.CUDAGraph().capture_begin(),
    "nvtx": lambda: engine.cuda.nvtx.range_push("x"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_needs_a_gpu_says_what_is_missing(name, no_gpu):
    with pytest.raises(RuntimeError, match="device 'cuda' needs CuPy"):
        NEEDS[name]()


def test_importing_engine_cuda_does_not_import_cupy():
    code = "import sys, engine, engine.cuda.graphs, engine.accelerator; assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- devices ----------------------------------------------------------------------------------------------------------


def test_properties(cuda):
    found = engine.cuda.get_device_properties(0)
    assert (found.major, found.minor) == engine.cuda.get_device_capability("cuda:0")
    assert found.name == engine.cuda.get_device_name() != ""
    assert found.total_memory == engine.cuda.mem_get_info()[1]
    assert found.multi_processor_count > 0
    assert found.warp_size == 32
    assert engine.cuda.is_bf16_supported() == ((found.major, found.minor) >= (8, 0))


@pytest.mark.parametrize("where", [1, "cuda:1", engine.device("cuda", 1)], ids=["index", "text", "device"])
def test_another_gpu_is_in_use_inside_the_block(where, cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with engine.cuda.device(where):
        assert engine.cuda.current_device() == 1
        with engine.cuda.device(None), engine.cuda.device(-1):
            assert engine.cuda.current_device() == 1
    assert engine.cuda.current_device() == 0


def test_device_of_follows_a_tensor(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with engine.cuda.device_of(engine.zeros(2, device="cuda:1")):
        assert engine.cuda.current_device() == 1
        with engine.cuda.device_of(engine.zeros(2)):
            assert engine.cuda.current_device() == 1
    engine.cuda.set_device("cuda:1")
    assert engine.accelerator.current_device_index() == 1
    engine.cuda.set_device(0)


def test_a_device_that_is_no_gpu_is_refused(cuda):
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        engine.cuda.get_device_name("cpu")


def test_operators_run_on_the_device_of_their_tensors(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = engine.arange(6.0).reshape(2, 3)
    there = x.to("cuda:1")
    found = (there * 2 + there.t().contiguous().t()).sum(0)
    found += 1
    found[0] = 5
    assert found.device == engine.device("cuda:1")
    assert found.tolist() == [5.0, 16.0, 22.0]
    assert engine.cuda.current_device() == 0
    home = there.t().to("cuda:0")
    assert home.device == engine.device("cuda:0")
    assert home.stride() == (1, 3)
    assert home.tolist() == x.t().tolist()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_allocated_bytes_and_their_peak(cuda):
    gc.collect()
    before = engine.cuda.memory_allocated()
    x = engine.empty(1000, device=cuda)
    assert engine.cuda.memory_allocated() == before + 4096
    engine.cuda.reset_peak_memory_stats()
    y = engine.empty(512, device=cuda)
    del x, y
    assert engine.cuda.memory_allocated() == before
    assert engine.cuda.max_memory_allocated() == before + 4096 + 2048
    engine.cuda.reset_peak_memory_stats()
    assert engine.cuda.max_memory_allocated() == before
    assert engine.cuda.memory_reserved() >= before
    assert engine.cuda.max_memory_reserved() >= engine.cuda.memory_reserved()


def test_stats_and_summary(cuda):
    engine.cuda.reset_accumulated_memory_stats()
    blocks = engine.cuda.memory_stats()["allocation.all.current"]
    x = engine.empty(128, device=cuda)
    stats = engine.cuda.memory_stats()
    assert stats["allocation.all.current"] == blocks + 1
    assert stats["allocated_bytes.all.allocated"] == 512
    assert stats["allocated_bytes.all.freed"] == 0
    assert "allocated_bytes.all.peak" in engine.cuda.memory_summary()
    del x


def test_empty_cache_gives_memory_back(cuda):
    x = engine.empty(1 << 20, device=cuda)
    del x
    gc.collect()
    before = engine.cuda.memory_reserved()
    engine.cuda.empty_cache()
    assert engine.cuda.memory_reserved() <= before - (4 << 20)


def test_out_of_memory_says_how_much_was_asked_free_and_reserved(cuda):
    total = engine.cuda.mem_get_info()[1]
    kept = engine.empty(1 << 20, device=cuda)
    with pytest.raises(engine.cuda.OutOfMemoryError) as caught:
        engine.empty(total, device=cuda)
    message = str(caught.value)
    assert (
        f"Tried to allocate {in_words(total * 4)}. GPU 0 has a total capacity of {in_words(total)} of which" in message
    )
    assert "is free. This process has reserved " in message
    assert isinstance(caught.value, RuntimeError)
    assert engine.OutOfMemoryError is engine.cuda.OutOfMemoryError
    assert engine.cuda.memory_stats()["num_ooms"] >= 1
    assert kept.numel() == 1 << 20


def test_a_limit_for_this_process(cuda):
    total = engine.cuda.mem_get_info()[1]
    engine.cuda.set_per_process_memory_fraction(0.5)
    try:
        assert engine.cuda.get_per_process_memory_fraction() == pytest.approx(0.5)
        with pytest.raises(engine.OutOfMemoryError, match="its limit is"):
            engine.empty(total // 2, device=cuda)
    finally:
        engine.cuda.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError, match="Allowed range: 0~1"):
        engine.cuda.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="must be `float`"):
        engine.cuda.set_per_process_memory_fraction("half")


def test_each_device_counts_for_itself(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    before = engine.cuda.memory_allocated(0), engine.cuda.memory_allocated(1)
    x = engine.empty(128, device="cuda:1")
    assert (engine.cuda.memory_allocated(0), engine.cuda.memory_allocated(1)) == (before[0], before[1] + 512)
    del x


def test_asking_for_statistics_waits_for_nothing(on_driver):
    x = engine.ones(8, device=on_driver)
    with cuda_device.counters() as count:
        engine.cuda.memory_stats()
        engine.cuda.max_memory_allocated()
        engine.cuda.current_stream().wait_stream(engine.cuda.default_stream())
        x += 1
    assert count.synchronizations == 0


def test_nvtx_ranges_nest(monkeypatch):
    calls = []
    marks = SimpleNamespace(
        RangePush=lambda message: calls.append(("push", message)),
        RangePop=lambda: calls.append(("pop",)),
        Mark=lambda message: calls.append(("mark", message)),
    )
    monkeypatch.setattr(engine.cuda.nvtx, "require_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(nvtx=marks)))
    assert engine.cuda.nvtx.range_push("outer") == 0
    with engine.cuda.nvtx.range("epoch {}", 3):
        engine.cuda.nvtx.mark("here")
    assert engine.cuda.nvtx.range_pop() == 0
    assert calls == [("push", "outer"), ("push", "epoch 3"), ("mark", "here"), ("pop",), ("pop",)]


def test_the_current_accelerator_names_no_gpu(cuda):
    """Scripts write f"{current_accelerator()}:{rank}"."""
    found = engine.accelerator.current_accelerator()
    assert (str(found), found.type, found.index) == ("cuda", "cuda", None)
    assert engine.device(f"{found}:1").index == 1
    assert engine.device(found) is engine.device("cuda")
    assert engine.zeros(2, device=found).device == engine.zeros(2).to(found).device == engine.device("cuda")
    with found:
        assert engine.zeros(2).device == engine.device("cuda")


def test_the_accelerator_is_the_gpu(cuda):
    assert engine.accelerator.is_available()
    assert engine.accelerator.device_count() == engine.cuda.device_count()
    assert engine.accelerator.get_memory_info() == engine.cuda.mem_get_info()
    assert engine.accelerator.current_stream() == engine.cuda.current_stream()
    assert engine.accelerator.memory_allocated() == engine.cuda.memory_allocated()
    if engine.cuda.device_count() > 1:
        with engine.accelerator.device_index(1):
            assert engine.accelerator.current_device_index() == 1
    assert engine.accelerator.current_device_index() == 0


def test_switches_of_cudnn():
    cudnn = engine.backends.cudnn
    with cudnn.flags(deterministic=True, allow_tf32=False):
        assert (cudnn.deterministic, cudnn.allow_tf32, cudnn.enabled) == (True, False, False)
    assert (cudnn.deterministic, cudnn.allow_tf32, cudnn.enabled) == (False, True, True)
    assert not cudnn.is_acceptable(engine.ones(1))
