"""Hooks of modules: forward, backward, global; their order, what they may replace, and what they cost when there are
none.
"""

from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from engine.nn import hooks
from engine.nn import module as modules


class Affine(nn.Module):
    """input * factor + offset."""

    def forward(self, input: Any, factor: float = 2.0, *, offset: float = 0.0) -> Any:
        return input * factor + offset


def test_forward_hooks_see_and_replace() -> None:
    layer = Affine()
    log: list[Any] = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: log.append(("pre", len(args)))),
        layer.register_forward_pre_hook(lambda module, args: args[0] + 1),
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "offset": 10.0}), with_kwargs=True
        ),
        layer.register_forward_hook(lambda module, args, output: log.append(("post", float(output)))),
        layer.register_forward_hook(lambda module, args, kwargs, output: output * kwargs["offset"], with_kwargs=True),
    ]
    assert float(layer(engine.tensor(1.0))) == 140.0
    assert log == [("pre", 1), ("post", 14.0)]
    for handle in handles:
        handle.remove()
        handle.remove()
    assert float(layer(engine.tensor(1.0))) == 2.0


def test_prepended_hooks_run_first() -> None:
    layer = nn.Identity()
    log: list[str] = []
    layer.register_forward_hook(lambda *_: log.append("second"))
    layer.register_forward_hook(lambda *_: log.append("first"), prepend=True)
    layer.register_forward_pre_hook(lambda *_: log.append("pre two"))
    layer.register_forward_pre_hook(lambda *_: log.append("pre one"), prepend=True)
    layer(1)
    assert log == ["pre one", "pre two", "first", "second"]


def test_handles_are_context_managers() -> None:
    layer = nn.Identity()
    log: list[int] = []
    with layer.register_forward_hook(lambda *_: log.append(1)):
        layer(1)
    layer(1)
    assert log == [1]


def test_pre_hook_with_kwargs_must_return_a_pair() -> None:
    layer = Affine()
    layer.register_forward_pre_hook(lambda module, args, kwargs: args, with_kwargs=True)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        layer(engine.tensor(1.0))


def test_always_called_hooks_run_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, input: Any) -> Any:
            raise ValueError("broken")

    layer = Broken()
    log: list[str] = []
    layer.register_forward_hook(lambda *_: log.append("skipped"))
    layer.register_forward_hook(lambda *_: log.append("always"), always_call=True)
    with pytest.raises(ValueError, match="broken"):
        layer(1)
    assert log == ["always"]
    layer.register_forward_hook(lambda *_: 1 / 0, always_call=True)
    with pytest.warns(UserWarning, match="silenced as another error"), pytest.raises(ValueError, match="broken"):
        layer(1)


def test_full_backward_hooks_see_both_sides() -> None:
    layer = nn.Linear(2, 1, bias=False)
    seen: list[Any] = []
    layer.register_full_backward_pre_hook(lambda module, grad_output: seen.append(grad_output))
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    x = engine.ones(3, 2).requires_grad_()
    (layer(x) * 5).sum().backward()
    (before,), ((to_input,), (from_output,)) = seen
    np.testing.assert_array_equal(before.numpy(), np.full((3, 1), 5.0))
    np.testing.assert_array_equal(from_output.numpy(), np.full((3, 1), 5.0))
    np.testing.assert_allclose(to_input.numpy(), 5 * layer.weight.detach().expand(3, 2).numpy())
    np.testing.assert_allclose(x.grad.numpy(), to_input.numpy())


def test_full_backward_hooks_replace_gradients() -> None:
    layer = Affine()
    layer.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 3,))
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] + 1,))
    x = engine.ones(2).requires_grad_()
    layer(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [7.0, 7.0])


def test_backward_hook_order_of_nested_modules() -> None:
    log: list[str] = []
    model = nn.Sequential(Affine(), Affine())
    for name, module in (("outer", model), ("0", model[0]), ("1", model[1])):
        module.register_full_backward_pre_hook(lambda *_, name=name: log.append(f"pre {name}"))
        module.register_full_backward_hook(lambda *_, name=name: log.append(f"post {name}"))
    model(engine.ones(1).requires_grad_()).backward()
    assert log == ["pre outer", "pre 1", "post 1", "pre 0", "post 0", "post outer"]


def test_backward_hooks_without_gradients_of_inputs() -> None:
    layer = nn.Linear(2, 1)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    layer(engine.ones(1, 2)).sum().backward()
    ((grad_input, grad_output),) = seen
    assert grad_input == (None,)
    assert float(grad_output[0]) == 1.0


def test_backward_hooks_with_several_inputs_and_outputs() -> None:
    class Swap(nn.Module):
        def forward(self, a: Any, flag: bool, b: Any) -> Any:
            return b * 2, flag, a * 3

    layer = Swap()
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    a, b = engine.ones(1).requires_grad_(), engine.ones(1).requires_grad_()
    first, flag, second = layer(a, True, b)
    assert flag is True
    (first * 5 + second * 7).backward()
    ((grad_input, grad_output),) = seen
    assert [None if each is None else float(each) for each in grad_input] == [21.0, None, 10.0]
    assert [None if each is None else float(each) for each in grad_output] == [5.0, None, 7.0]


def test_backward_hook_returning_too_few_gradients() -> None:
    layer = Affine()
    layer.register_full_backward_hook(lambda *_: (None, None))
    out = layer(engine.ones(1).requires_grad_())
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2, but expected 1"):
        out.backward()


def test_no_backward_hooks_without_grad_mode() -> None:
    layer = Affine()
    layer.register_full_backward_hook(lambda *_: pytest.fail("called"))
    with engine.no_grad():
        assert layer(engine.ones(1).requires_grad_()).grad_fn is None


def test_backward_hooks_of_a_module_that_returns_no_tensor() -> None:
    class Packed(nn.Module):
        def forward(self, input: Any) -> Any:
            return {"out": input}

    layer = Packed()
    layer.register_full_backward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="should be a Tensor or a tuple"):
        layer(engine.ones(1).requires_grad_())


def test_global_hooks_reach_every_module() -> None:
    log: list[str] = []
    handles = [
        modules.register_module_forward_pre_hook(lambda module, args: log.append(f"pre {type(module).__name__}")),
        modules.register_module_forward_hook(lambda module, args, out: log.append(f"post {type(module).__name__}")),
        modules.register_module_full_backward_pre_hook(lambda module, grad: log.append("backward pre")),
        modules.register_module_full_backward_hook(lambda module, before, after: log.append("backward")),
    ]
    try:
        Affine()(engine.ones(1).requires_grad_()).backward()
    finally:
        for handle in handles:
            handle.remove()
        nn.Module._hooked = False
    assert log == ["pre Affine", "post Affine", "backward pre", "backward"]
    assert not hooks.global_forward_hooks


def test_without_hooks_a_call_is_forward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "call_with_hooks", lambda *_: pytest.fail("took the slow path"))
    assert float(Affine()(engine.tensor(2.0), offset=1.0)) == 5.0


def test_the_older_name_of_a_backward_hook() -> None:
    seen = []
    layer = nn.Linear(2, 1)
    handle = layer.register_backward_hook(lambda module, inputs, outputs: seen.append((module, outputs[0].tolist())))
    layer(engine.ones(1, 2)).sum().backward()
    assert seen == [(layer, [[1.0]])]
    handle.remove()
    layer(engine.ones(1, 2)).sum().backward()
    assert len(seen) == 1
