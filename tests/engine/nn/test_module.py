"""Module mechanics: attributes, the tree, state dicts, conversion, repr, copies."""

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import engine
from engine import nn


class Block(nn.Module):
    """A linear layer, a batch norm, a plain parameter and two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(engine.ones(4))
        self.register_buffer("shift", engine.zeros(4))
        self.register_buffer("scratch", engine.zeros(1), persistent=False)
        self.plain = 5

    def forward(self, input: Any) -> Any:
        return self.norm(self.linear(input)) * self.scale + self.shift


class Net(nn.Module):
    """Two blocks, the second under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.again = self.second

    def forward(self, input: Any) -> Any:
        return self.first(input) + self.second(input)


BLOCK_STATE = [
    "scale",
    "shift",
    "linear.weight",
    "linear.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
    "norm.num_batches_tracked",
]


def test_attributes_register_themselves_in_order() -> None:
    block = Block()
    assert [name for name, _ in block.named_parameters()] == [
        "scale",
        "linear.weight",
        "linear.bias",
        "norm.weight",
        "norm.bias",
    ]
    assert [name for name, _ in block.named_buffers(recurse=False)] == ["shift", "scratch"]
    assert [name for name, _ in block.named_children()] == ["linear", "norm"]
    assert list(block.state_dict()) == BLOCK_STATE
    assert "scale" in dir(block)
    assert "linear" in dir(block)


def test_attributes_move_between_kinds() -> None:
    module = nn.Module()
    module.thing = 3
    module.thing = nn.Parameter(engine.ones(2))
    assert "thing" not in module.__dict__
    module.thing = None
    assert list(module.parameters()) == []
    with pytest.raises(TypeError, match="as parameter 'thing'"):
        module.thing = engine.ones(2)
    del module.thing
    module.thing = nn.ReLU()
    with pytest.raises(TypeError, match="as child module 'thing'"):
        module.thing = 4
    module.thing = nn.Parameter(engine.ones(2))
    assert list(module.named_children()) == []
    del module.thing
    module.register_buffer("thing", None)
    module.thing = engine.ones(3)
    assert dict(module.named_buffers())["thing"].shape == (3,)
    with pytest.raises(TypeError, match="as buffer 'thing'"):
        module.thing = 4
    del module.thing
    with pytest.raises(AttributeError, match="'Module' object has no attribute 'thing'"):
        _ = module.thing


def test_assigned_buffers_register_themselves() -> None:
    module = nn.Module()
    module.kept = nn.Buffer(engine.ones(2))
    module.transient = nn.Buffer(engine.ones(2), persistent=False)
    assert [name for name, _ in module.named_buffers()] == ["kept", "transient"]
    assert list(module.state_dict()) == ["kept"]
    module.transient = engine.zeros(2)
    assert list(module.state_dict()) == ["kept"]


def test_registration_refuses_bad_names_and_values() -> None:
    module = nn.Module()
    module.taken = 1
    with pytest.raises(KeyError, match="already exists"):
        module.register_parameter("taken", nn.Parameter(engine.ones(1)))
    with pytest.raises(KeyError, match="contain"):
        module.register_buffer("a.b", engine.ones(1))
    with pytest.raises(KeyError, match="be empty"):
        module.add_module("", nn.ReLU())
    with pytest.raises(TypeError, match="is not a Module subclass"):
        module.add_module("name", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name should be a string"):
        module.register_buffer(3, engine.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Parameter or None required"):
        module.register_parameter("name", engine.ones(1))  # type: ignore[arg-type]

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.ReLU()

    with pytest.raises(AttributeError, match=r"before Module\.__init__"):
        Forgetful()


def test_shared_members_count_once() -> None:
    net = Net()
    assert len(list(net.parameters())) == 10
    assert len(list(net.named_parameters(remove_duplicate=False))) == 15
    assert [name for name, _ in net.named_modules()] == [
        "",
        "first",
        "first.linear",
        "first.norm",
        "second",
        "second.linear",
        "second.norm",
    ]
    assert len(net.state_dict()) == 3 * len(BLOCK_STATE)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert [name for name, _ in tied.named_parameters()] == ["0.weight", "0.bias", "1.bias"]


def test_members_by_path() -> None:
    net = Net()
    assert net.get_submodule("") is net
    assert net.get_submodule("first.linear") is net.first.linear
    assert net.get_parameter("first.linear.weight") is net.first.linear.weight
    assert net.get_buffer("second.norm.running_mean") is net.second.norm.running_mean
    net.set_submodule("first.linear", nn.Identity())
    assert isinstance(net.first.linear, nn.Identity)
    with pytest.raises(AttributeError, match="has no attribute `third`"):
        net.get_submodule("third.linear")
    with pytest.raises(AttributeError, match=r"`plain` is not an nn\.Module"):
        net.get_submodule("first.plain")
    with pytest.raises(AttributeError, match=r"is not an nn\.Parameter"):
        net.get_parameter("first.shift")
    with pytest.raises(AttributeError, match="is not a buffer"):
        net.get_buffer("first.scale")
    with pytest.raises(AttributeError, match="has no attribute `fourth`"):
        net.set_submodule("fourth", nn.ReLU(), strict=True)


def test_forward_must_be_defined() -> None:
    with pytest.raises(NotImplementedError, match=r'Module \[Module\] is missing the required "forward"'):
        nn.Module()(1)


def test_state_dict_shares_memory_and_loads_by_copy() -> None:
    source, target = Net(), Net()
    state = source.state_dict()
    assert state["first.scale"].data_ptr() == source.first.scale.data_ptr()
    assert not state["first.scale"].requires_grad
    assert source.state_dict(keep_vars=True)["first.scale"] is source.first.scale
    with engine.no_grad():
        source.first.scale.fill_(7)
    pointer = target.first.scale.data_ptr()
    assert str(target.load_state_dict(state)) == "<All keys matched successfully>"
    assert target.first.scale.data_ptr() == pointer
    assert float(target.first.scale[0]) == 7.0
    for name, value in target.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy())


def test_state_dict_takes_a_prefix_and_a_destination() -> None:
    destination: dict[str, Any] = {}
    assert Block().state_dict(destination=destination, prefix="model.") is destination
    assert list(destination) == [f"model.{name}" for name in BLOCK_STATE]


def test_loading_converts_dtype_and_keeps_layout() -> None:
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=engine.channels_last)
    strides = convolution.weight.stride()
    state = {name: value.double() for name, value in nn.Conv2d(3, 4, 3).state_dict().items()}
    convolution.load_state_dict(state)
    assert convolution.weight.dtype is engine.float32
    assert convolution.weight.stride() == strides
    np.testing.assert_allclose(convolution.weight.detach().numpy(), state["weight"].numpy(), rtol=1e-6)


def test_keys_that_do_not_match_are_all_named() -> None:
    block = Block()
    state = block.state_dict()
    del state["linear.bias"]
    state["stranger"] = engine.ones(1)
    state["linear.odd.name"] = engine.ones(1)
    with pytest.raises(RuntimeError) as error:
        block.load_state_dict(state)
    text = str(error.value)
    assert text.startswith('Error(s) in loading state_dict for Block:\n\tMissing key(s) in state_dict: "linear.bias". ')
    assert 'Unexpected key(s) in state_dict: "stranger", "linear.odd.name". ' in text
    result = block.load_state_dict(state, strict=False)
    assert result.missing_keys == ["linear.bias"]
    assert result.unexpected_keys == ["stranger", "linear.odd.name"]


def test_sizes_that_do_not_match_are_all_named() -> None:
    block = Block()
    state = block.state_dict()
    state["linear.weight"] = engine.ones(2, 3)
    state["scale"] = engine.ones(5)
    with pytest.raises(RuntimeError, match=r"size mismatch for scale: .*\[5\].*\n\tsize mismatch for linear.weight"):
        block.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"expected engine\.Tensor from checkpoint"):
        block.load_state_dict({**block.state_dict(), "scale": 3})
    with pytest.raises(TypeError, match="to be dict-like"):
        block.load_state_dict([1])  # type: ignore[arg-type]


def test_loading_by_assignment_keeps_the_tensors_of_the_state() -> None:
    block = Block()
    block.scale.requires_grad_(False)
    state = {name: value.double().clone() for name, value in Block().state_dict().items()}
    block.load_state_dict(state, assign=True)
    assert block.scale.dtype is engine.float64
    assert block.scale.data_ptr() == state["scale"].data_ptr()
    assert isinstance(block.scale, nn.Parameter)
    assert not block.scale.requires_grad
    assert block.linear.weight.requires_grad


def test_state_dict_hooks() -> None:
    block = Block()
    calls: list[str] = []
    block.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append(f"pre {prefix!r}"))
    block.linear.register_state_dict_post_hook(lambda module, state, prefix, _: state.__delitem__(prefix + "bias"))
    state = block.state_dict()
    assert "linear.bias" not in state
    state["linear.old_bias"] = engine.full((4,), 3.0)

    def rename(module: Any, state: Any, prefix: str, *_: Any) -> None:
        state[prefix + "bias"] = state.pop(prefix + "old_bias")

    block.linear.register_load_state_dict_pre_hook(rename)
    block.register_load_state_dict_post_hook(lambda module, keys: keys.unexpected_keys.clear())
    block.load_state_dict(state)
    assert float(block.linear.bias[0]) == 3.0
    assert "linear.old_bias" in state  # the caller's dict is never changed
    assert calls == ["pre ''"]


def test_extra_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def get_extra_state(self) -> int:
            return self.count

        def set_extra_state(self, state: int) -> None:
            self.count = state

    source, target = nn.Sequential(Counting()), nn.Sequential(Counting())
    source[0].count = 4
    assert source.state_dict() == {"0._extra_state": 4}
    target.load_state_dict(source.state_dict())
    assert target[0].count == 4
    with pytest.raises(RuntimeError, match=r"Missing key.*_extra_state"):
        target.load_state_dict({})


def test_batch_norm_loads_files_without_a_count() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    del state["num_batches_tracked"]
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    nn.BatchNorm1d(2).load_state_dict(state)


def test_modes() -> None:
    net = Net()
    assert net.training
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    net.train()
    assert all(module.training for module in net.modules())
    with pytest.raises(ValueError, match="expected to be boolean"):
        net.train("yes")  # type: ignore[arg-type]
    net.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    nn.Sequential(nn.Linear(1, 1), nn.ReLU()).apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "ReLU", "Sequential"]


def test_zero_grad() -> None:
    linear = nn.Linear(2, 1)
    linear(engine.ones(3, 2)).sum().backward()
    kept = linear.weight.grad
    linear.zero_grad(set_to_none=False)
    assert linear.weight.grad is kept
    assert float(kept.abs().sum()) == 0.0
    linear.zero_grad()
    assert linear.weight.grad is None


def test_conversion_keeps_parameter_objects_and_their_gradients() -> None:
    block = Block()
    block(engine.randn(5, 3)).sum().backward()
    weight = block.linear.weight
    assert block.double() is block
    assert block.linear.weight is weight
    assert weight.dtype is engine.float64
    assert weight.grad.dtype is engine.float64
    assert weight.requires_grad
    assert weight.is_leaf
    assert block.norm.running_mean.dtype is engine.float64
    assert block.norm.num_batches_tracked.dtype is engine.int64
    block(engine.randn(5, 3, dtype=engine.float64)).sum().backward()
    assert block.half().scale.dtype is engine.float16
    assert block.bfloat16().scale.dtype is engine.bfloat16
    assert block.to("cpu", engine.float32).scale.dtype is engine.float32
    assert block.to(engine.ones(1, dtype=engine.float64)).scale.dtype is engine.float64
    assert block.float().scale.dtype is engine.float32
    with pytest.raises(TypeError, match="only accepts floating point"):
        block.to(engine.int32)
    with pytest.raises(TypeError, match=r"Module\.to"):
        block.to("cpu", "float32")


def test_channels_last_is_a_format_of_the_parameters() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    net.to(memory_format=engine.channels_last)
    assert net[0].weight.is_contiguous(memory_format=engine.channels_last)
    out = net(engine.randn(2, 3, 6, 6).contiguous(memory_format=engine.channels_last))
    assert out.is_contiguous(memory_format=engine.channels_last)
    out.sum().backward()
    assert net[0].weight.grad.stride() == net[0].weight.stride()


def test_meta_modules_get_memory_with_to_empty() -> None:
    layer = nn.Linear(3, 4, device="meta")
    assert layer.weight.is_meta
    layer.to_empty(device="cpu")
    assert layer.weight.device.type == "cpu"
    assert layer.weight.shape == (4, 3)


def test_copies_and_pickles() -> None:
    net = Net()
    net(engine.randn(4, 3)).sum().backward()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.again is other.second
        assert isinstance(other.first.scale, nn.Parameter)
        assert other.first.scale.requires_grad
        for mine, theirs in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
            assert mine.data_ptr() != theirs.data_ptr()
    assert copy.deepcopy(net).first.scale.grad is None


def test_repr_nests() -> None:
    assert repr(nn.Sequential(OrderedDict(one=nn.Linear(2, 3), two=nn.Sequential(nn.ReLU())))) == (
        "Sequential(\n"
        "  (one): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (two): Sequential(\n"
        "    (0): ReLU()\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Identity()) == "Identity()"


def test_parameters_share_the_memory_they_are_made_of() -> None:
    data = engine.zeros(3)
    parameter = nn.Parameter(data)
    with engine.no_grad():
        parameter.add_(1)
    assert float(data.sum()) == 3.0
    assert parameter.requires_grad
    assert repr(parameter).startswith("Parameter containing:\ntensor([1., 1., 1.]")
    assert not nn.Parameter(data, requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="expected a Tensor, got list"):
        nn.Parameter([1.0])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="floating point"):
        nn.Parameter(engine.zeros(3, dtype=engine.int64))


def test_a_class_that_derives_from_another_one_too_gets_the_arguments_of_its_new() -> None:
    class Numbered:
        def __new__(cls, number: int, *, name: str) -> "Numbered":
            made = super().__new__(cls)
            object.__setattr__(made, "given", (number, name))
            return made

    class Both(nn.Module, Numbered):
        def __init__(self, number: int, *, name: str) -> None:
            super().__init__()
            self.layer = nn.Linear(number, 1)

    made = Both(3, name="it")
    assert made.given == (3, "it")
    assert len(list(made.parameters())) == 2
