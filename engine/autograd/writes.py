"""Writes in place, as history has them: who may be written, what is counted, whose history a tensor goes on with. Bases
of written views get theirs in `engine.ops.views.history`, by operators.
"""

from engine.autograd.versions import CUSTOM_FUNCTION, INFERENCE, MULTIPLE, NO_GRAD, reason_of
from engine.tensor import Tensor

_AMBIGUOUS = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both "
    "the view and the inplace either both inside the {0} block (if you don't want the inplace to be tracked) or both "
    "outside (if you want the inplace to be tracked)."
)
_REASONS = {
    NO_GRAD: _AMBIGUOUS.format("no_grad"),
    INFERENCE: _AMBIGUOUS.format("inference_mode"),
    MULTIPLE: (
        "This view is the output of a function that returns multiple views. Such functions do not allow the output "
        "views to be modified inplace. You should replace the inplace operation by an out-of-place one."
    ),
    CUSTOM_FUNCTION: (
        "This view was created inside a custom Function (or because an input was returned as-is) and the autograd "
        "logic to handle view+inplace would override the custom backward associated with the custom Function, leading "
        "to incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom "
        "Function."
    ),
}


def check_history(target: Tensor, name: str) -> None:
    """Raises RuntimeError where a write that is to be recorded has no history to go to: leaves, views of leaves,
    restricted views.
    """
    base = target._base
    if base is not None:
        if target._view_version < 0:
            raise restricted_view(target, "is being")
        if target.requires_grad and base.is_leaf:
            raise RuntimeError(
                f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation."
            )
    if target.requires_grad and target.is_leaf:
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation; "
            "write out of place, or inside engine.no_grad() if it is an update of the parameter"
        )


def restricted_view(view: Tensor, verb: str) -> RuntimeError:
    reason = reason_of(view._view_version)
    fn = view._grad_fn
    if reason in (NO_GRAD, INFERENCE) or fn is None:
        where, mode = (
            ("inference mode", "in normal mode") if reason == INFERENCE else ("no_grad mode", "with grad mode enabled")
        )
        what = f"A view was created in {where} and {verb} modified inplace {mode}."
    else:
        what = f"Output {view._output_nr} of {fn.name()} is a view and {verb} modified inplace."
    return RuntimeError(f"{what} {_REASONS[reason]}")


def take_history(tensor: Tensor, made: Tensor) -> None:
    """`tensor` continues with the history of `made`. Its retain_grad moves along; other hooks stay with the old
    value.
    """
    before, number = tensor._grad_fn, getattr(tensor, "_output_nr", 0)
    tensor._requires_grad, tensor._grad_fn = made._requires_grad, made._grad_fn
    if made._grad_fn is not None:
        tensor._output_nr = made._output_nr
    if before is not None and before.extras is not None and tensor._meta is not None and tensor._meta.retains_grad:
        hooks = before.extras.tensor_hooks.get(number)
        if hooks is not None and hooks.retain is not None:
            keep, hooks.retain = hooks.retain, None
            if made._grad_fn is not None:
                made._grad_fn.hooks_of(made._output_nr).retain = keep


def mark_written(target: Tensor, name: str, recorded: bool) -> None:
    """Counts an in-place write. When it is to be recorded, the history of `target` before the write is settled
    first.
    """
    if not recorded or target._base is None:
        target._bump_version(name)
        return
    counter = target._version_counter()
    settled = target.grad_fn is not None or target._view_version == counter.value
    target._bump_version(name)
    if settled:
        target._view_version = counter.value
