"""What Python calls of a kernel: which objects it takes, what it gives, and that it leaves them as it found them."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import engine
from engine.kernels import jit, lock, machine
from engine.kernels.jit import kernel
from engine.kernels.language import Pair, Read1, ReadInt64, Write1, real
from engine.sharing.kernels import compiled_wait


@kernel
def _described(
    values: Read1, places: ReadInt64, shape: Pair, factor: float, count: int, twice: bool, out: Write1
) -> None:
    total = real(0.0)
    for place in range(places.size):
        total += values[places[place]]
    out[0] = total * real(factor) * (real(2.0) if twice else real(1.0))
    out[1] = real(count)
    out[2] = real(shape[0] * 10 + shape[1])


@kernel
def _allocated(count: int) -> int:
    return np.empty(count).size


@kernel(brief=True)
def _in_a_moment(count: int) -> int:
    return count + 1


del jit._kernels[-3:]  # they are none of the engine's


@pytest.fixture(scope="module", autouse=True)
def kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where kernels are kept does not depend on these sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        for one in (_described["f"], _allocated["d"]):
            assert callable(one)
        yield


VALUES = np.arange(4, dtype="float32")
PLACES = np.array([1, 3])


def called(*changed: Any, at: int = 0) -> list[float]:
    """The kernel's three results, with other arguments from a place on."""
    out = np.zeros(3, "float32")
    arguments: list[Any] = [VALUES, PLACES, (5, 6), 0.5, 7, True, out]
    arguments[at : at + len(changed)] = changed
    assert _described["f"](*arguments) is None
    return out.tolist()


def test_arrays_and_numbers_arrive() -> None:
    assert called() == [4.0, 7.0, 56.0]
    assert called(False, at=5) == [2.0, 7.0, 56.0]


@pytest.mark.parametrize(
    ("at", "value", "expected"),
    [
        (1, PLACES.astype("longlong"), [4.0, 7.0, 56.0]),
        (0, VALUES.view(type("Own", (np.ndarray,), {})), [4.0, 7.0, 56.0]),
        (2, engine.zeros(5, 6).shape, [4.0, 7.0, 56.0]),
        (2, (np.int64(5), True), [4.0, 7.0, 51.0]),
        (3, np.float32(0.25), [2.0, 7.0, 56.0]),
        (3, 1, [8.0, 7.0, 56.0]),
        (4, np.int32(-1), [4.0, -1.0, 56.0]),
        (4, False, [4.0, 0.0, 56.0]),
        (5, np.bool_(False), [2.0, 7.0, 56.0]),
        (5, 3, [4.0, 7.0, 56.0]),
        (3, -1.0, [-8.0, 7.0, 56.0]),
    ],
)
def test_what_is_as_good_is_taken(at: int, value: Any, expected: list[float]) -> None:
    assert called(value, at=at) == expected


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0, VALUES[::2], r"float32\[1d\] not contiguous"),
        (0, VALUES.reshape(2, 2), r"got \(float32\[2d\]"),
        (0, VALUES.astype(float), r"got \(float64\[1d\]"),
        (0, VALUES.astype(">f4" if sys.byteorder == "little" else "<f4"), r"got \([<>]f4\[1d\]"),
        (0, np.frombuffer(bytes(17), "float32", 4, 1), "got"),
        (0, [1.0], r"got \(list"),
        (0, None, r"got \(NoneType"),
        (1, PLACES.astype("int32"), r"int32\[1d\]"),
        (1, PLACES.astype("uint64"), r"uint64\[1d\]"),
        (2, (1, 2, 3), "tuple"),
        (2, [1, 2], "list"),
        (2, (1.5, 2), "interpreted as an integer"),
        (3, "1", "must be real number, not str"),
        (4, 1.5, "interpreted as an integer"),
        (6, np.broadcast_to(np.float32(0), 3), "read-only"),
    ],
)
def test_what_does_not_fit_is_refused(at: int, value: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        called(value, at=at)


def test_a_number_that_is_too_large_is_no_other_number() -> None:
    with pytest.raises(OverflowError):
        called(1 << 63, at=4)


def test_an_error_of_an_object_is_the_callers() -> None:
    class Wrong:
        def __bool__(self) -> bool:
            raise LookupError("neither")

    with pytest.raises(LookupError, match="neither"):
        called(Wrong(), at=5)


def test_memory_that_a_kernel_allocates_comes_and_goes() -> None:
    assert [_allocated["d"](count) for count in (0, 1, 1000)] == [0, 1, 1000]
    with pytest.raises(MemoryError):
        _allocated["d"](1 << 50)
    for _ in range(1000):
        _allocated["d"](1 << 27)  # 1 GB each, of which no page is touched


class Number:
    def __index__(self) -> int:
        return 7


def test_references_are_what_they_were() -> None:
    shape, number, out = (5, 6), Number(), np.zeros(3, "float32")
    objects, run = [VALUES, PLACES, shape, number, out, None], _described["f"]

    def counts() -> list[int]:
        for _ in range(2000):
            run(VALUES, PLACES, shape, 0.5, number, True, out)
            with contextlib.suppress(TypeError):
                run(VALUES, VALUES, shape, 0.5, number, True, out)
        return [sys.getrefcount(one) for one in objects]

    before = counts()
    assert max(abs(now - then) for now, then in zip(counts(), before, strict=True)) < 100


def test_other_threads_run_while_a_kernel_does() -> None:
    number = np.zeros(1, np.int64)
    thread = threading.Timer(0.01, lambda: number.fill(1))
    thread.start()
    while not compiled_wait()(number.ctypes.data, 1, 1 << 40, 0):
        pass
    assert number[0] == 1
    thread.join()


@pytest.mark.parametrize("looks", [0, 1000])
def test_who_wants_the_lock_looks_so_often_and_asks_for_it(looks: int) -> None:
    """Another thread has come out of a kernel meanwhile, and let go of the lock without entering one."""
    number, wait = np.zeros(2, np.int64), compiled_wait()

    def come_and_end() -> None:
        wait(number.ctypes.data + 8, 0, 0, 0)
        number[0] = 1

    lock.look_for_lock(looks)
    try:
        thread = threading.Timer(0.01, come_and_end)
        thread.start()
        assert wait(number.ctypes.data, 1, 1 << 40, 0) == 1
        thread.join()
    finally:
        lock.look_for_lock(0)


def test_what_is_brief_keeps_the_interpreters_lock() -> None:
    assert _in_a_moment["d"](1) == 2
    for one, released in ((_in_a_moment, False), (_allocated, True)):
        _, code = one.disk_cache("d").load()
        assert (b"PyEval_SaveThread" in code, b"PyEval_RestoreThread" in code) == (released, released)


def test_code_that_calls_what_is_not_there_is_not_linked() -> None:
    """LLVM would end the process."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    text = 'declare void @"nowhere"()\ndefine void @"somewhere"() {\ncall void @"nowhere"()\nret void\n}'
    target = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
    code = bytes(target.emit_object(binding.parse_assembly(text)))
    assert machine.missing(code) == ["nowhere"]
    with pytest.raises(machine.MissingError, match="kernel some calls nowhere, which is in no library of this process"):
        machine.link("some", "somewhere", code, lambda: None)
