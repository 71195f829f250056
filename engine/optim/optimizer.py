"""`Optimizer`: parameter groups, per-parameter state, state dicts and hooks. A subclass writes two methods: `start` and
`update`.

The base class walks the groups and hands `update` one-dimensional memory: all of a big parameter, or many small
parameters side by side (engine/optim/plan.py, slabs.py), so a subclass is its formula and nothing else.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from functools import wraps
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import engine
from engine.autograd.gradients import drop_gradients, gradients_of
from engine.autograd.modes import enable_grad, no_grad, open_blocks
from engine.autograd.node import RemovableHandle
from engine.calls.listening import heard, hears, tell, wanted
from engine.optim.plan import Plan
from engine.optim.rows import refusal, step_rows
from engine.optim.state import State, StateOfParameter, noting
from engine.reports import layout_report as report
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor

Group = dict[str, Any]
Closure = Callable[[], Any]
StateDict = dict[str, Any]
Hooks = OrderedDict[int, Callable[..., Any]]

_global_pre_hooks: Hooks = OrderedDict()
_global_post_hooks: Hooks = OrderedDict()
_living: WeakValueDictionary[int, "Optimizer"] = WeakValueDictionary()  # by id
_HOOK_KINDS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


class _RequiredParameter:
    """The default of an option that every group has to give itself."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()


def living() -> list["Optimizer"]:
    """All optimizers there are.

    Not from `gc.get_objects`, which for a moment holds everything, also what other threads are about to make: a tuple
    made of a generator fails there then, with SystemError.
    """
    return [optimizer for reference in _living.valuerefs() if (optimizer := reference()) is not None]


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(optimizer, args, kwargs)` before every step of every optimizer."""
    return RemovableHandle(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(optimizer, args, kwargs)` after every step of every optimizer."""
    return RemovableHandle(_global_post_hooks, hook)


def _both(first: Hooks, second: Hooks) -> Sequence[Callable[..., Any]]:
    """The hooks that there are now, in order."""
    return [*first.values(), *second.values()] if first or second else ()


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` between its hooks: global pre, own pre (which may replace the arguments), step, own post, global post."""

    @hears
    @wraps(step)
    def hooked_step(self: "Optimizer", *args: Any, **kwargs: Any) -> Any:
        if open_blocks.open and wanted(hooked_step):
            return tell(hooked_step, self, *args, **kwargs)
        if self._inside_step:  # a subclass calls the step of its base class: hooks have run
            return step(self, *args, **kwargs)
        self._inside_step = True
        try:
            for hook in _both(_global_pre_hooks, self._optimizer_step_pre_hooks):
                replaced = hook(self, args, kwargs)
                if replaced is not None:
                    if not (isinstance(replaced, tuple) and len(replaced) == 2):
                        raise RuntimeError(
                            f"{hook} must return None or a tuple of (new_args, new_kwargs), but got {replaced}."
                        )
                    args, kwargs = replaced
            if report.untold:
                report.tell_optimizer(param for group in self.param_groups for param in group["params"])
            result = step(self, *args, **kwargs)
            for hook in _both(self._optimizer_step_post_hooks, _global_post_hooks):
                hook(self, args, kwargs)
        finally:
            self._inside_step = False
        self._opt_called = True
        return result

    return hooked_step


class Optimizer:
    """Base class of all optimizers.

    Args:
        params: tensors, (name, tensor) pairs, or dicts with "params" and options of their own, in a stable order.
        defaults: the options of groups that do not give them.
    Raises: TypeError for a single tensor, a set in a group, or what is no tensor; ValueError for no parameters, a
    non-leaf, a parameter in two groups, or names for some only.
    """

    # whether state["step"] counts the updates of each parameter
    counts_steps: ClassVar[bool] = True
    # names of further state that is one number a parameter, starting at 1
    scalar_state: ClassVar[tuple[str, ...]] = ()

    _optimizer_step_pre_hooks: Hooks
    _optimizer_step_post_hooks: Hooks
    _optimizer_state_dict_pre_hooks: Hooks
    _optimizer_state_dict_post_hooks: Hooks
    _optimizer_load_state_dict_pre_hooks: Hooks
    _optimizer_load_state_dict_post_hooks: Hooks

    _inside_step = False
    _opt_called = False  # read by LR schedulers, which have to be stepped second

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{type(params).__name__}"
            )
        self.defaults = defaults
        self.state: dict[Any, dict[str, Any]] = State(StateOfParameter)
        self.param_groups: list[Group] = []
        self._prepare()
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    def _prepare(self) -> None:
        _living[id(self)] = self
        for kind in _HOOK_KINDS:
            setattr(self, kind, OrderedDict())
        self._plans: dict[int, Plan] = {}

    # The two methods of a subclass, and two that it may add

    def start(self, group: Group) -> dict[str, float]:
        """Name and initial value of the state of a parameter of `group`: one number for each of its elements."""
        raise NotImplementedError(f"{type(self).__name__} defines neither start() nor step()")

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        """Updates the parameter `p` and its state `s` in place from the gradient `g`, which is only read.

        All are arrays of one shape, usually 1-D, and may be a piece of a parameter or several parameters: the formula
        must be elementwise, unless the class is `whole`. `step` is 1 at a parameter's first update; without
        `counts_steps` it is 2 ever after. `s` also has the `scalar_state`, as floats.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither update() nor step()")

    def advance(self, group: Group, step: int, scalars: dict[str, Any]) -> None:
        """Changes the arrays of `scalar_state` in place, once before `update`."""

    # Whether `update` needs each parameter whole and by itself, for a norm over it.
    whole = False

    # A compiled `update` for float32 and float64 in host memory, used for big parameters; same arguments.
    fused: Any = None

    def check_rows(self, group: Group) -> None:
        """Raises RuntimeError unless `update` of the rows that have a gradient is the step for a sparse one."""
        raise refusal(self)

    # The formula of `update` among those of engine/optim/optimizer.cu, and the names of its state in their order
    # there; None: on a GPU `update` itself runs.
    device_algorithm: ClassVar[tuple[str, tuple[str, ...]] | None] = None

    def device_options(self, group: Group) -> dict[str, Any]:
        """The options of a group under the names that `device_algorithm` has for them, without those all have."""
        return {}

    # What GradScaler sets for the time of a step on a GPU, each a float32 tensor with one element that is read there:
    # gradients are divided by `grad_scale`, and there is no step at all where `found_inf` is not 0.
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def step(self, closure: Closure | None = None) -> Any:
        """One update of every parameter with a gradient; returns what `closure`, which recomputes the loss, gives."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.step_group(group)
        return loss

    step = _with_hooks(step)

    def step_group(self, group: Group) -> None:
        """Updates the parameters of one of `param_groups`, or those of a part of one with its options.

        What `step` does for each group, for who steps some of the parameters at a time: no hooks run, and autograd has
        to be off.
        """
        self._opt_called = True
        plan = self._plans.get(id(group))
        known = plan if plan is not None and plan.repeats(self, group) else None
        if known is not None and known.has_same_gradients():
            known.run_again(self, group)
            return
        gradients = gradients_of(group["params"])
        if known is not None and known.has_same_kinds(gradients):
            known.run(self, group, gradients)
            return
        if SparseTensor in map(type, gradients):
            for place, gradient in enumerate(gradients):
                if isinstance(gradient, SparseTensor):
                    step_rows(self, group, group["params"][place], gradient)
                    gradients[place] = None
        if plan is None or not plan.fits(self, group, gradients):
            plan = self._plans[id(group)] = Plan(self, group, gradients)
        plan.run(self, group, gradients)

    @heard
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops every gradient, or with `set_to_none=False` zeroes it in place."""
        for group in self.param_groups:
            drop_gradients(group["params"], set_to_none)

    # Groups

    def add_param_group(self, param_group: Group) -> None:
        """Adds parameters with options of their own; see the class for what is raised."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        given = param_group["params"]
        if isinstance(given, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in "
                "sets will change between runs. Please use a list instead."
            )
        entries = [given] if isinstance(given, Tensor) else list(given)
        names = [entry[0] for entry in entries if isinstance(entry, tuple)]
        params = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
        if names and len(names) != len(params):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(param).__name__}")
            if not (param.is_leaf or param.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        param_group["params"] = params
        if names:
            param_group["param_names"] = names
            report.name_parameters(zip(names, params, strict=True))
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        own = {id(param) for param in params}
        if len(own) != len(params):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error",
                stacklevel=3,
            )
        for group in self.param_groups:
            if ("param_names" in group) != bool(names):
                raise ValueError(
                    "all optimizer param groups should be with/without names. cannot add param group "
                    f"{'with names' if names else 'without names'} to the optimizer"
                )
            if not own.isdisjoint(id(param) for param in group["params"]):
                raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)
        self._plans.clear()  # parts of groups may be cut anew

    # State

    def state_dict(self) -> StateDict:
        """{"state": {number: {name: value}}, "param_groups": [...]}; numbers count the parameters over all groups."""
        for hook in list(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        at = 0
        for group in self.param_groups:
            for offset, param in enumerate(group["params"]):
                numbers.setdefault(id(param), at + offset)
            at += len(group["params"])
            packed = {key: value for key, value in group.items() if key != "params"}
            groups.append({**packed, "params": [numbers[id(param)] for param in group["params"]]})
        plain = ((key, dict(own) if type(own) is StateOfParameter else own) for key, own in self.state.items())
        state = {numbers[id(key)] if isinstance(key, Tensor) else key: own for key, own in plain}
        result: StateDict = {"state": state, "param_groups": groups}
        for hook in list(self._optimizer_state_dict_post_hooks.values()):
            replaced = hook(self, result)
            if replaced is not None:
                result = replaced
        return result

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Takes over state and options; parameters are matched by position.

        State is cast to its parameter's dtype and device and laid out as its parameter, "step" excepted.
        Raises: ValueError, before anything is changed, if numbers of groups or their sizes differ.
        """
        state_dict = state_dict.copy()
        for hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            replaced = hook(self, state_dict)
            if replaced is not None:
                state_dict = replaced
        saved_groups = deepcopy(state_dict["param_groups"])
        if len(saved_groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for own, saved in zip(self.param_groups, saved_groups, strict=True):
            if len(own["params"]) != len(saved["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
                )
        by_number = {
            number: param
            for own, saved in zip(self.param_groups, saved_groups, strict=True)
            for number, param in zip(saved["params"], own["params"], strict=True)
        }
        state: dict[Any, dict[str, Any]] = {}
        # state in float32, whatever its parameter is
        wide = {key for group in saved_groups if group.get("master_weights") for key in group["params"]}
        with no_grad():
            for key, value in state_dict["state"].items():
                param = by_number.get(key)
                state[key if param is None else param] = (
                    value if param is None else _adopt(param, value, keeps_dtype=key in wide)
                )
        for own, saved in zip(self.param_groups, saved_groups, strict=True):
            saved["params"] = own["params"]
            if "param_names" in own and "param_names" not in saved:
                saved["param_names"] = own["param_names"]
        self.__setstate__({"state": state, "param_groups": saved_groups})
        for hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "state" in state:
            self.state = noting(state["state"])
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        if "_plans" not in self.__dict__:
            self._prepare()
        self._plans.clear()

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join(lines) + "\n)"

    # Hooks

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs) -> None or (args, kwargs)` before each step."""
        return RemovableHandle(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer)` before `state_dict`."""
        return RemovableHandle(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer, state_dict) -> None or another` after `state_dict`."""
        return RemovableHandle(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer, state_dict) -> None or another` before `load_state_dict`."""
        return RemovableHandle(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer)` after `load_state_dict`."""
        return RemovableHandle(self._optimizer_load_state_dict_post_hooks, hook, prepend)


def _adopt(param: Tensor, value: Any, key: Hashable = None, keeps_dtype: bool = False) -> Any:
    """A copy of loaded state, as `param` needs it."""
    if isinstance(value, Tensor):
        if key == "step":
            return value.detach().clone()
        casts = param.is_floating_point() and value.is_floating_point() and not keeps_dtype
        dtype = param.dtype if casts else value.dtype
        if value.shape == param.shape:
            copy = engine.empty_like(param, dtype=dtype).detach()
            return copy.copy_(value)
        return value.detach().to(device=param.device, dtype=dtype).clone()
    if isinstance(value, dict):
        return {name: _adopt(param, each, name, keeps_dtype) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_adopt(param, each, None, keeps_dtype) for each in value)
    return deepcopy(value)
