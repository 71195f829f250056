"""The dictionaries of an optimizer's state: each change is noted, and nobody else sees that they are no plain ones."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import engine
from engine import optim
from engine.nn import Parameter
from engine.optim.state import State, StateOfParameter, changed


def test_each_change_of_a_state_is_noted() -> None:
    tensor, state = Parameter(engine.ones(1)), State(StateOfParameter)
    own = state[tensor]
    assert type(own) is StateOfParameter
    changes: list[Callable[[], Any]] = [
        *(lambda: own.update(a=1), lambda: own.__setitem__("b", 2), lambda: own.__ior__({"c": 3})),
        *(lambda: own.setdefault("d", 4), lambda: own.pop("a"), lambda: own.__delitem__("b"), own.popitem, own.clear),
        *(lambda: state[Parameter(engine.ones(1))], lambda: state.__setitem__(tensor, {}), lambda: state.pop(tensor)),
        *(lambda: state.setdefault(tensor, {}), lambda: state.update({tensor: {}}), lambda: state.__ior__({})),
        *(lambda: state.__delitem__(tensor), state.popitem, state.clear),
    ]
    for change in changes:
        before = changed.last
        change()
        assert changed.last is not before
    dictionary = {name for name in dir(dict) if not hasattr(tuple, name) and name != "__class_getitem__"}
    reading = {"copy", "fromkeys", "get", "items", "keys", "values", "__or__", "__ror__", "__reversed__"}
    noted = {name for name in dictionary if hasattr(getattr(StateOfParameter, name), "__wrapped__")}
    assert dictionary - noted <= reading


def test_states_are_saved_as_plain_dictionaries() -> None:
    parameter = Parameter(engine.ones(3))
    optimizer = optim.Adam([parameter])
    parameter.grad = engine.ones(3)
    optimizer.step()
    assert {type(own) for own in optimizer.state_dict()["state"].values()} == {dict}
    own = optimizer.state[parameter]
    assert type(own) is StateOfParameter
    assert type(copy.deepcopy(own)) is type(copy.copy(own)) is type(pickle.loads(pickle.dumps(own))) is dict
    twin = copy.deepcopy(optimizer)
    assert type(twin.state) is State
    assert {type(each) for each in twin.state.values()} == {StateOfParameter}
