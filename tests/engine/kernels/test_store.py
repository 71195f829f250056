"""Whose compiled kernels are loaded, what is done where none can be, and how processes share the compiling."""

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.kernels import cache, jit, store, waiting

SUM = """
import numpy as np
from engine.kernels import jit
from engine.ops.buckets import kernels as buckets
print(buckets.sum_of_squares(np.arange(5.0)), jit.compiled)
"""
NOBODY = 65534
# What another user sees. Root imports and compiles first: the other one may not be able to read the environment.
AS_NOBODY = f"""
import os
import numpy as np
from engine.kernels import jit, waiting
from engine.ops.buckets import kernels as buckets
waiting.speak(False)
place = os.environ.pop("NUMBA_CACHE_DIR")
os.environ["NUMBA_CACHE_DIR"] = place + ".root"
buckets.sum_of_squares(np.ones(3, "float32"))
os.environ["NUMBA_CACHE_DIR"], jit.compiled = place, 0
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
print(buckets.sum_of_squares(np.arange(5.0)), jit.compiled)
"""
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a second user")


def start(place: Path | str, code: str = SUM, **settings: str) -> "subprocess.Popen[str]":
    """A Python whose cache is below a folder."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(place)} | settings
    command = [sys.executable, "-W", "always", "-c", code]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(place: Path | str, code: str = SUM, **settings: str) -> tuple[str, str]:
    process = start(place, code, **settings)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out.strip(), error


def entry(place: Path) -> Path:
    """The one kernel below a folder."""
    [found] = [path for path in place.rglob("buckets.*") if path.is_file()]
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts the one kernel, compiled once for all tests, below a folder, and says where it is."""
    made = tmp_path_factory.mktemp("compiled")
    assert run(made)[0] == "30.0 1"

    def kept(place: Path) -> Path:
        shutil.copytree(made / "allstride", place / "allstride")
        return entry(place)

    return kept


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that all users may write; not below pytest's own, which no other user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernels"
        place.mkdir()
        place.chmod(0o1777)
        place.parent.chmod(0o755)
        yield place


def test_folders_and_files_are_for_their_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert run(tmp_path / "made")[0] == "30.0 1"
    finally:
        os.umask(before)
    path = entry(tmp_path)
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "made", path.parent.parent, path.parent, path)]
    assert modes == [0o700, 0o700, 0o700, 0o600]


def test_who_reads_a_kernel_loads_no_compiler_and_may_compile_afterwards(
    tmp_path: Path, kept: Callable[[Path], Path]
) -> None:
    kept(tmp_path)
    rest = """
    import sys
    print("numba" in sys.modules)
    import engine
    print(engine.softmax(engine.zeros(1, 4), 1).tolist(), jit.compiled)
    import numba
    @numba.njit
    def product(a, b):
        return a * b + np.median(a)
    print(product(np.eye(2), np.full((2, 2), 3.0)).tolist())
    """
    out, _ = run(tmp_path, SUM + textwrap.dedent(rest))
    assert out.splitlines() == ["30.0 0", "False", "[[0.25, 0.25, 0.25, 0.25]] 1", "[[3.5, 0.5], [0.5, 3.5]]"]


def test_a_thread_compiles_its_own_code_beside(tmp_path: Path) -> None:
    """Kernels need few of Numba's definitions; a user's function may need any, at any time."""
    beside = """
        import threading
        import numba
        import numpy as np
        import engine

        def work():
            for kind in ("float32", "float64", "complex128"):
                @numba.njit
                def product(a):
                    return np.diag(a) * np.sort(np.ones(2)).astype(a.dtype)
                results.append(product(np.eye(2, dtype=kind)).tolist())

        results = []
        thread = threading.Thread(target=work)
        thread.start()
        x = engine.ones(2, 3)
        print(engine.softmax(x, 1).sum().item(), engine.nn.functional.gelu(x).shape, engine.log_softmax(x, 1).shape)
        thread.join()
        print(results == [[1, 1]] * 3)
        """
    out, error = run(tmp_path, textwrap.dedent(beside))
    assert out.splitlines()[-1] == "True", error


def test_what_others_may_write_is_not_loaded(tmp_path: Path, kept: Callable[[Path], Path]) -> None:
    """File, folder, and the folder around that; the last leads to a folder of the user's own."""
    path = kept(tmp_path)
    path.chmod(0o620)
    out, error = run(tmp_path)
    assert out == "30.0 1"
    assert error.count("RuntimeWarning: compiled kernels run with the rights of who loads them") == 1
    assert f"{path} can be written by others (mode 620; chmod go-w takes that away)" in error
    assert run(tmp_path)[0] == "30.0 0"  # it has been replaced
    path.parent.chmod(0o770)
    out, error = run(tmp_path)
    assert out == "30.0 1"
    assert f"{path.parent} can be written by others (mode 770" in error
    path.parent.chmod(0o700)
    path.parent.parent.chmod(0o702)
    own = tmp_path / f"allstride-{os.geteuid()}"
    for compiled in ("1", "0"):
        out, error = run(tmp_path)
        assert out == f"30.0 {compiled}"
        assert f"{path.parent.parent} can be written by others (mode 702" in error
        assert re.search(rf"kernels are kept in {own} instead", error)


def test_a_link_in_place_of_a_kernel_is_not_followed(tmp_path: Path, kept: Callable[[Path], Path]) -> None:
    path = kept(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    out, error = run(tmp_path)
    assert out == "30.0 1"
    assert "RuntimeWarning: cannot read compiled kernels" in error
    assert not path.is_symlink()


def test_a_kernel_at_the_place_of_another_is_not_taken_for_it(tmp_path: Path, kept: Callable[[Path], Path]) -> None:
    """Nor one for another machine: each file says what it is."""
    path = kept(tmp_path)
    content = path.read_bytes()
    for word in (b"buckets.sum_of_squares", b'"cpu": ', b'"features": ', b'"numba": ', b'"numpy": ', b'"source": '):
        assert word in content
    run(tmp_path, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="")
    [other] = [one for one in path.parent.parent.rglob("buckets.*") if one != path]
    other.replace(path)
    out, error = run(tmp_path)
    assert out == "30.0 1"
    assert f"RuntimeWarning: compiled kernel {path} is damaged and is compiled again" in error


def test_code_that_calls_what_this_process_has_not_is_compiled_again(
    tmp_path: Path, kept: Callable[[Path], Path]
) -> None:
    """As that which calls a library of vector functions that is gone."""
    path = kept(tmp_path)
    content = path.read_bytes()[32:].replace(b"PyFloat_FromDouble", b"PyFloat_FromNowher")
    path.write_bytes(hashlib.sha256(content).digest() + content)
    assert run(tmp_path)[0] == "30.0 1"
    assert run(tmp_path)[0] == "30.0 0"


def test_a_narrower_cpu_compiles_its_own(tmp_path: Path) -> None:
    assert run(tmp_path)[0] == "30.0 1"
    assert run(tmp_path, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")[0] == "30.0 1"
    assert run(tmp_path, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")[0] == "30.0 0"
    assert run(tmp_path)[0] == "30.0 0"


def test_the_width_of_vectors_decides_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of this CPU, whatever Numba has been told to compile for."""
    builds = set()
    for width in (16, 32, 64):
        monkeypatch.setattr(cache, "vector_bytes", lambda width=width: width)
        builds.add(cache.build.__wrapped__())
    assert len(builds) == 3


@ROOT
def test_what_another_user_has_put_there_is_not_loaded(open_place: Path, kept: Callable[[Path], Path]) -> None:
    """He makes the folder, with a kernel of the right name in it that would run his code."""
    path = kept(open_place)
    for one in (open_place / "allstride", path.parent, path):
        os.chown(one, NOBODY, NOBODY)
    for one in (open_place / "allstride", path.parent):
        one.chmod(0o755)
    path.chmod(0o644)
    out, error = run(open_place)
    assert out == "30.0 1"
    assert f"{open_place}/allstride belongs to user {NOBODY}" in error
    assert f"kept in {open_place}/allstride-0 instead" in error
    os.chown(open_place / "allstride", 0, 0)
    out, error = run(open_place)
    assert out == "30.0 1"
    assert f"{path.parent} belongs to user {NOBODY}" in error
    os.chown(path.parent, 0, 0)
    out, error = run(open_place)
    assert out == "30.0 1"
    assert f"{path} belongs to user {NOBODY}" in error


@ROOT
def test_what_root_keeps_for_all_is_read_by_all(open_place: Path, kept: Callable[[Path], Path]) -> None:
    """And where root has kept nothing for others, a user has a folder of his own."""
    path = kept(open_place)
    out, error = run(open_place, AS_NOBODY)
    assert out == "30.0 1"
    assert f"kept in {open_place}/allstride-{NOBODY} instead" in error
    store.open_to_readers(path.parent)
    assert run(open_place, AS_NOBODY) == ("30.0 0", "")


@ROOT
def test_a_cache_that_can_only_be_read(open_place: Path) -> None:
    (open_place / "allstride").mkdir(0o755)
    out, error = run(open_place, AS_NOBODY)
    assert out == "30.0 1"
    assert error.count("RuntimeWarning") == 1
    assert "cannot keep compiled kernels in" in error


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    """Files of this process may have 1,000 bytes."""
    limited = f"import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{SUM}".replace(
        "print(", "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nprint("
    )
    out, error = run(tmp_path, limited)
    assert out == "30.0 1"
    assert error.count("RuntimeWarning: cannot keep compiled kernels in") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_home_is_told_once(tmp_path: Path) -> None:
    code = f"import os; os.environ.pop('NUMBA_CACHE_DIR'); os.environ['HOME'] = {str(tmp_path / 'file')!r}\n{SUM}"
    (tmp_path / "file").touch()
    out, error = run(tmp_path, code, XDG_CACHE_HOME="")
    assert out == "30.0 1"
    assert error.count("RuntimeWarning: cannot keep compiled kernels in") == 1


def test_processes_that_start_together_compile_each_kernel_once(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(3)]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert sorted(out.strip() for out, _ in outputs) == ["30.0 0", "30.0 0", "30.0 1"], outputs
    assert [path.name.partition(".")[0] for path in tmp_path.rglob("*") if path.is_file()] == ["buckets"]


def test_who_waits_compiles_what_comes_next(tmp_path: Path) -> None:
    """While this process holds relu's lock, the other one compiles relu's backward; then it takes relu."""
    code = """
import numpy as np
from engine.kernels import jit
from engine.ops.activation.kernels import piecewise
print(piecewise._relu.disk_cache("f").path, piecewise._relu_backward.disk_cache("f").path, flush=True)
piecewise._relu["f"], piecewise._relu_backward["f"]
print(jit.compiled)
"""
    first = start(tmp_path, code.replace('piecewise._relu["f"], piecewise._relu_backward["f"]', ""))
    relu, backward = (Path(one) for one in first.communicate(timeout=300)[0].split()[:2])
    with store._claim(relu) as ours:
        assert ours
        process = start(tmp_path, code)
        deadline = time.monotonic() + 200
        while not backward.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not relu.exists()
    out, error = process.communicate(timeout=300)
    assert (process.returncode, out.split()[-1]) == (0, "2"), error
    assert relu.exists()


def test_the_lock_of_who_died_blocks_nobody(tmp_path: Path) -> None:
    """Killed while it compiles, and while it writes: what it leaves is no kernel, and is swept when it is old."""
    path = tmp_path / "allstride" / "build" / "kernel"
    holder = f"""
import os, pathlib, signal
from engine.kernels import store
def die(*_, **__):
    print("locked", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = die
with store.turn(pathlib.Path({str(path)!r}), lambda: False):
    store.write(pathlib.Path({str(path)!r}), b"half")
"""
    process = start(tmp_path, holder)
    assert process.communicate(timeout=300)[0] == "locked\n"
    assert process.returncode == -signal.SIGKILL
    [part] = path.parent.glob(".*.part")
    assert not store.is_claimed(path)
    assert store.read(path) is None
    store.write(path, b"whole")
    assert part.exists()  # it may be somebody's who still writes
    os.utime(part, (0, 0))
    store._sweep.cache_clear()
    store.write(path, b"whole")
    assert [one.name for one in path.parent.iterdir()] == ["kernel"]
    assert store.read(path) == b"whole"


def test_another_host_has_locks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "allstride" / "build" / "kernel"
    with store._claim(path) as ours:
        assert ours
        assert store.is_claimed(path)
        monkeypatch.setattr(store.platform, "node", lambda: "elsewhere")
        assert not store.is_claimed(path)


def test_who_compiles_is_told_so_in_one_line_and_who_reads_is_not(tmp_path: Path) -> None:
    twice = f"{SUM}\nprint(buckets.sum_of_squares(np.arange(5, dtype='float32')))"
    out, error = run(tmp_path, twice)
    assert out == "30.0 1\n30.0"
    told = "allstride: compiling about 1 kernel for this CPU; they are kept in"
    assert error.startswith(f"{told} {entry_folder(tmp_path)}, so that it happens once\n")
    assert error.count("\n") == 1
    assert run(tmp_path, twice) == ("30.0 0\n30.0", "")


def entry_folder(place: Path) -> Path:
    [found] = (place / "allstride").iterdir()
    return found


def test_what_comes_next_is_in_the_order_of_programs() -> None:
    """Each name is a kernel's, and what two courses share leads from one to the other."""
    assert [name for course in waiting._COURSES for name in course if jit._named(name) is None] == []
    after = waiting.next_after("conv.packing.repack_strided")
    assert after[:2] == ["conv.layout.pad", "conv.correlate.correlate"]
    assert after.index("loss.cross_entropy_forward") < after.index("optim.adam")
    assert waiting.next_after("a.f_forward") == ["a.f_backward"]
    assert "conv.packing.repack_strided" not in waiting.next_after("optim.adam")


def test_a_first_kernel_that_leads_nowhere_does_not_spend_the_line(tmp_path: Path) -> None:
    program = """
from engine.ops.reduce.kernels import slices as kernels
waiting._A_MOMENT = 600
kernels._sum_slices["f"]
bias._add_bias["f"]
"""
    _, error = run(tmp_path, BIAS + program)
    assert error.startswith("allstride: compiling about 2 kernels for this CPU; they are kept in")
    assert error.count("\n") == 1


BIAS = """
import os, time
from engine.kernels import ahead, jit, waiting
from engine.ops.matmul.kernels import bias
waiting._COURSES = (("matmul.bias.add_bias", "matmul.bias.column_sums"),)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor, which the program has")
def test_a_free_processor_compiles_what_comes_next(tmp_path: Path) -> None:
    program = """
bias._add_bias["f"]
while not bias._column_sums.disk_cache("f").is_there():
    time.sleep(0.01)
bias._column_sums["f"]
print(jit.compiled, ahead._started)
"""
    out, error = run(tmp_path, BIAS + program)
    assert out == "1 True"
    assert error.startswith("allstride: compiling about 2 kernels for this CPU; they are kept in")
    assert error.count("\n") == 1


@pytest.mark.parametrize("why", ["one processor", "MPI"])
def test_who_has_no_processor_to_spare_compiles_alone(tmp_path: Path, why: str) -> None:
    before = {
        "one processor": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n",
        "MPI": "import sys, types\nsys.modules['mpi4py.MPI'] = types.ModuleType('mpi4py.MPI')\n",
    }[why]
    out, _ = run(
        tmp_path,
        BIAS + before + "bias._add_bias['f']\nbias._column_sums['f']\nprint(jit.compiled, ahead._started)",
    )
    assert out == "2 False"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor, which the program has")
def test_the_copy_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Even where it would go on for ever, and holds none of the program's files meanwhile."""
    note = tmp_path / "pid"
    program = f"""
import pathlib, signal
def work():
    part = pathlib.Path({str(note)!r} + ".part")
    part.write_text(f"{{os.getpid()}} {{sorted(map(int, os.listdir('/proc/self/fd')))}}")
    part.rename({str(note)!r})
    signal.alarm(0)
    time.sleep(3600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = open(os.devnull)
ahead.start(work)
while not os.path.exists({str(note)!r}):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = start(tmp_path, BIAS + program)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    pid, _, descriptors = note.read_text().partition(" ")
    assert descriptors == "[0, 1, 2, 3]"  # the last one is the listing's
    while Path("/proc", pid).exists() and "\nState:\tZ" not in Path("/proc", pid, "status").read_text():
        pass
