"""`state_dict` and `load_state_dict`: the named tensors of a module tree, out and in, in PyTorch's shape."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.autograd.modes import no_grad
from engine.nn.parameter import Parameter
from engine.tensor import Tensor

if TYPE_CHECKING:
    from engine.nn.module import Module

EXTRA_STATE_KEY = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` returns: keys the module has and the dict lacks, and the reverse."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def collect(module: "Module", destination: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Writes the state of `module` and its children into `destination`; returns it, or what a hook returned."""
    metadata = getattr(destination, "_metadata", None)
    local_metadata = {"version": module._version}
    if metadata is not None:
        metadata[prefix[:-1]] = local_metadata
    for pre_hook in list(module._state_dict_pre_hooks.values()):
        pre_hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for post_hook in list(module._state_dict_hooks.values()):
        replaced = post_hook(module, destination, prefix, local_metadata)
        if replaced is not None:
            destination = replaced
    return destination


def save_own(module: "Module", destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Writes the parameters and persistent buffers of `module` itself, without its children."""
    for name, tensor in own_state(module).items():
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if has_extra_state(module):
        destination[prefix + EXTRA_STATE_KEY] = module.get_extra_state()


def own_parameters(module: "Module") -> dict[str, Parameter | None]:
    """The parameters of `module` itself by name: its own dict, in which assignments to its attributes show."""
    return module._parameters


def own_modules(module: "Module") -> dict[str, "Module | None"]:
    """The children of `module` by name: its own dict, in which assignments to its attributes show."""
    return module._modules


def own_state(module: "Module") -> dict[str, Tensor]:
    """Parameters and persistent buffers of `module` itself by name; those that are None are left out."""
    state: dict[str, Tensor] = {
        name: parameter for name, parameter in module._parameters.items() if parameter is not None
    }
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            state[name] = buffer
    return state


def has_extra_state(module: "Module") -> bool:
    """Whether the class of `module` defines `get_extra_state`."""
    return type(module).get_extra_state is not no_extra_state


def no_extra_state(module: "Module") -> Any:
    """A subclass that defines this and `set_extra_state` adds more than tensors to its state dict."""
    raise RuntimeError(f"{type(module).__name__} does not define get_extra_state()")


def load(module: "Module", state_dict: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Copies (or, with `assign`, puts) the tensors of `state_dict` into the tree of `module`.

    Raises: TypeError if `state_dict` is no mapping; RuntimeError listing every missing and unexpected key (if `strict`)
    and every size mismatch, after all that fits has been loaded, as PyTorch does.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
    keys = IncompatibleKeys([], [])
    errors: list[str] = []
    metadata = getattr(state_dict, "_metadata", None) or {}
    # hooks may rename keys in place, never in the caller's dict
    _load_tree(module, OrderedDict(state_dict), "", metadata, assign, keys, errors)
    if strict:
        for what, names in (("Missing", keys.missing_keys), ("Unexpected", keys.unexpected_keys)):
            if names:
                listed = ", ".join(f'"{name}"' for name in names)
                errors.insert(
                    0 if what == "Missing" else bool(keys.missing_keys), f"{what} key(s) in state_dict: {listed}. "
                )
    if errors:
        listed = "\n\t".join(errors)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{listed}")
    return keys


def _load_tree(
    module: "Module",
    state_dict: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    assign: bool,
    keys: IncompatibleKeys,
    errors: list[str],
) -> None:
    local_metadata = dict(metadata.get(prefix[:-1], {}))
    if assign:
        local_metadata["assign_to_params_buffers"] = True
    module._load_from_state_dict(
        state_dict, prefix, local_metadata, True, keys.missing_keys, keys.unexpected_keys, errors
    )
    for name, child in module._modules.items():
        if child is not None:
            child_prefix = f"{prefix}{name}."
            below = {key: value for key, value in state_dict.items() if key.startswith(child_prefix)}
            _load_tree(child, below, child_prefix, metadata, assign, keys, errors)
    for hook in list(module._load_state_dict_post_hooks.values()):
        if hook(module, keys) is not None:
            raise AssertionError(
                "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                "values, if incompatible_keys need to be modified, it should be done inplace."
            )


def load_own(
    module: "Module",
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Loads parameters and persistent buffers of `module` itself; what does not fit goes to the three lists."""
    for hook in list(module._load_state_dict_pre_hooks.values()):
        hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
    assign = local_metadata.get("assign_to_params_buffers", False)
    local_state = own_state(module)
    for name, tensor in local_state.items():
        key = prefix + name
        if key in state_dict:
            _load_one(module, name, tensor, key, state_dict[key], assign, error_msgs)
        elif strict:
            missing_keys.append(key)
    extra_key = prefix + EXTRA_STATE_KEY
    if has_extra_state(module):
        if extra_key in state_dict:
            module.set_extra_state(state_dict[extra_key])
        elif strict:
            missing_keys.append(extra_key)
    elif strict and extra_key in state_dict:
        unexpected_keys.append(extra_key)
    if strict:
        for key in state_dict:
            if key.startswith(prefix) and key != extra_key:
                name, dot, _ = key[len(prefix) :].partition(".")
                if name not in (module._modules if dot else local_state):
                    unexpected_keys.append(key)


def _load_one(
    module: "Module", name: str, tensor: Tensor, key: str, given: Any, assign: bool, error_msgs: list[str]
) -> None:
    if not isinstance(given, Tensor):
        error_msgs.append(
            f'While copying the parameter named "{key}", expected engine.Tensor from checkpoint but received '
            f"{type(given)}"
        )
        return
    if tensor.dim() == 0 and given.shape == (1,):
        given = given[0]
    if given.shape != tensor.shape:
        error_msgs.append(
            f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, "
            f"the shape in current model is {tensor.shape}."
        )
        return
    with no_grad():
        if assign:
            if isinstance(tensor, Parameter):
                wanted = tensor.requires_grad
                given = given.requires_grad_(wanted) if isinstance(given, Parameter) else Parameter(given, wanted)
            setattr(module, name, given)
            return
        try:
            tensor.copy_(given)
        except (RuntimeError, TypeError, ValueError) as error:
            error_msgs.append(
                f'While copying the parameter named "{key}", whose dimensions in the model are {tensor.size()} and '
                f"whose dimensions in the checkpoint are {given.size()}, an exception occurred : {error.args}."
            )
