"""Normalisation over batch, layer, group, instance or neighbouring channels."""

from collections.abc import Sequence

from engine import ops
from engine.calls.listening import heard
from engine.ops import pad
from engine.tensor import Tensor


def _check_more_than_one(sizes: Sequence[int]) -> None:
    """Statistics of one value say nothing: `sizes` is (N, C, d...)."""
    values = sizes[0]
    for size in sizes[2:]:
        values *= size
    if values == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(sizes)}")


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias for each channel of (N, C, d...).

    In training the statistics are the batch's, and the running ones (if any) move towards them in place; otherwise they
    are the running ones. Raises: ValueError for one value a channel in training, or a bad eps.
    """
    if training:
        _check_more_than_one(input.shape)
        if eps <= 0.0:
            raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    elif eps < 0.0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {eps}")
    return ops.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises each channel of each sample of (N, C, d...) by its own statistics (or the running ones)."""
    if not use_input_stats and (running_mean is None or running_var is None):
        raise ValueError("Expected running_mean and running_var to be defined when use_input_stats=False")
    samples, channels = input.shape[:2]
    spatial = 1
    for size in input.shape[2:]:
        spatial *= size
    if use_input_stats and spatial == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape}")
    # one batch norm in which every channel of every sample is a channel of its own
    mean = None if running_mean is None else running_mean.repeat(samples)
    var = None if running_var is None else running_var.repeat(samples)
    flat = input.reshape(1, samples * channels, *input.shape[2:])
    out = ops.batch_norm(flat, mean, var, None, None, use_input_stats, momentum, eps).reshape(input.shape)
    for running, moved in ((running_mean, mean), (running_var, var)):
        if use_input_stats and running is not None and moved is not None:
            running.copy_(moved.view(samples, channels).mean(0))
    return _affine(out, weight, bias)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x · weight + bias a channel (dim 1)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    if weight is not None:
        x = x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


@heard
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias over the last axes, which must have `normalized_shape`."""
    return ops.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


@heard
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axes; eps defaults to the dtype's. Zhang and Sennrich (2019)."""
    return ops.rms_norm(input, tuple(normalized_shape), weight, eps)


@heard
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalises each of `num_groups` groups of channels of each sample of (N, C, d...). Wu and He (2018).

    Raises: RuntimeError if the groups do not divide the channels.
    """
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    samples, channels = input.shape[:2]
    if num_groups > 0:
        _check_more_than_one([samples * channels // num_groups, num_groups, *input.shape[2:]])
    return ops.group_norm(input, num_groups, weight, bias, eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · mean of x² over `size` neighbouring channels)^beta. Krizhevsky et al. (2012)."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if input.numel() == 0:
        return input
    samples, channels = input.shape[:2]
    squares = (input * input).reshape(samples, 1, channels, -1)
    padded = pad(squares, (0, 0, size // 2, (size - 1) // 2))
    means = ops.avg_pool2d(padded, (size, 1), 1, 0, False, True, None).reshape(input.shape)
    return input / (means * alpha + k) ** beta
