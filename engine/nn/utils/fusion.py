"""Batch norm in evaluation folded into the layer before it."""

from copy import deepcopy
from typing import Any

import engine
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor


def _folded(
    weight: Tensor, bias: Tensor | None, statistics: tuple[Tensor, Tensor, float, Any, Any], axis: int
) -> tuple[Parameter, Parameter]:
    """Weight and bias whose outputs are normalised; `axis` of the weight is that of the outputs."""
    mean, var, eps, scale, shift = statistics
    with engine.no_grad():
        factor = (var + eps).rsqrt()
        factor = factor if scale is None else factor * scale
        offset = -mean if bias is None else bias - mean
        offset = offset * factor
        shape = [1] * weight.ndim
        shape[axis] = -1
        folded = weight * factor.reshape(shape)
        return Parameter(folded, weight.requires_grad), Parameter(offset if shift is None else offset + shift)


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution (`transpose`: a transposed one) followed by a batch norm."""
    return _folded(conv_w, conv_b, (bn_rm, bn_rv, bn_eps, bn_w, bn_b), 1 if transpose else 0)


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer followed by a batch norm."""
    return _folded(linear_w, linear_b, (bn_rm, bn_rv, bn_eps, bn_w, bn_b), 0)


def _fused(layer: Module, bn: Module, axis: int) -> Module:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    fused = deepcopy(layer)
    statistics = (bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    fused.weight, fused.bias = _folded(fused.weight, fused.bias, statistics, axis)
    return fused


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """One convolution that computes bn(conv(x)). Raises: AssertionError unless both are in evaluation mode."""
    return _fused(conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """One linear layer that computes bn(linear(x)). Raises: AssertionError unless both are in evaluation mode."""
    return _fused(linear, bn, 0)
