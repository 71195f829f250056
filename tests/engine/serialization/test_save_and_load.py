"""`save` and `load`: tensors and plain data as safetensors, whole objects as pickles that are read only if allowed."""

import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import engine
from engine import nn, serialization
from engine.rules.spec import Size


class Settings:
    """Something that is more than data."""

    def __init__(self, depth: int) -> None:
        self.depth = depth


def round_trip(value: object, **options: object) -> object:
    file = io.BytesIO()
    engine.save(value, file)
    file.seek(0)
    return engine.load(file, **options)


def test_plain_data_comes_back_as_it_was() -> None:
    value = {
        "epoch": 3,
        "big": 2**70,
        "loss": float("inf"),
        "third": 1 / 3,
        "name": "run",
        "flags": (True, None),
        "nested": [OrderedDict(a=1), {"b": (2.5, [b"bytes"])}],
        7: "an integer key",
        "kind": engine.float16,
        "complex": 1 - 2j,
    }
    assert round_trip(value) == value
    assert type(round_trip(value)["nested"][0]) is OrderedDict


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
def test_tensors_keep_dtype_shape_and_values(kind: str) -> None:
    tensor = engine.arange(6).reshape(2, 3).to(getattr(engine, kind))
    loaded = round_trip({"t": tensor, "empty": tensor[:0], "number": tensor[1, 2]})
    assert loaded["t"].dtype is tensor.dtype
    assert engine.equal(loaded["t"], tensor)
    assert loaded["empty"].shape == (0, 3)
    assert loaded["number"].shape == ()


def test_layouts_and_requires_grad_are_kept() -> None:
    images = engine.randn(2, 3, 4, 4).to(memory_format=engine.channels_last).requires_grad_()
    loaded = round_trip([images, images.detach().t() if images.ndim == 2 else images.detach()[:, 1]])
    assert loaded[0].is_contiguous(memory_format=engine.channels_last)
    assert loaded[0].requires_grad
    assert engine.equal(loaded[1], images.detach()[:, 1])


def test_numpy_arrays_come_back_as_arrays() -> None:
    loaded = round_trip({"a": np.arange(3.0), "n": np.float32(0.5)})
    assert isinstance(loaded["a"], np.ndarray)
    assert loaded["a"].tolist() == [0.0, 1.0, 2.0]
    assert loaded["n"] == 0.5


def test_state_dicts_of_model_optimizer_and_scheduler(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = engine.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = engine.optim.lr_scheduler.StepLR(optimizer, 1)
    model(engine.randn(4, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    path = tmp_path / "checkpoint.pt"
    engine.save(state, path)
    loaded = engine.load(path)
    fresh = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    fresh.load_state_dict(loaded["model"])
    other = engine.optim.AdamW(fresh.parameters())
    other.load_state_dict(loaded["optimizer"])
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert engine.equal(other.state[fresh[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    assert loaded["scheduler"]["last_epoch"] == 1


def test_a_flat_dict_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    engine.save({"w": engine.ones(2, 2)}, tmp_path / "a")
    assert load_file(tmp_path / "a")["w"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    save_file({"v": np.arange(3, dtype=np.float32)}, tmp_path / "b")
    assert engine.load(str(tmp_path / "b"))["v"].tolist() == [0.0, 1.0, 2.0]


def test_map_location() -> None:
    state = {"w": engine.ones(2)}
    assert round_trip(state, map_location="cpu")["w"].device.type == "cpu"
    assert round_trip(state, map_location={"cpu": "meta"})["w"].is_meta
    assert round_trip(state, map_location=engine.device("meta"))["w"].is_meta
    assert (round_trip(state, map_location=lambda tensor, where: tensor * 2)["w"] == 2).all()
    assert (round_trip(state, map_location=lambda tensor, where: None)["w"] == 1).all()


def test_the_file_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    engine.save([1], path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        engine.save([2], path)
    assert engine.load(path) == [1]
    assert os.listdir(tmp_path) == ["model"]


def test_truncated_and_foreign_files_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    engine.save({"w": engine.ones(100)}, whole)
    (tmp_path / "half").write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(RuntimeError, match=r"load: .*half is no complete checkpoint: truncated"):
        engine.load(tmp_path / "half")
    (tmp_path / "torch").write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(RuntimeError, match="torch is no complete checkpoint"):
        engine.load(tmp_path / "torch")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(RuntimeError, match="pickles are not executed"):
        engine.load(tmp_path / "pickle")
    with pytest.raises(FileNotFoundError):
        engine.load(tmp_path / "nowhere")


def test_a_header_may_have_any_length() -> None:
    """Its first bytes are that length: 0x80 and "PK", with which pickles and archives begin, are lengths, too."""
    beginnings = set()
    for size in [*range(1, 50), *range(4_700, 4_820)]:
        file = io.BytesIO()
        engine.save({"x" * size: engine.ones(1)}, file)
        beginnings |= {file.getvalue()[:1], file.getvalue()[:2]}
        file.seek(0)
        assert list(engine.load(file)) == ["x" * size]
    assert {b"\x80", b"PK"} <= beginnings


def test_whole_objects_load_when_trusted() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    loaded = round_trip(model, weights_only=False)
    assert repr(loaded) == repr(model)
    assert engine.equal(loaded[0].weight, model[0].weight)
    x = engine.ones(1, 2)
    assert engine.equal(loaded(x), model(x))
    both = round_trip({"model": model, "epoch": 2}, weights_only=False, map_location="meta")
    assert both["model"][0].weight.is_meta
    assert both["epoch"] == 2


def test_whole_objects_are_refused_unless_allowed() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"holds .*Settings, and building it can run any code"):
        round_trip(Settings(3))
    with serialization.safe_globals([Settings]):
        assert round_trip(Settings(3)).depth == 3
        assert serialization.get_safe_globals() == [Settings]
    with pytest.raises(pickle.UnpicklingError, match=r"add_safe_globals\(\[Settings\]\)"):
        round_trip(Settings(3))
    serialization.add_safe_globals([Settings])
    try:
        assert round_trip([Settings(4), engine.ones(2)])[0].depth == 4
    finally:
        serialization.clear_safe_globals()
    assert serialization.get_safe_globals() == []


def test_data_inside_of_pickles_needs_no_permission() -> None:
    with serialization.safe_globals([SimpleNamespace]):
        loaded = round_trip(
            SimpleNamespace(
                w=nn.Parameter(engine.ones(2)),
                size=Size((1, 2)),
                kind=engine.bfloat16,
                device=engine.device("cpu"),
                array=np.arange(2),
                ordered=OrderedDict(a=1),
                half=engine.ones(2, dtype=engine.bfloat16),
            )
        )
    assert isinstance(loaded.w, nn.Parameter)
    assert loaded.size == (1, 2)
    assert loaded.kind is engine.bfloat16
    assert loaded.array.tolist() == [0, 1]
    assert loaded.half.dtype is engine.bfloat16


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo should never run",)


def test_nothing_runs_on_load(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"posix.system"):
        round_trip(Malicious())
    assert capfd.readouterr().out == ""


def test_a_truncated_pickle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "object"
    engine.save(Settings(1), path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RuntimeError, match=r"object is no complete checkpoint: truncated"):
        engine.load(path, weights_only=False)


def test_what_cannot_be_pickled_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        engine.save({"f": lambda: 1}, tmp_path / "f")
    assert os.listdir(tmp_path) == []


def test_what_was_one_tensor_is_one_again() -> None:
    weight = nn.Parameter(engine.ones(3))
    array = np.arange(2)
    with serialization.safe_globals([SimpleNamespace]):
        loaded = round_trip(SimpleNamespace(encoder=weight, decoder=weight, arrays=[array, array]))
    assert loaded.encoder is loaded.decoder
    assert loaded.arrays[0] is loaded.arrays[1]


def test_attributes_and_classes_of_tensors_are_kept() -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("own", nn.Buffer(engine.ones(1), persistent=False))
    loaded = round_trip(model, weights_only=False)
    assert isinstance(loaded.own, nn.Buffer)
    assert loaded.own.persistent is False
    assert isinstance(loaded.weight, nn.Parameter)
    assert loaded.weight.requires_grad


def test_complex128_travels_as_pairs() -> None:
    wave = engine.tensor([[1 + 2j, 3 - 1j]], dtype=engine.complex128).t().clone()
    loaded = round_trip({"wave": wave, "turned": wave.expand(2, 2).clone().t()})
    assert engine.equal(loaded["wave"], wave)
    assert loaded["turned"].stride() == (1, 2)
    assert loaded["turned"].dtype is engine.complex128


def test_names_that_the_format_reserves_and_keys_that_are_tensors() -> None:
    assert round_trip({"__metadata__": engine.ones(1), "a": 1})["__metadata__"].tolist() == [1.0]
    with pytest.raises(pickle.UnpicklingError):
        round_trip({engine.ones(1): 1, "f": Settings(1)})


def test_files_that_cannot_be_sought_in() -> None:
    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

    file = io.BytesIO()
    engine.save({"w": engine.ones(2)}, file)
    assert engine.load(Stream(file.getvalue()))["w"].tolist() == [1.0, 1.0]


def test_a_file_may_begin_in_the_middle_of_another() -> None:
    file = io.BytesIO()
    file.write(b"before")
    engine.save({"w": engine.ones(2)}, file)
    file.seek(6)
    assert engine.load(file)["w"].tolist() == [1.0, 1.0]


def test_files_of_version_one(tmp_path: Path) -> None:
    """Whole objects were pickles then, data had no checksums."""
    from safetensors.numpy import save_file

    content = pickle.dumps(Settings(5), protocol=4)
    (tmp_path / "object").write_bytes(b"engine.pickle\n" + len(content).to_bytes(8, "little") + content)
    with pytest.raises(pickle.UnpicklingError, match=r"that version 0.1.0 wrote, and reading it can run any code"):
        engine.load(tmp_path / "object")
    assert engine.load(tmp_path / "object", weights_only=False).depth == 5
    structure = '{"dict": [["w", {"tensor": "w", "stride": [1, 2], "requires_grad": false}], ["epoch", 4]]}'
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "data", {"engine.structure": structure, "format": "pt"})
    loaded = engine.load(tmp_path / "data")
    assert loaded["epoch"] == 4
    assert loaded["w"].stride() == (1, 2)


def test_more_plain_data_than_a_header_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization.container, "_LARGEST_HEADER", 1_000_000)
    with pytest.raises(ValueError, match="make tensors or NumPy arrays of long lists"):
        engine.save("x" * 1_000_001, io.BytesIO())
