"""`Module`: a tree of layers that own parameters and buffers. A call costs one attribute look-up over `forward`."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import engine
from engine.autograd import modes
from engine.autograd.gradients import drop_gradients
from engine.autograd.modes import open_blocks
from engine.autograd.node import RemovableHandle
from engine.calls.listening import FUNCTION, call, heard
from engine.nn import conversion, state
from engine.nn import hooks as hooking
from engine.nn.parameter import Buffer, Parameter
from engine.reports import layout_report
from engine.tensor import Tensor

Hook = Callable[..., Any]
_MEMBER_KINDS = ("_parameters", "_buffers", "_modules")


def _with_hooks(module: "Module", /, *args: Any, **kwargs: Any) -> Any:
    return hooking.call_with_hooks(module, args, kwargs)


class Module:
    """Base class of all layers and models.

    Subclasses call `super().__init__()`, assign `Parameter`s, `Module`s and plain values as attributes, and define
    `forward`. Parameters, buffers and children live in `_parameters`, `_buffers` and `_modules`, in order of
    assignment.
    """

    training: bool
    _version: int = 1
    # True on an instance once it has (had) a hook, on the class once a global hook exists: the one check of a call.
    _hooked: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        make = super().__new__
        self = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        layout_report.owners[id(self)] = self
        return self

    def __init__(self) -> None:
        put = super().__setattr__
        put("training", True)
        put("_parameters", {})
        put("_buffers", {})
        put("_modules", {})
        put("_non_persistent_buffers_set", set())
        put("_forward_pre_hooks", OrderedDict())
        put("_forward_hooks", OrderedDict())
        put("_backward_pre_hooks", OrderedDict())
        put("_backward_hooks", OrderedDict())
        put("_hook_options", {})
        put("_state_dict_pre_hooks", OrderedDict())
        put("_state_dict_hooks", OrderedDict())
        put("_load_state_dict_pre_hooks", OrderedDict())
        put("_load_state_dict_post_hooks", OrderedDict())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass defines it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if open_blocks.open and modes.state.listeners:
            return call(FUNCTION, Module.__call__, _with_hooks, self, *args, **kwargs)
        if self._hooked:
            return hooking.call_with_hooks(self, args, kwargs)
        return self.forward(*args, **kwargs)

    # Attributes: three dictionaries that ordinary attribute access falls back to.

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__
        for kind in _MEMBER_KINDS:
            if name in members.get(kind, ()):
                return members[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @heard
    def __setattr__(self, name: str, value: Any) -> None:
        members = self.__dict__
        if "_parameters" not in members:
            if isinstance(value, Parameter | Module | Buffer):
                kind = "module" if isinstance(value, Module) else "parameters"
                raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._forget(name, keep="_parameters")
            self.register_parameter(name, value)
        elif name in members["_parameters"]:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' (nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
        elif isinstance(value, Module):
            self._forget(name, keep="_modules")
            members["_modules"][name] = value
        elif name in members["_modules"]:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as child module '{name}' (nn.Module or None expected)"
                )
            members["_modules"][name] = None
        elif name in members["_buffers"] or isinstance(value, Buffer):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as buffer '{name}' (nn.Buffer, Tensor or None expected)"
                )
            persistent = name not in self._non_persistent_buffers_set
            self.register_buffer(name, value, getattr(value, "persistent", persistent))
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for kind in _MEMBER_KINDS:
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def _forget(self, name: str, keep: str) -> None:
        """Drops `name` from the plain attributes and from every kind of member but `keep`."""
        self.__dict__.pop(name, None)
        for kind in _MEMBER_KINDS:
            if kind != keep:
                self.__dict__[kind].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __dir__(self) -> Iterable[str]:
        names = {*object.__dir__(self), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    # Registration

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter. None reserves the name. Raises KeyError, TypeError, ValueError for bad names or values."""
        self._check_name(name, "parameter", "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (nn.Parameter or None required)"
            )
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To "
                f"express '{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that moves with the module but is not trained; `state_dict` has it if `persistent`."""
        self._check_name(name, "buffer", "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: "Module | None") -> None:
        """Adds a child. None reserves the name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name(name, "module", "_modules")
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, what: str, kind: str) -> None:
        if kind not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise KeyError(f"attribute '{name}' already exists")

    # Walking the tree

    def named_modules(
        self, memo: "set[Module] | None" = None, prefix: str = "", remove_duplicate: bool = True
    ) -> "Iterator[tuple[str, Module]]":
        """(dotted name, module) of this module and all below it, parents first; a shared module once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> "Iterator[Module]":
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        memo: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in memo:
                memo.add(child)
                yield name, child

    def children(self) -> "Iterator[Module]":
        for _, child in self.named_children():
            yield child

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter); a shared parameter once, under its first name."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def _named_members(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, owner in owners:
            for name, member in owner.__dict__[kind].items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield f"{path}.{name}" if path else name, member

    def get_submodule(self, target: str) -> "Module":
        """The module at a dotted path, "" for this one. Raises AttributeError naming the missing part."""
        module = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: "Module", strict: bool = False) -> None:
        """Puts `module` at a dotted path; with `strict` it must replace a module that is there."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path."""
        return self._get_member(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path."""
        return self._get_member(target, "_buffers", "a buffer")

    def _get_member(self, target: str, kind: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if not hasattr(owner, name):
            raise AttributeError(f"{owner._get_name()} has no attribute `{name}`")
        if name not in owner.__dict__[kind]:
            raise AttributeError(f"`{name}` is not {what}")
        return owner.__dict__[kind][name]

    # State

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Dotted name -> tensor of all parameters and persistent buffers; detached views unless `keep_vars`."""
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # type: ignore[attr-defined]
        return state.collect(self, destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copies tensors by name into this tree; see `engine.nn.state.load` for what is raised."""
        return state.load(self, state_dict, strict, assign)

    _save_to_state_dict = state.save_own
    _load_from_state_dict = state.load_own

    get_extra_state = state.no_extra_state

    def set_extra_state(self, state: Any) -> None:
        raise RuntimeError(
            f"Reached a code path in Module.set_extra_state() that should never be reached: {type(self).__name__} "
            "defines get_extra_state() without set_extra_state()"
        )

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(module, prefix, keep_vars)` before the state is collected."""
        return hooking.add(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(module, state_dict, prefix, local_metadata)` after the state is collected; changes it in place."""
        return hooking.add(self._state_dict_hooks, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`."""
        return hooking.add(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(module, incompatible_keys)`, which it may change in place."""
        return hooking.add(self._load_state_dict_post_hooks, hook)

    # Hooks of a call

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """`hook(module, args) -> None or new args`, or `hook(module, args, kwargs) -> None or (args, kwargs)`."""
        self._hooked = True
        return hooking.add(
            self._forward_pre_hooks, hook, prepend=prepend, options=self._hook_options, with_kwargs=with_kwargs
        )

    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """`hook(module, args[, kwargs], output) -> None or new output`; with `always_call` also after an error."""
        self._hooked = True
        return hooking.add(
            self._forward_hooks,
            hook,
            prepend=prepend,
            options=self._hook_options,
            with_kwargs=with_kwargs,
            always_call=always_call,
        )

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """`hook(module, grad_input, grad_output) -> None or new grad_input`, once both are known."""
        self._hooked = True
        return hooking.add(self._backward_hooks, hook, prepend=prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """The older name of `register_full_backward_hook`, which it is here: PyTorch's older hooks saw the gradients of
        the module's last operation only.
        """
        return self.register_full_backward_hook(hook)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """`hook(module, grad_output) -> None or new grad_output`, before the module's own backward."""
        self._hooked = True
        return hooking.add(self._backward_pre_hooks, hook, prepend=prepend)

    # Modes and conversion

    def train(self, mode: bool = True) -> Self:
        """Sets training mode here and below. Raises ValueError for anything but a bool."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    @heard
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops every `.grad`, or with `set_to_none=False` detaches and zeroes it in place."""
        drop_gradients(self.parameters(), set_to_none)

    def apply(self, fn: "Callable[[Module], Any]") -> Self:
        """Calls `fn` on every module, children before their parent."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    _apply = conversion.apply_to_tensors

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """`to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`, `to(memory_format=...)`, in place.

        Only floating point members change dtype, only 4-D and 5-D ones memory format. Raises TypeError for a dtype that
        is not floating point.
        """
        return self._apply(conversion.converter(*args, **kwargs))

    def _to_floating(self, dtype: Any) -> Self:
        return self._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def float(self) -> Self:
        return self._to_floating(engine.float32)

    def double(self) -> Self:
        return self._to_floating(engine.float64)

    def half(self) -> Self:
        return self._to_floating(engine.float16)

    def bfloat16(self) -> Self:
        return self._to_floating(engine.bfloat16)

    def type(self, dst_type: Any) -> Self:
        """Casts every parameter and buffer, integer ones too."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def cpu(self) -> Self:
        return self._apply(lambda tensor: tensor.to("cpu"))

    def cuda(self, device: Any = None) -> Self:
        where = "cuda" if device is None else engine.device("cuda", device) if isinstance(device, int) else device
        return self._apply(lambda tensor: tensor.to(where))

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Moves to `device` without copying values; the new memory is uninitialised."""
        return self._apply(lambda tensor: engine.empty_like(tensor, device=device), recurse=recurse)

    # Printing and pickling

    def _get_name(self) -> str:
        return self.__class__.__name__

    def extra_repr(self) -> str:
        """What stands between the parentheses of `repr` before the children."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        own_lines = extra.split("\n") if extra else []
        child_lines = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        if len(own_lines) == 1 and not child_lines:
            return f"{self._get_name()}({extra})"
        body = "\n  ".join(own_lines + child_lines)
        return f"{self._get_name()}(\n  {body}\n)" if body else f"{self._get_name()}()"


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """A forward pre-hook of every module."""
    Module._hooked = True
    return hooking.add(hooking.global_forward_pre_hooks, hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """A forward hook of every module."""
    Module._hooked = True
    return hooking.add(
        hooking.global_forward_hooks,
        hook,
        options=hooking.global_options,
        with_kwargs=with_kwargs,
        always_call=always_call,
    )


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """A full backward hook of every module."""
    Module._hooked = True
    return hooking.add(hooking.global_backward_hooks, hook)


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """A full backward pre-hook of every module."""
    Module._hooked = True
    return hooking.add(hooking.global_backward_pre_hooks, hook)
