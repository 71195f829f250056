"""What can be exchanged between two steps of an optimizer: parameters, gradients, state, options, each in its ways.

Each case does something to two optimizers alike. One of them forgets its plans before each step, and so finds out
everything anew; both must have the same bits afterwards.
"""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.nn import Parameter

SHAPES = ((3, 4), (5,), (4, 3), (2, 2))


def drawn(seed: int, shape: tuple[int, ...], where: Any, dtype: Any = engine.float32) -> engine.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape)
    return engine.tensor(values, dtype=dtype).to(where)


class Training:
    """An optimizer and its parameters. `slowly`: it remembers nothing from one step to the next. `standing`: gradients
    are the same tensors in each step, written anew, as those in a bucket of `ddp` are.
    """

    def __init__(self, where: Any, slowly: bool, standing: bool = False) -> None:
        self.where, self.slowly, self.standing, self.steps = where, slowly, standing, 0
        self.parameters = [Parameter(drawn(number, shape, where)) for number, shape in enumerate(SHAPES)]
        self.optimizer: Any = optim.AdamW(self.parameters, lr=0.1)

    def step(self, fresh: bool = True) -> None:
        self.steps += 1
        for number, each in enumerate(self.parameters):
            if (fresh and each.grad is not None) or self.steps == 1:
                gradient = drawn(100 * self.steps + number, tuple(each.shape), self.where, each.dtype)
                if self.standing and each.grad is not None:
                    with engine.no_grad():
                        each.grad.copy_(gradient)
                else:
                    each.grad = gradient if each.stride() == gradient.stride() else gradient.t().contiguous().t()
        if self.slowly:
            self.optimizer._plans.clear()
        self.optimizer.step()

    def found(self) -> list[bytes]:
        """All bits that training goes on with."""
        state = [self.optimizer.state[each] for each in self.parameters]
        tensors = [*self.parameters, *(tensor for own in state for tensor in own.values())]
        return [str(each.stride()).encode() + each.detach().cpu().numpy().tobytes() for each in tensors]


def other_data(training: Training) -> None:
    training.parameters[1].data = drawn(7, (5,), training.where)


def data_of_another_dtype(training: Training) -> None:
    for each in training.parameters:
        gradient, each.grad = each.grad, None
        each.data = each.data.double()
        each.grad = gradient.double()
    training.optimizer.state.clear()


def memory_by_set(training: Training) -> None:
    with engine.no_grad():
        training.parameters[0].set_(drawn(8, (3, 4), training.where))


def turned_in_place(training: Training) -> None:
    with engine.no_grad():
        training.parameters[2].t_()
    training.parameters[2].grad = drawn(9, (3, 4), training.where)
    training.optimizer.state[training.parameters[2]].clear()


def another_gradient(training: Training) -> None:
    training.parameters[0].grad = drawn(10, (3, 4), training.where)


def memory_of_a_gradient(training: Training) -> None:
    training.parameters[0].grad.data = drawn(11, (3, 4), training.where)


def gradient_laid_out_otherwise(training: Training) -> None:
    training.parameters[0].grad = drawn(12, (4, 3), training.where).t()


def no_gradient(training: Training) -> None:
    training.parameters[1].grad = None


def gradient_of_another_type(training: Training) -> None:
    training.parameters[1].grad = Parameter(drawn(13, (5,), training.where))


def another_moment(training: Training) -> None:
    training.optimizer.state[training.parameters[1]]["exp_avg"] = drawn(14, (5,), training.where)


def moments_by_update(training: Training) -> None:
    own = training.optimizer.state[training.parameters[1]]
    own |= {"exp_avg": drawn(14, (5,), training.where)}
    own.update(exp_avg_sq=drawn(15, (5,), training.where).abs())


def state_of_a_parameter(training: Training) -> None:
    own = training.optimizer.state[training.parameters[1]]
    training.optimizer.state[training.parameters[1]] = {name: each.clone() * 2 for name, each in own.items()}


def plain_state(training: Training) -> None:
    """Of no type that notes: changed after it was seen, too."""
    state = {each: dict(own) for each, own in training.optimizer.state.items()}
    training.optimizer.state = state
    for _ in range(3):
        training.step()
    state[training.parameters[0]]["exp_avg"] = drawn(16, (3, 4), training.where)


def no_state(training: Training) -> None:
    del training.optimizer.state[training.parameters[1]]


def no_moment(training: Training) -> None:
    training.optimizer.state[training.parameters[1]].pop("exp_avg_sq")


def all_state(training: Training) -> None:
    training.optimizer.state.clear()


def loaded_state(training: Training) -> None:
    saved = copy.deepcopy(training.optimizer.state_dict())
    for _ in range(2):
        training.step()
    training.optimizer.load_state_dict(saved)


def options(training: Training) -> None:
    training.optimizer.param_groups[0].update(lr=0.01, betas=(0.5, 0.9), weight_decay=0.0, maximize=True)


def options_that_change_inside(training: Training) -> None:
    group = training.optimizer.param_groups[0]
    group.update(lr=engine.tensor(0.2), betas=[0.8, 0.9])
    for _ in range(3):
        training.step()
    group["lr"].mul_(0.1)
    group["betas"][0] = 0.5


def another_formula(training: Training) -> None:
    training.optimizer.param_groups[0]["amsgrad"] = True


def other_parameters_of_a_group(training: Training) -> None:
    """In the very list; the old one dies, so that the new one may have its id and its memory."""
    group = training.optimizer.param_groups[0]
    old = group["params"][1]
    del training.optimizer.state[old]
    group["params"][1] = None
    training.parameters[1] = old = None  # type: ignore[call-overload]
    gc.collect()
    training.parameters[1] = group["params"][1] = Parameter(drawn(17, (5,), training.where))
    training.parameters[1].grad = drawn(18, (5,), training.where)


def fewer_parameters(training: Training) -> None:
    training.optimizer.param_groups[0]["params"].pop()


def reordered_parameters(training: Training) -> None:
    training.optimizer.param_groups[0]["params"].reverse()


def another_group(training: Training) -> None:
    training.parameters.append(Parameter(drawn(19, (6,), training.where)))
    training.parameters[-1].grad = drawn(20, (6,), training.where)
    training.optimizer.add_param_group({"params": training.parameters[-1:], "lr": 0.5})


def unpickled(training: Training) -> None:
    training.parameters, training.optimizer = pickle.loads(pickle.dumps((training.parameters, training.optimizer)))
    for number, each in enumerate(training.parameters):
        each.grad = drawn(30 + number, tuple(each.shape), training.where)


CASES: list[Callable[[Training], None]] = [
    *(other_data, data_of_another_dtype, memory_by_set, turned_in_place, another_gradient, memory_of_a_gradient),
    *(gradient_laid_out_otherwise, no_gradient, gradient_of_another_type, another_moment, moments_by_update),
    *(state_of_a_parameter, plain_state, no_state, no_moment, all_state, loaded_state, options),
    *(options_that_change_inside, another_formula),
    *(other_parameters_of_a_group, fewer_parameters, reordered_parameters, another_group, unpickled),
]
every_case = pytest.mark.parametrize("change", CASES, ids=lambda each: each.__name__)
standing_or_new = pytest.mark.parametrize("standing", [False, True], ids=["new gradients", "standing gradients"])


def check(change: Callable[[Training], None], where: Any, standing: bool) -> None:
    ours, reference = (Training(where, slowly, standing) for slowly in (False, True))
    for training in (ours, reference):
        for _ in range(4):
            training.step()
        change(training)
        training.step(fresh=False)
        for _ in range(3):
            training.step()
    assert ours.found() == reference.found()
