"""The text of tensors, character for character PyTorch's, and the options of printing."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import nn
from tests.data import printing_cases

REFERENCE = json.loads((Path(printing_cases.__file__).parent / "printing_reference.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    engine.set_printoptions(profile="default")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # casts of infinities to smaller dtypes
def test_every_text_is_pytorchs() -> None:
    ours = printing_cases.texts(engine)
    theirs = {case: text for case, text in REFERENCE.items() if case != "PyTorch"}
    assert ours.keys() == theirs.keys()
    different = [case for case, text in theirs.items() if ours[case] != text]
    assert not different, f"{len(different)} of {len(theirs)}, first {different[0]}: {ours[different[0]]}"


def test_suffixes_wrap_where_the_line_ends() -> None:
    assert repr(engine.ones(2, 13, dtype=engine.float64)[:, :12]).endswith("\n       dtype=engine.float64)")
    assert "\n" not in repr(engine.ones(12))
    engine.set_printoptions(linewidth=30)
    assert repr(engine.ones(2, requires_grad=True)) == "tensor([1., 1.],\n       requires_grad=True)"


def test_options_are_set_for_a_block_and_come_back() -> None:
    third = engine.tensor(1 / 3)
    with engine.printoptions(precision=2, sci_mode=True):
        assert repr(third) == "tensor(3.33e-01)"
        assert engine.get_printoptions()["precision"] == 2
    assert repr(third) == "tensor(0.3333)"
    with pytest.raises(ValueError, match="expected profile default, short, full, got 'long'"):
        engine.set_printoptions(profile="long")


def test_a_notebook_shows_the_same_text() -> None:
    # without methods of its own for HTML or Markdown, IPython shows repr
    for value in (engine.ones(2), nn.Linear(1, 1), engine.optim.SGD(nn.Linear(1, 1).parameters())):
        assert not any(hasattr(value, name) for name in ("_repr_html_", "_repr_markdown_", "_repr_mimebundle_"))
        assert repr(value) == str(value)


def test_numbers_format_as_python_formats_them() -> None:
    assert f"{engine.tensor(1.23456):.2f} {engine.tensor(7):>3}" == "1.23   7"
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor.__format__"):
        _ = f"{engine.ones(2):.2f}"


def test_numpy_functions_never_detach_silently() -> None:
    x = engine.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Can't call numpy\(\) on Tensor that requires grad"):
        np.asarray(x)
    with pytest.raises((RuntimeError, TypeError)):
        np.exp(x)
    assert isinstance(np.asarray(x.detach()), np.ndarray)
    assert np.asarray(engine.ones(2), dtype=np.int32).dtype == np.int32


def test_dlpack_shares_memory_both_ways() -> None:
    array = np.arange(6.0).reshape(2, 3)
    tensor = engine.from_dlpack(array)
    tensor[0, 0] = 7
    assert array[0, 0] == 7
    back = np.from_dlpack(engine.arange(3))
    assert back.tolist() == [0, 1, 2]
    assert tensor.__dlpack_device__() == (1, 0)
