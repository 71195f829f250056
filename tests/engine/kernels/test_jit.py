"""Lazy compilation, dispatch, and the disk cache under concurrency, damage and unwritable directories."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine import kernels
from engine.kernels import cache, files, jit, language
from engine.ops.buckets import kernels as buckets
from engine.ops.softmax import kernels as softmax

PACKAGE = Path(kernels.__file__).parent
SUM = (
    "import numpy as np; from engine.ops.buckets import kernels as buckets; "
    "print(buckets.sum_of_squares(np.arange(5.0)))"
)


def run(code, **settings):
    """A fresh Python in which warnings are shown; its standard output and error."""
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, env=os.environ | settings, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout.strip(), done.stderr


def cached(directory):
    return sorted(path for path in Path(directory).rglob("*") if path.is_file())


def test_importing_every_kernel_module_imports_no_numba():
    with_llvm = (
        "__init__",
        "__main__",
        "cache",
        "compiler",
        "intrinsics",
        "machine",
        "run",
        "squares",
        "tile",
        "wrapper",
    )
    modules = [path.stem for path in PACKAGE.glob("*.py") if path.stem not in with_llvm]
    assert len(files.modules()) > 15
    imports = "import " + ", ".join([*(f"engine.kernels.{each}" for each in modules), *files.modules()])
    out, _ = run(f"{imports}; import sys; print('numba' in sys.modules, 'llvmlite' in sys.modules)")
    assert out == "False False"


def test_every_kernel_compiles_for_every_dtype():
    declared = set()
    for module in files.modules():
        path = PACKAGE.parent.parent / (module.replace(".", "/") + ".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = [ast.unparse(decorator).partition("(")[0] for decorator in getattr(node, "decorator_list", [])]
            if "kernel" in names:
                declared.add(f"{jit._idea(module)}.{node.name.strip('_')}")
    warmed = kernels.warm()
    assert {(name, dtype) for name, dtype, _ in warmed} == {
        (name, dtype) for name in declared for dtype in jit.DTYPES.values()
    }
    for one in jit.registered():
        assert set(one) == set(jit.DTYPES), one.name


def test_what_is_compiled_serves_a_process_without_numba():
    kernels.warm()
    out, _ = run("import sys; from engine import kernels; kernels.warm(); print('numba' in sys.modules)")
    assert out == "False"


def test_unknown_dtype_names_the_known_ones():
    with pytest.raises(TypeError, match=r"buckets.sum_of_squares: dtype code 'e' .* 'f' \(float32\), 'd' \(float64\)"):
        buckets.sum_of_squares(np.zeros(3, "float16"))


def test_arrays_nobody_foresaw_are_refused_and_compile_nothing():
    x = np.zeros((4, 4), "float32")
    swapped = x.astype(x.dtype.newbyteorder())
    odd = np.frombuffer(bytes(65), "float32", 16, 1).reshape(4, 4)
    for bad in (x.T[:, :2], x.astype("float64"), x[0], swapped, odd, x.tolist(), None):
        with pytest.raises(TypeError, match=r"kernel softmax.softmax_forward: expected \(C-contiguous float32\[2d\], "):
            softmax._softmax_forward["f"](x, bad)
    for count in (0, 1, 3):
        with pytest.raises(TypeError, match="expected"):
            softmax._softmax_forward["f"](*[x] * count)


def test_read_only_inputs_are_accepted_and_read_only_outputs_are_not():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    x.flags.writeable = False
    assert softmax.softmax_forward(x).shape == (2, 3)
    with pytest.raises(TypeError, match=r"C-contiguous float32\[2d\] to be written\), got .* read-only\)"):
        softmax.softmax_forward(x, out=x)


def test_placeholders_refuse_to_run_uncompiled():
    found = [function for function in vars(language).values() if inspect.isfunction(function)]
    assert len(found) > 15
    for function in found:
        arguments = [np.zeros(1) for _ in inspect.signature(function).parameters]
        with pytest.raises(RuntimeError, match=rf"{function.__name__}\(.*\) exists only inside compiled kernels"):
            function(*arguments)


def test_ranks_that_compile_at_once_leave_one_whole_file_each(tmp_path):
    command = [sys.executable, "-W", "error", "-c", SUM]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["30.0"] * 3
    assert [path.name.rpartition(".")[0] for path in cached(tmp_path)] == ["buckets.sum_of_squares"]
    stamp = cached(tmp_path)[0].stat().st_mtime_ns
    assert run(SUM, NUMBA_CACHE_DIR=str(tmp_path)) == ("30.0", "")
    assert cached(tmp_path)[0].stat().st_mtime_ns == stamp


def test_a_damaged_file_is_told_and_replaced(tmp_path):
    run(SUM, NUMBA_CACHE_DIR=str(tmp_path))
    [path] = cached(tmp_path)
    whole = path.read_bytes()
    for damage in (whole[:-100], b"", whole[:500] + b"X" + whole[501:]):
        path.write_bytes(damage)
        out, error = run(SUM, NUMBA_CACHE_DIR=str(tmp_path))
        assert out == "30.0"
        assert f"RuntimeWarning: compiled kernel {path} is damaged and is compiled again" in error
        assert run(SUM, NUMBA_CACHE_DIR=str(tmp_path)) == ("30.0", "")


def test_a_directory_that_cannot_be_written_is_told_and_work_goes_on(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    twice = f"{SUM}; print(buckets.sum_of_squares(np.arange(5, dtype='float32')))"
    out, error = run(twice, NUMBA_CACHE_DIR=str(in_the_way))
    assert out == "30.0\n30.0"
    assert error.count("RuntimeWarning: cannot keep compiled kernels in") == 1
    assert "Set NUMBA_CACHE_DIR to a directory that can be written" in error


def test_unlike_cpus_do_not_share_a_directory(tmp_path):
    show = "from engine.kernels import cache; print(cache.cache_directory())"
    here, _ = run(show, NUMBA_CACHE_DIR=str(tmp_path))
    elsewhere, _ = run(show, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert here != elsewhere
    assert Path(here).parent == Path(elsewhere).parent == tmp_path / "allstride"


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_directory().parent == tmp_path / "xdg" / "allstride"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_directory().parent == tmp_path / ".cache" / "allstride"


def test_a_disabled_compiler_is_named_where_something_is_to_be_compiled(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run(SUM, NUMBA_DISABLE_JIT="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert "buckets.sum_of_squares needs Numba's compiler, but NUMBA_DISABLE_JIT is set" in failure.value.stderr
