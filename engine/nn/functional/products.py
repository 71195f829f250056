"""Products of two inputs and a weight."""

from engine.calls.listening import heard
from engine.tensor import Tensor


@heard
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1ᵀ W x2 + b. Shapes: (..., I), (..., J), (O, I, J), (O) -> (..., O). Raises RuntimeError if they do not fit."""
    if input1.shape[:-1] != input2.shape[:-1] or tuple(weight.shape[1:]) != (input1.shape[-1], input2.shape[-1]):
        raise RuntimeError(
            f"bilinear: got input1 {tuple(input1.shape)}, input2 {tuple(input2.shape)} and weight "
            f"{tuple(weight.shape)}; expected (..., I), (..., J) and (O, I, J)"
        )
    outputs, size1, size2 = weight.shape
    # (..., I) @ (I, O J) -> (..., O, J), then the product with x2 over J
    left = input1 @ weight.permute(1, 0, 2).reshape(size1, outputs * size2)
    terms = left.reshape(*input1.shape[:-1], outputs, size2) * input2.unsqueeze(-2)
    # A sum of integers would be int64; that of others has autocast's word on its dtype.
    out = terms.sum(-1) if left.is_floating_point() or left.is_complex() else terms.sum(-1, dtype=left.dtype)
    return out if bias is None else out + bias
