"""NVRTC on a host: CUDA C++ becomes C++ for g++, which makes a shared object of it.

What differs between the languages is rewritten here; everything else is in `host/cuda.h`. Objects are kept in
`build.folder()` under the hash of what made them.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path

from tests.cuda_driver import build, dimensions

HOST = build.HERE / "host"
FLAGS = (
    *("-O1", "-fPIC", "-std=c++17", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-U_FORTIFY_SOURCE"),
    # Fibers change static variables behind the compiler's back.
    *("-fno-ipa-reference", "-fno-ipa-pure-const"),
    # Every access is reported to the driver.
    *("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"),
    # Functions of headers that no kernel calls took half of the compiler's time.
    "-fwhole-program",
)
# These say the line. Of CuPy's kernels, which are most, the driver finds a misaligned address without.
FLAGS_OF_OURS = ("-fsanitize=alignment,bounds",)
# Threads of a block. A thread has 255 registers at most, and a block 65536: so many threads a device starts of any
# kernel. One that declares another number has as many registers as that leaves it. CuPy's own need few registers.
UNDECLARED, UNDECLARED_OF_CUPY = 256, 1024


def machine_code(source: str, options: Sequence[str], instances: Sequence[str] = ()) -> str:
    """What stands for it: the path of a shared object, and in a second line the dimensions of the kernel's parameters,
    where it is CuPy's for any number of them. Instances of kernels that are templates, `name<int>`, are in the object
    as `instance_0` and so on.

    Raises: RuntimeError with the compiler's words.
    """
    cupys = "#include <cupy/" in source
    source, of_parameters = dimensions.widened(source) if cupys else (source, "")
    return f"{_compiled(source, cupys, options, instances)}\n{of_parameters}"


def _compiled(source: str, cupys: bool, options: Sequence[str], instances: Sequence[str]) -> Path:
    prelude = "cuda.h" if not cupys else "cupy_half.h" if "float16" in source else "cupy.h"
    included = tuple(each for each in options if each.startswith("-I"))
    text = _text(source, options, instances, UNDECLARED_OF_CUPY if cupys else UNDECLARED)
    path = _place(text, prelude, included)
    if not path.exists():
        header = _precompiled(prelude, included)
        with _alone(path), tempfile.TemporaryDirectory(dir=build.folder()) as scratch:
            if path.exists():
                return path
            file, objects, made = (Path(scratch, f"kernel.{suffix}") for suffix in ("cpp", "o", "so"))
            file.write_text(text)
            include = ("-include", str(header), *_folders(included))
            build._call("g++", *_flags(prelude), *include, "-c", str(file), "-o", str(objects))
            # Not by the compiler, which takes a third of its time again, and wants -fsanitize=thread's library.
            build._call("ld", "-shared", "-Bsymbolic", str(objects), "-o", str(made))
            os.replace(made, path)
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """The ranks of a job ask for the same at the same time: one of them compiles it. A lock serves many paths."""
    with open(build.folder() / f"{path.stem[:2]}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def syntax_error(code: str, options: Sequence[str]) -> str | None:
    """What g++ has to say against a source of this project, templates instantiated; None where it compiles."""
    included = tuple(build.headers())
    command = ("g++", *_flags("cuda.h"), "-include", str(_precompiled("cuda.h", included)), *_folders(included))
    text = _text(code, options, (), UNDECLARED)
    done = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=text, capture_output=True, text=True)
    return done.stderr if done.returncode else None


@cache
def _made_of() -> bytes:
    texts = [path.read_bytes() for path in sorted(HOST.rglob("*")) if path.is_file()]
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, check=True).stdout
    return b"\0".join([*texts, version, " ".join((*FLAGS, *FLAGS_OF_OURS)).encode()])


def _key(*parts: str) -> str:
    return hashlib.sha256(b"\0".join([_made_of(), *(part.encode() for part in parts)])).hexdigest()[:32]


def _place(text: str, prelude: str, included: Sequence[str]) -> Path:
    return build.folder() / f"{_key(text, prelude, *included)}.so"


def _flags(prelude: str) -> Sequence[str]:
    return FLAGS if prelude.startswith("cupy") else (*FLAGS, *FLAGS_OF_OURS)


def _folders(included: Sequence[str]) -> list[str]:
    return [f"-I{HOST}", f"-I{build.HERE / 'toolkit'}", *included]


@cache
def _precompiled(prelude: str, included: tuple[str, ...]) -> Path:
    """The header that comes first, precompiled: by far most of the text."""
    place = build.folder() / f"prelude-{_key(prelude, *included)}"
    header = place / prelude
    if not place.exists():
        with _alone(place), tempfile.TemporaryDirectory(dir=build.folder()) as scratch:
            if place.exists():
                return header
            part = Path(scratch, "part")
            part.mkdir()
            (part / prelude).write_text((HOST / prelude).read_text())
            build._call("g++", *_flags(prelude), *_folders(included), "-x", "c++-header", str(part / prelude))
            os.rename(part, place)
    return header


def kernel_heads(code: str) -> list[tuple[str, str]]:
    """Name and `__launch_bounds__` (or "") of each kernel of a source, templates left out."""
    bounds = r"(?:__launch_bounds__\s*\(([^)]*)\)\s+)?"
    found = re.findall(rf"(template\s*<[^;{{]*>\s*)?__global__\s+{bounds}void\s+{bounds}(\w+)\s*\(", code)
    return [(name, before or after) for template, before, after, name in found if not template]


def largest_blocks(code: str, options: Sequence[str], undeclared: int = UNDECLARED) -> dict[str, int]:
    """How many threads a block of each kernel may have: `__launch_bounds__`, a product of numbers, macros and
    constants, or `undeclared`."""
    code = _without_comments(code)
    values = dict(re.findall(r"#define\s+(\w+)\s+(\d+)\s*$", code, flags=re.MULTILINE))
    values.update(re.findall(r"\bconst int (\w+) = ([^;,]+);", code))
    values.update((name, text[0]) for name, *text in _macros(options) if text)

    def product(text: str) -> int:
        factors = [each.strip() for each in text.split("*")]
        return prod(int(each) if each.isdecimal() else product(values[each]) for each in factors)

    return {name: product(bounds) if bounds else undeclared for name, bounds in kernel_heads(code)}


def _macros(options: Sequence[str]) -> list[list[str]]:
    return [each[2:].split("=", 1) for each in options if each.startswith("-D")]


def _text(source: str, options: Sequence[str], instances: Sequence[str], undeclared: int) -> str:
    """The program in C++, its kernels' entries after it."""
    defined = "".join(f"#define {name} {text[0] if text else 1}\n" for name, *text in _macros(options))
    blocks = largest_blocks(source, options, undeclared)
    entries = [f"ENTRY({name}, {most}, {name})" for name, most in blocks.items()]
    entries += [f"ENTRY(instance_{i}, {undeclared}, {each})" for i, each in enumerate(instances)]
    return "\n".join([f'{defined}#line 1 "kernel.cu"', _for_host(_without_comments(source)), *entries, ""])


def _without_comments(code: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), code, flags=re.DOTALL)


_ALIGNED = r"(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?"


def _for_host(code: str) -> str:
    """Shared arrays become references to memory that the driver keeps; assembler becomes calls of functions."""
    code = re.sub(
        rf"extern\s+__shared__\s+{_ALIGNED}([\w:<> ]+?)\s+(\w+)\s*\[\s*\]\s*;",
        r"\1* \2 = (\1*)simulated::dynamic_shared;",
        code,
    )

    def fixed(found: re.Match[str]) -> str:
        arrays = re.findall(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:,|$)", found.group(2))
        return " ".join(f"SHARED_ARRAY({found.group(1)}, {name}, {dims.strip()});" for name, dims in arrays)

    code = re.sub(rf"__shared__\s+{_ALIGNED}((?:typename\s+)?[\w:]+(?:<[^;>]*>(?:::\w+)?)?)\s+(\w[^;]*);", fixed, code)
    if "__shared__" in code:
        raise RuntimeError("a declaration of shared memory that tests/cuda_driver/nvrtc.py does not know")
    return _without_assembler(code)


def _without_assembler(code: str) -> str:
    """`asm("name.of.operation %0, [%1], 16;" : outputs : inputs)` becomes `ptx::name_of_operation(out, in, 16)`, a
    function of `host/ptx.h`: operands in the instruction's order.
    """
    made, at = [], 0
    for found in re.finditer(r"\basm\s*(?:volatile\s*)?\(", code):
        start, end = found.end(), _closing(code, found.end())
        made += [code[at : found.start()], _call_of(code[start:end])]
        at = end + 1
    return "".join([*made, code[at:]])


def _closing(code: str, at: int) -> int:
    """Where the parenthesis closes that is open at `at`."""
    depth, inside = 1, False
    while True:
        if code[at] == '"':
            inside = not inside
        elif not inside and code[at] in "()":
            depth += 1 if code[at] == "(" else -1
            if depth == 0:
                return at
        at += 1


def _call_of(statement: str) -> str:
    literals = r'\s*((?:"[^"]*"\s*)+)'
    head = re.match(literals, statement)
    if head is None:
        raise RuntimeError(f"assembler that tests/cuda_driver/nvrtc.py does not know: {statement}")
    text = "".join(re.findall(r'"([^"]*)"', head.group(1)))
    operands = []
    for constraint in re.finditer(r'"[+=]?[a-z]"\s*\(', statement[head.end() :]):
        begin = head.end() + constraint.end()
        operands.append(statement[begin : _closing(statement, begin)])
    name, _, rest = text.strip().rstrip(";").partition(" ")
    order = [each for each in re.split(r"[\s,{}\[\]]+", rest) if each]
    chosen = [f"({operands[int(each[1:])]})" if each[0] == "%" else each for each in order]
    return f"ptx::{name.replace('.', '_')}({', '.join(chosen)})"
