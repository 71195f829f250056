"""What derivative rules say in the same words of arrays and of Tensors, as `nd.real(x)`, and what is no operator: NumPy
has the same, or another name for it, or takes the arguments in another order.
"""

from engine.calls.namespaces import composite, kernel_of
from engine.ops.creation.factories import eye

composite("broadcast_to")
composite("imag")
composite("stack")
composite("zeros_like")
composite("real", lambda xp, x: xp.real(x), lambda x: x.real if x.is_complex() else x)
composite("movedim", lambda xp, x, source, destination: xp.moveaxis(x, source, destination))
composite("unsqueeze", lambda xp, x, dim: xp.expand_dims(x, dim))
composite("reshape", lambda xp, x, shape: x.reshape(shape))
composite("turned", lambda xp, x: x.swapaxes(-1, -2), lambda x: x.transpose(-1, -2))
composite("gather", lambda xp, x, dim, index: kernel_of("gather", xp)(x, index, dim))
composite("scatter", lambda xp, x, dim, index, value: kernel_of("scatter", xp)(x, index, value, dim))
composite("polygamma", lambda xp, n, x: kernel_of("polygamma", xp)(x, n))

# What has no name of its own among the functions of Tensors.
composite(
    "eye_like",  # the identity of the size of a last axis
    lambda xp, x: xp.eye(x.shape[-1], dtype=x.dtype),
    lambda x: eye(x.shape[-1], dtype=x.dtype, device=x.device),
)
composite("zeros_beside", lambda xp, x, shape: xp.zeros(shape, x.dtype), lambda x, shape: x.new_zeros(shape))
composite("values_beside", lambda xp, x, values: xp.asarray(values, x.dtype), lambda x, values: x.new_tensor(values))
composite(
    "count",  # of what a mask holds, along axes that stay
    lambda xp, mask, dims: mask.sum(axis=dims, keepdims=True),
    lambda mask, dims: mask.sum(dims, True),
)
composite("is_complex", lambda xp, x: x.dtype.kind == "c", lambda x: x.is_complex())
composite("array_of", lambda xp, x: x, lambda x: x.detach()._array)
