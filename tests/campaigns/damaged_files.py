"""Loads damaged and hostile checkpoints: cut at every byte, mutated at random, and crafted.

    python -m tests.campaigns.damaged_files --mutations 10000

Each of them must end in one clear error that names the file, or be the content that was saved: no other exception, no
crash, no hang, no other content, and no more memory than the file's order (a limit on the process's address space turns
that into an error as well). Prints a table; exit code 1 where something else came.
"""

import argparse
import io
import json
import pickle
import pickletools
import random
import resource
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

import engine
from engine.serialization import container, structure
from engine.serialization.restricted import RestrictedUnpickler
from engine.serialization.torch_archive import Archive, Writer

_SPARE = 256 << 20  # bytes of memory that all of it may take beyond what is there at the beginning
_CLEAR = (RuntimeError, pickle.UnpicklingError)


class Settings:
    """A class that its reader allows."""

    def __init__(self) -> None:
        self.depth = 3
        self.names = ["a", "b"]
        self.table = {"x": 1.5, 2: (True, None)}


def saved(value: Any, format: Literal["safetensors", "torch"] = "safetensors") -> bytes:
    """What `save` writes."""
    file = io.BytesIO()
    engine.save(value, file, format=format)
    return file.getvalue()


def torch_file(text: bytes) -> bytes:
    """An archive as torch.save writes it, with this pickle and a storage of four float32."""
    file = io.BytesIO()
    archive = Writer(file)
    for name, content in (("data.pkl", text), ("byteorder", b"little"), ("data/0", bytes(16)), ("version", b"3\n")):
        archive.write(name, content)
    archive.close()
    return file.getvalue()


def data() -> dict[str, Any]:
    """A small checkpoint of every kind of data."""
    generator = engine.Generator().manual_seed(1)
    return {
        "model": {"w": engine.randn(4, 3, generator=generator), "mask": engine.tensor([True, False, True])},
        "images": engine.randn(2, 3, 4, 4, generator=generator).to(memory_format=engine.channels_last),
        "wave": engine.tensor([1 + 2j, 3 - 1j], dtype=engine.complex128),
        "array": np.arange(5),
        "epoch": 7,
        "lr": 0.1,
        "name": "run",
        "key": b"\x00\x01",
        "betas": (0.9, 0.999),
        "kind": engine.bfloat16,
        "steps": [1, 2, [3, None]],
    }


def content_of_torch() -> dict[str, Any]:
    """The same without what PyTorch's files do not hold, on storages of four float32."""
    base = engine.zeros(4)
    kept = {name: value for name, value in data().items() if not isinstance(value, np.ndarray | engine.Tensor)}
    return kept | {
        "model": OrderedDict(w=base[:2], b=base.view(2, 2).t()),
        "parameter": engine.nn.Parameter(base[1:]),
        "size": engine.Size([1, 2]),
        "set": {1, 2},
        "device": engine.device("cpu"),
    }


def whole_object() -> Settings:
    """A small object with tensors, an array and a number of NumPy's."""
    made = Settings()
    made.weight = engine.nn.Parameter(engine.ones(3))
    made.array = np.arange(3.0)
    made.number = np.float32(0.5)
    made.kind = np.dtype("float64")
    return made


# --- the damages ------------------------------------------------------------------------------------------------------


def truncations(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Every beginning of a file."""
    for length in range(len(content)):
        yield f"cut at {length}", content[:length]


def mutations(content: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Flipped bits, other bytes, runs that are removed, doubled, swapped, zeroed, or numbers that are huge."""
    draw = random.Random(seed)
    for number in range(count):
        changed = bytearray(content)
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            at = draw.randrange(len(changed))
            until = min(len(changed), at + draw.choice((1, 4, 16)))
            kind = draw.randrange(7)
            if kind == 0:
                changed[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                changed[at] = draw.randrange(256)
            elif kind == 2 and len(changed) > 32:
                del changed[at:until]
            elif kind == 3:
                changed[at:at] = changed[at:until]
            elif kind == 4:
                changed[at:until] = bytes(until - at)
            elif kind == 5:
                changed[at:until] = b"\xff" * (until - at)
            else:
                other = draw.randrange(len(changed))
                changed[at], changed[other] = changed[other], changed[at]
        if bytes(changed) != content:
            yield f"mutation {number} of seed {seed}", bytes(changed)


def file_of(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def with_content(content: Any) -> bytes:
    """A file whose checksums are right, and whose content is anything."""
    tensors: dict[str, engine.Tensor] = {}
    structure.pack(data(), tensors)
    file = io.BytesIO()
    container.write(file, content, tensors | {"w": engine.ones(4), "flags": engine.tensor([True])})
    return file.getvalue()


def crafted() -> Iterator[tuple[str, bytes]]:
    """Files made to crash, to hang, or to fill the memory."""
    whole = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    yield "nothing", b""
    yield "a length alone", b"\xff" * 8
    yield "a header longer than the file", (1 << 40).to_bytes(8, "little") + b"{}"
    yield "a header that is no object", file_of(b"[1]")
    yield "nested deeply", file_of(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    yield "a number of many digits", file_of(b'{"w": ' + b"9" * 100_000 + b"}")
    yield "a metadata that is no object", file_of({"__metadata__": 3})
    yield "petabytes", file_of({"w": {"dtype": "F32", "shape": [1 << 50], "data_offsets": [0, 1 << 52]}})
    yield "a product that overflows", file_of({"w": {"dtype": "F32", "shape": [1 << 61, 8], "data_offsets": [0, 0]}})
    yield "no elements, huge sizes", file_of({"w": {"dtype": "F32", "shape": [0, 1 << 61], "data_offsets": [0, 0]}})
    yield "65 dimensions", file_of({"w": whole | {"shape": [1] * 65}}, bytes(4))
    yield "a negative size", file_of({"w": whole | {"shape": [-1]}}, bytes(4))
    yield "a size that is no integer", file_of({"w": whole | {"shape": [1.0]}}, bytes(4))
    yield "a size that is a truth", file_of({"w": whole | {"shape": [True]}}, bytes(4))
    yield "offsets turned round", file_of({"w": whole | {"data_offsets": [4, 0]}}, bytes(4))
    yield "tensors that overlap", file_of({"v": whole, "w": whole}, bytes(4))
    yield "a gap", file_of({"w": whole | {"data_offsets": [4, 8]}}, bytes(8))
    yield "bytes behind the last tensor", file_of({"w": whole}, bytes(5))
    yield "an unknown dtype", file_of({"w": whole | {"dtype": "F4"}}, bytes(4))
    yield "truths that are neither", file_of({"w": whole | {"dtype": "BOOL", "shape": [4]}}, b"\x00\x01\x02\x03")
    yield "one key of ours alone", file_of({"__metadata__": {"engine.content": "1"}})
    for content in (
        {"list": {"a": 1}},
        {"dict": [[1]]},
        {"dict": [[{"list": []}, 1]]},
        {"tensor": "missing", "stride": [1], "requires_grad": False},
        {"tensor": "w", "stride": [1 << 63], "requires_grad": False},
        {"tensor": "w", "stride": [1, 1], "requires_grad": False},
        {"tensor": "w", "stride": [1], "requires_grad": False, "device": "nowhere"},
        {"tensor": "flags", "stride": [1], "requires_grad": False, "dtype": "complex128"},
        {"array": 1},
        {"float": "x"},
        {"bytes": "*"},
        {"dtype": "object"},
        {"complex": ["0x0p0"]},
        {"import": "os"},
        {"object": [1, 2]},
        [1, 2],
    ):
        yield f"content {content}", with_content(content)
    deep: Any = 1
    for _ in range(300):
        deep = {"list": [deep]}
    yield "content nested deeply", with_content(deep).replace(b"engine.header", b"engine.hidden")


def crafted_pickles() -> Iterator[tuple[str, bytes]]:
    """Pickles that build, call or fill what they must not."""
    head = b"\x80\x04"

    def name(module: str, attribute: str) -> bytes:
        return b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, attribute)) + b"\x93"

    state = b"N}\x8c\x04evilK\x01s\x86b."
    yield "an attribute on a class", head + name("engine.tensor", "Tensor") + state
    yield "an attribute on a function", head + name("engine.rules.dtypes", "named") + state
    yield "an attribute on a dtype", head + name("engine.rules.dtypes", "named") + b"\x8c\x07float32\x85R" + state
    yield "a call of the system", head + name("os", "system") + b"\x8c\x04true\x85R."
    yield "NumPy's reconstructor", head + name("numpy._core.multiarray", "_reconstruct") + b"."
    yield "a dtype with a state", head + name("numpy", "dtype") + b"\x8c\x02V8\x85R."
    yield "a tensor that is called", head + name("engine.tensor", "Tensor") + b")R."
    yield "a class of tensors made anew", head + name("engine.tensor", "Tensor") + b")\x81."
    yield "a list that is a device", head + name("engine.rules.device", "device") + b"\x8c\x03cpu\x85RK\x01a."
    yield "bytes without an end", head + b"\x8e" + (1 << 40).to_bytes(8, "little") + b"x."
    yield "text without an end", head + b"\x8d" + (1 << 62).to_bytes(8, "little") + b"x."
    yield "an array of bytes without an end", head + b"\x96" + (1 << 40).to_bytes(8, "little") + b"x."
    yield "a number without an end", head + b"\x8b" + (1 << 30).to_bytes(4, "little") + b"x."
    yield "a frame without an end", head + b"\x95" + (1 << 40).to_bytes(8, "little") + b"N."
    yield "a far place in the memo", head + b"Kr" + b"r" + (1 << 31).to_bytes(4, "little") + b"."
    yield "a key that is hashed for ever", head + b"K\x01" + b"2\x86" * 60 + b"}\x94h\x00K\x01s."
    yield "the same, in a dict", head + b"})" + b"2\x86" * 60 + b"K\x01s."
    yield "the same, in a set", head + b"\x8f()" + b"2\x86" * 60 + b"\x90."
    yield "an instance by the old opcode", head + b"(ios\nsystem\n."
    yield "an extension", head + b"\x82\x01."
    yield "no end", head + b"N"
    yield "an empty stack", head + b"."
    yield "a reference to nothing", head + b"h\x07."
    yield "a tensor that is not there", head + b"\x8c\x06tensorK\x63\x86Q."
    yield "a persistent reference that is no tuple", head + b"K\x01Q."


def crafted_torch_pickles() -> Iterator[tuple[str, bytes]]:
    """The pickle in a file of torch.save's that builds, calls or reaches what it must not."""
    head = b"\x80\x02"

    def name(module: str, attribute: str) -> bytes:
        return f"c{module}\n{attribute}\n".encode()

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def storage(kind: str = "FloatStorage", key: bytes = text("0"), count: bytes = b"K\x04") -> bytes:
        return b"(" + text("storage") + name("torch", kind) + key + text("cpu") + count + b"tQ"

    def tensor(offset: bytes, size: bytes, stride: bytes, rest: bytes = b"\x89N", of: bytes = storage()) -> bytes:
        return name("torch._utils", "_rebuild_tensor_v2") + b"(" + of + offset + size + stride + rest + b"tR"

    state = b"N}" + text("evil") + b"K\x01s\x86b."
    one, big = b"K\x01\x85", b"\x8a\x08" + (1 << 62).to_bytes(8, "little")
    doubled = b")" + b"2\x86" * 60
    for module, attribute in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch", "FloatStorage")):
        yield f"an attribute on {attribute}", head + name(module, attribute) + state
        yield f"a call of {attribute}", head + name(module, attribute) + b")R."
        yield f"a new {attribute}", head + name(module, attribute) + b")\x81."
    yield "an attribute on a function", head + name("torch._utils", "_rebuild_tensor_v2") + state
    yield "an attribute on a tensor", head + tensor(b"K\x00", one, one) + state
    yield "a tensor's own attribute", (
        head + name("torch._tensor", "_rebuild_from_type_v2") + b"(" + name("torch._utils", "_rebuild_parameter")
        + name("torch", "Tensor") + tensor(b"K\x00", one, one) + b"\x89\x86}" + text("backward") + b"K\x01stR."
    )  # fmt: skip
    yield "a call of the system", head + name("os", "system") + text("true") + b"\x85R."
    yield "NumPy's reconstructor", head + name("numpy._core.multiarray", "_reconstruct") + b"."
    yield "NumPy's dtype", head + name("numpy", "dtype") + text("O8") + b"\x89\x88\x87R."
    yield "getattr", head + name("builtins", "getattr") + b"."
    yield "a tensor beyond its storage", head + tensor(b"K\x01", b"K\x04\x85", one) + b"."
    yield "an offset beyond its storage", head + tensor(big, one, one) + b"."
    yield "strides beyond its storage", head + tensor(b"K\x00", b"K\x02\x85", b"K\x04\x85") + b"."
    yield "a negative offset", head + tensor(b"J\xff\xff\xff\xff", one, one) + b"."
    yield "a negative stride", head + tensor(b"K\x03", b"K\x02\x85", b"J\xff\xff\xff\xff\x85") + b"."
    yield "a huge tensor on one element", head + tensor(b"K\x00", big + b"\x85", b"K\x00\x85") + b"."
    yield "65 axes", head + tensor(b"K\x00", b"(" + b"K\x01" * 65 + b"t", b"(" + b"K\x01" * 65 + b"t") + b"."
    yield "a size that is a truth", head + tensor(b"K\x00", b"\x88\x85", one) + b"."
    yield "a storage of another dtype", head + storage() + b"0" + storage("IntStorage") + b"."
    yield "a storage of another size", head + storage(count=big) + b"."
    yield "a storage that is not there", head + storage(key=text("1")) + b"."
    yield "a storage above the archive", head + storage(key=text("../byteorder")) + b"."
    yield "a storage whose name is hashed for ever", head + storage(key=doubled) + b"."
    yield "a set that is hashed for ever", head + name("builtins", "set") + b"](" + doubled + b"e\x85R."
    yield "a name that is hashed for ever", head + name("torch", "device") + doubled + b"\x85R."
    yield "sizes that are shown for ever", head + name("torch", "Size") + doubled + b"\x85R" + doubled + b"R."
    yield "a call of what is shown for ever", head + doubled + b")R."
    yield "a dict that is hashed for ever", head + name("collections", "OrderedDict") + b"]]" + doubled + b"aNaa\x85R."
    yield (
        "an array of bytes of any length",
        head + name("builtins", "bytearray") + b"\x8a\x05\x00\x00\x00\x00\x10\x85R.",
    )
    yield "bytes of a length that is not there", head + b"\x96" + (1 << 40).to_bytes(8, "little") + b"x."
    yield "a sparse tensor", head + name("torch._utils", "_rebuild_sparse_tensor") + b"."


# --- what came of them ------------------------------------------------------------------------------------------------


def same(left: Any, right: Any) -> bool:
    """Equal in values, types, dtypes and strides."""
    if type(left) is not type(right):
        return False
    if isinstance(left, engine.Tensor):
        return left.dtype is right.dtype and left.stride() == right.stride() and engine.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Settings):
        return same(left.__dict__, right.__dict__)
    return bool(left == right)


def outcome(read: Callable[[bytes], Any], content: bytes, original: Any) -> str:
    """What reading `content` gave: "refused", "equal", or what was wrong."""
    try:
        value = read(content)
    except _CLEAR as error:
        return "refused" if "checkpoint.pt" in str(error) else f"an error that does not name the file: {error!r:.200}"
    except BaseException as error:  # noqa: BLE001 - whatever else comes is what is looked for
        return f"{type(error).__name__}: {error!s:.200}"
    return "equal" if same(value, original) else f"other content: {value!r:.200}"


def read_file(content: bytes) -> Any:
    """`load` of a file in memory."""
    file = io.BytesIO(content)
    file.name = "checkpoint.pt"  # type: ignore[attr-defined]
    with engine.serialization.safe_globals([Settings]):
        return engine.load(file)


def read_pickle(content: bytes) -> Any:
    """What the restricted unpickler makes of a pickle beside no tensors."""
    values = [engine.ones(3), np.arange(3.0), np.array(0.5, np.float32), np.dtype("float64")]

    def refer(identity: Any) -> Any:
        kind, place, *_ = identity
        return values[3] if kind == "dtype" else values[place]

    return RestrictedUnpickler(content, "checkpoint.pt", [Settings], refer).load()


def text_of(value: Any) -> bytes:
    """The pickle in the file of a whole object."""
    header = container.read_header(io.BytesIO(saved(value)), "checkpoint.pt")
    (entry,) = (each for each in header.entries if each.name == "engine.pickle")
    return saved(value)[entry.begin : entry.begin + entry.size]


def campaign(count: int, seed: int) -> dict[str, Counter[str]]:
    """The outcomes by kind of damage. A damage whose file cannot be told from an undamaged one may load."""
    content, thing = data(), whole_object()
    table: dict[str, Counter[str]] = {}

    def run(kind: str, cases: Iterable[tuple[str, bytes]], read: Callable[[bytes], Any], original: Any) -> None:
        found = table.setdefault(kind, Counter())
        for name, damaged in cases:
            result = outcome(read, damaged, original)
            found[result if result in ("refused", "equal") else f"{name}: {result}"] += 1

    for kind, value in (("data", content), ("objects", thing)):
        whole = saved(value)
        assert outcome(read_file, whole, value) == "equal"
        run(f"{kind}, cut at every byte", truncations(whole), read_file, value)
        run(f"{kind}, mutated", mutations(whole, count // 2, seed), read_file, value)
    whole = saved(content_of_torch(), "torch")
    original = content_of_torch()
    assert outcome(read_file, whole, original) == "equal"
    run("torch.save, cut at every byte", truncations(whole), read_file, original)
    run("torch.save, mutated", mutations(whole, count // 2, seed), read_file, original)
    hostile = ((name, torch_file(each)) for name, each in crafted_torch_pickles())
    run("torch.save, crafted", hostile, read_file, None)
    run("crafted files", crafted(), read_file, None)
    run("crafted pickles", crafted_pickles(), read_pickle, None)

    # Behind the checksums: what somebody writes who computes them as well. Any content of harmless types may come.
    text = text_of(thing)
    pickletools.dis(text, io.StringIO())
    for name, damaged in mutations(text, count, seed):
        result = outcome(read_pickle, damaged, None)
        found = table.setdefault("pickles behind right checksums", Counter())
        found["refused" if result == "refused" else _harmless(name, result)] += 1
    text = Archive(io.BytesIO(whole), "checkpoint.pt").read("data.pkl")
    for name, damaged in mutations(text, count, seed):
        result = outcome(read_file, torch_file(damaged), None)
        found = table.setdefault("torch.save behind right checksums", Counter())
        found["refused" if result == "refused" else _harmless(name, result)] += 1
    inner = json.dumps(container.read_header(io.BytesIO(saved(content)), "checkpoint.pt").content).encode()
    for name, damaged in mutations(inner, count, seed):
        try:
            changed = json.loads(damaged)
        except (ValueError, RecursionError):
            continue
        result = outcome(read_file, with_content(changed), None)
        found = table.setdefault("content behind right checksums", Counter())
        found["refused" if result == "refused" else _harmless(name, result)] += 1
    return table


def _harmless(name: str, result: str) -> str:
    return "loaded" if result == "equal" or result.startswith("other content: ") else f"{name}: {result}"


def failures(table: dict[str, Counter[str]]) -> list[str]:
    """The outcomes that must not be."""
    return [
        f"{kind}: {result}"
        for kind, results in table.items()
        for result in results
        if result not in ("refused", "equal", "loaded")
    ]


def limit_memory() -> None:
    """No more address space than there is now, and `_SPARE`: what asks for more gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _SPARE,) * 2)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    outcome(read_file, saved(whole_object()), None)  # everything is imported and warm
    limit_memory()
    table = campaign(options.mutations, options.seed)
    for kind, results in table.items():
        print(f"{kind:34}", ", ".join(f"{count} {result}" for result, count in results.most_common(4)))
    wrong = failures(table)
    print(
        *wrong[:20], f"{sum(map(Counter.total, table.values()))} files, {len(wrong)} kinds of wrong outcome", sep="\n"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
