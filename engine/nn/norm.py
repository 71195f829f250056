"""Normalisation layers: BatchNorm, InstanceNorm, LayerNorm, GroupNorm, RMSNorm, LocalResponseNorm."""

from collections.abc import Sequence
from typing import Any, ClassVar

import engine
import engine.nn.functional as F
from engine.nn import init
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor


class _Affine(Module):
    """A weight of ones and a bias of zeros, each of which may be left out."""

    def _register_affine(self, shape: int | tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        for name, wanted in (("weight", weight), ("bias", bias)):
            self.register_parameter(
                name, Parameter(engine.empty(shape, device=device, dtype=dtype)) if wanted else None
            )

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class _RunningNorm(_Affine):
    """What batch and instance norm share: an affine map and running statistics, each a channel, both optional."""

    _version = 2
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    allowed_dims: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._register_affine(num_features, affine, affine and bias, device, dtype)
        if track_running_stats:
            self.register_buffer("running_mean", engine.zeros(num_features, device=device, dtype=dtype))
            self.register_buffer("running_var", engine.ones(num_features, device=device, dtype=dtype))
            self.register_buffer("num_batches_tracked", engine.tensor(0, dtype=engine.int64, device=device))
        else:
            self.register_buffer("running_mean", None)
            self.register_buffer("running_var", None)
            self.register_buffer("num_batches_tracked", None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batch seen."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self.allowed_dims:
            expected = " or ".join(f"{dims}D" for dims in self.allowed_dims)
            raise ValueError(f"expected {expected} input (got {input.dim()}D input)")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        # files from before version 2 have no count of batches
        version = local_metadata.get("version")
        key = prefix + "num_batches_tracked"
        if self.track_running_stats and version is not None and version < 2 and key not in state_dict:
            count = self.num_batches_tracked
            state_dict[key] = engine.tensor(0, dtype=engine.int64) if count is None else count
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm(_RunningNorm):
    """(x - mean) / sqrt(var + eps) · weight + bias a channel. Ioffe and Szegedy (2015).

    Running statistics move by `momentum` towards each batch's (None: cumulative average); evaluation uses them if
    tracked.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        count = self.num_batches_tracked
        if self.training and self.track_running_stats and count is not None:
            count.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(count)
        mean, var = self.running_mean, self.running_var
        batch_statistics = self.training or (mean is None and var is None)
        if self.training and not self.track_running_stats:
            mean = var = None
        return F.batch_norm(input, mean, var, self.weight, self.bias, batch_statistics, momentum, self.eps)


_BatchNorm = BatchNorm  # its name in PyTorch's torch.nn.modules.batchnorm


class BatchNorm1d(BatchNorm):
    __doc__ = f"Shapes: (N, C) or (N, C, L).\n\n    {BatchNorm.__doc__}"
    allowed_dims = (2, 3)


class BatchNorm2d(BatchNorm):
    __doc__ = f"Shapes: (N, C, H, W).\n\n    {BatchNorm.__doc__}"
    allowed_dims = (4,)


class BatchNorm3d(BatchNorm):
    __doc__ = f"Shapes: (N, C, D, H, W).\n\n    {BatchNorm.__doc__}"
    allowed_dims = (5,)


class _InstanceNorm(_RunningNorm):
    """Batch norm of each sample by itself. Ulyanov et al. (2016). Input without the batch axis is accepted."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        unbatched = input.dim() == self.allowed_dims[0]
        channels = input.shape[0 if unbatched else 1]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={0 if unbatched else 1} to match num_features ({self.num_features}), "
                f"but got: {channels}."
            )
        out = F.instance_norm(
            input.unsqueeze(0) if unbatched else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )
        return out.squeeze(0) if unbatched else out


class InstanceNorm1d(_InstanceNorm):
    __doc__ = f"Shapes: (N, C, L) or (C, L).\n\n    {_InstanceNorm.__doc__}"
    allowed_dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = f"Shapes: (N, C, H, W) or (C, H, W).\n\n    {_InstanceNorm.__doc__}"
    allowed_dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = f"Shapes: (N, C, D, H, W) or (C, D, H, W).\n\n    {_InstanceNorm.__doc__}"
    allowed_dims = (4, 5)


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(_Affine):
    """(x - mean) / sqrt(var + eps) · weight + bias over the last axes, of `normalized_shape`. Ba et al. (2016)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._register_affine(shape, elementwise_affine, elementwise_affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axes, of `normalized_shape`. Zhang and Sennrich (2019)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter(
            "weight", Parameter(engine.empty(shape, device=device, dtype=dtype)) if elementwise_affine else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Normalises groups of channels of each sample of (N, C, d...). Wu and He (2018)."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._register_affine(num_channels, affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"affine={self.affine}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, {affine}"


class LocalResponseNorm(Module):
    """x / (k + alpha · mean of x² over `size` neighbouring channels)^beta. Krizhevsky et al. (2012)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
