"""Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from collections import OrderedDict
from typing import Any

import pytest

import engine
from engine import nn


def names(container: Any) -> list[str]:
    return [name for name, _ in container.named_children()]


def layers(count: int) -> list[nn.Module]:
    return [nn.Linear(1, 1) for _ in range(count)]


def test_sequential_chains_and_indexes() -> None:
    a, b, c = layers(3)
    model = nn.Sequential(a, b, c)
    x = engine.ones(1, 1)
    assert float(model(x)) == float(c(b(a(x))))
    assert model[0] is a
    assert model[-1] is c
    assert isinstance(model[1:], nn.Sequential)
    assert list(model[1:]) == [b, c]
    assert len(model) == 3
    with pytest.raises(IndexError, match="index 3 is out of range"):
        _ = model[3]
    with pytest.raises(IndexError, match="out of range"):
        model[-4] = nn.ReLU()


def test_sequential_with_names() -> None:
    a, b = layers(2)
    model = nn.Sequential(OrderedDict(first=a, second=b))
    assert model.first is a
    assert names(model) == ["first", "second"]
    model[0] = nn.ReLU()
    assert isinstance(model.first, nn.ReLU)


def test_sequential_grows_and_shrinks() -> None:
    a, b, c, d = layers(4)
    model = nn.Sequential(a).append(b).extend([d])
    model.insert(2, c)
    assert list(model) == [a, b, c, d]
    assert names(model) == ["0", "1", "2", "3"]
    assert model.pop(1) is b
    assert names(model) == ["0", "1", "2"]
    del model[1:]
    assert list(model) == [a]
    assert list(model + nn.Sequential(b)) == [a, b]
    model += nn.Sequential(c)
    assert list(model) == [a, c]
    assert list(model * 2) == [a, c, a, c]
    model *= 2
    assert list(model) == [a, c, a, c]
    model.insert(-1, d)
    assert list(model) == [a, c, a, d, c]
    with pytest.raises(IndexError, match="Index out of range"):
        model.insert(9, d)
    with pytest.raises(ValueError, match="Non-positive"):
        _ = model * 0
    with pytest.raises(ValueError, match="only objects of Sequential"):
        _ = model.__add__([a])  # type: ignore[operator]


def test_module_list() -> None:
    a, b, c, d = layers(4)
    modules = nn.ModuleList([a, b])
    modules.append(d)
    modules.insert(2, c)
    assert list(modules) == [a, b, c, d]
    assert names(modules) == ["0", "1", "2", "3"]
    assert modules[-1] is d
    assert list(modules[1:3]) == [b, c]
    del modules[0]
    assert list(modules) == [b, c, d]
    assert modules.pop(0) is b
    modules[0] = a
    modules += [b]
    assert list(modules.__add__([c])) == [a, d, b, c]
    assert len(list(modules.parameters())) == 6
    with pytest.raises(TypeError, match="should be called with an iterable"):
        modules.extend(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="missing the required"):
        modules(1)


def test_module_list_repr_counts_repeats() -> None:
    assert repr(nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh()])) == (
        "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n)"
    )
    assert repr(nn.ModuleList()) == "ModuleList()"


def test_module_dict() -> None:
    a, b, c = layers(3)
    modules = nn.ModuleDict({"a": a})
    modules["b"] = b
    modules.update([("c", c)])
    assert list(modules) == ["a", "b", "c"]
    assert list(modules.values()) == [a, b, c]
    assert dict(modules.items()) == {"a": a, "b": b, "c": c}
    assert "a" in modules
    assert modules.pop("a") is a
    del modules["b"]
    assert list(modules.keys()) == ["c"]
    modules.update(nn.ModuleDict({"d": a}))
    assert len(modules) == 2
    modules.clear()
    assert len(list(modules.parameters())) == 0
    with pytest.raises(ValueError, match="has length 3; 2 is required"):
        modules.update([(1, 2, 3)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="key/value pairs"):
        modules.update(3)  # type: ignore[arg-type]


def test_parameter_list() -> None:
    values = nn.ParameterList([engine.ones(2), nn.Parameter(engine.ones(3)), 7])
    assert isinstance(values[0], nn.Parameter)
    assert values[2] == 7
    values.append(engine.ones(4))
    values[2] = engine.ones(5)
    assert [tuple(each.shape) for each in values] == [(2,), (3,), (5,), (4,)]
    assert [name for name, _ in values.named_parameters()] == ["0", "1", "3", "2"]
    assert [tuple(each.shape) for each in values[1:3]] == [(3,), (5,)]
    assert "Parameter containing: [engine.float32 of size 3]" in repr(values)
    with pytest.raises(IndexError, match="out of range"):
        _ = values[4]
    with pytest.raises(RuntimeError, match="should not be called"):
        values(1)
    with pytest.raises(TypeError, match="should be called with an iterable"):
        values.extend(engine.ones(2))


def test_parameter_dict() -> None:
    values = nn.ParameterDict({"a": engine.ones(2), "n": 3})
    values["b"] = engine.ones(4)
    assert list(values) == ["a", "n", "b"]
    assert list(reversed(values)) == ["b", "n", "a"]
    assert [name for name, _ in values.named_parameters()] == ["a", "b"]
    assert values.get("x", 5) == 5
    assert values.setdefault("a") is values["a"]
    assert values.pop("n") == 3
    joined = values | nn.ParameterDict({"c": engine.ones(1)})
    assert list(joined) == ["a", "b", "c"]
    assert joined["a"] is values["a"]
    assert values.popitem()[0] == "b"
    values.clear()
    assert len(values) == 0
    with pytest.raises(KeyError):
        _ = values["a"]
    with pytest.raises(TypeError, match="not a string"):
        values[3] = engine.ones(1)  # type: ignore[index]
