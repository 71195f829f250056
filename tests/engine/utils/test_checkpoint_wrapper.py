"""Modules under `checkpoint`: the results, gradients and state dicts of the modules themselves."""

import copy
import functools

import pytest

import engine
from engine import nn
from engine.utils.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.runs = 0

    def forward(self, x: engine.Tensor, *, scale: float = 1.0) -> engine.Tensor:
        self.runs += 1
        return engine.relu(self.norm(self.linear(x))) * scale


@pytest.mark.parametrize("variant", list(CheckpointImpl))
def test_blocks_run_again_and_give_the_same_gradients(variant: CheckpointImpl) -> None:
    plain = nn.Sequential(Block(), nn.Linear(4, 4), Block())
    model = copy.deepcopy(plain)
    wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=variant)
    apply_activation_checkpointing(model, wrap, check_fn=lambda module: isinstance(module, Block))
    assert [isinstance(each, CheckpointWrapper) for each in model] == [True, False, True]
    x = engine.randn(3, 4)
    for each in (plain, model):
        each(x.clone().requires_grad_()).sum().backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert mine.grad.equal(other.grad)
    block: Block = model.get_submodule("0")  # type: ignore[assignment]
    assert block.runs == 2  # an attribute of the module itself
    assert block(x.requires_grad_(), scale=0.0).sum().item() == 0


def test_state_dicts_are_those_of_the_module_without_it() -> None:
    plain = nn.Sequential(Block(), Block())
    model = copy.deepcopy(plain)
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    assert list(model.state_dict()) == list(plain.state_dict())
    for _, values in plain.state_dict().items():
        values.fill_(3)
    model.load_state_dict(plain.state_dict())
    assert all((values == 3).all() for values in model.state_dict().values())
    plain.load_state_dict(copy.deepcopy(model).state_dict())
    assert [name for name, _ in checkpoint_wrapper(plain).named_parameters()] == list(dict(plain.named_parameters()))
    assert checkpoint_wrapper(plain)[0] is plain[0]


def test_an_own_function_takes_the_place_of_checkpoint() -> None:
    calls = []

    def own(function, *args, mark):  # type: ignore[no-untyped-def]
        calls.append(mark)
        return function(*args)

    checkpoint_wrapper(Block(), checkpoint_fn=own, mark="a")(engine.randn(3, 4), scale=2.0)
    assert calls == ["a"]
