"""Weights that are computed from other weights, layers that wait for their input, and a softmax over many classes."""

import copy

import numpy as np
import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch.nn.utils import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrizations import spectral_norm as spectral
from torch.nn.utils.parametrizations import weight_norm as weighted


class Symmetric(nn.Module):
    def forward(self, X):
        return X.triu() + X.triu(1).transpose(-1, -2)

    def right_inverse(self, A):
        return A.triu()


def vectors(module):
    """The same unit vectors for the power iterations of both libraries."""
    for place, (name, buffer) in enumerate(module.named_buffers()):
        if name.endswith(("_u", "_v")):
            values = np.random.default_rng(place).standard_normal(tuple(buffer.shape))
            buffer.copy_(torch.from_numpy(values / np.linalg.norm(values)))


def main(fill):
    rng = np.random.default_rng(13)
    losses = []
    model = nn.Sequential(
        weight_norm(nn.Conv1d(2, 4, 3, padding=1)),
        nn.Tanh(),
        weighted(nn.Conv1d(4, 4, 3, padding=1), dim=None),
        spectral_norm(nn.ConvTranspose1d(4, 3, 2)),
        nn.Tanh(),
        nn.LazyBatchNorm1d(),
        nn.Flatten(),
        nn.LazyLinear(6),
        spectral(nn.Linear(6, 6), n_power_iterations=2),
    )
    parametrize.register_parametrization(model[8], "bias", nn.Identity())
    symmetric = nn.Linear(6, 6)
    parametrize.register_parametrization(symmetric, "weight", Symmetric())
    model.append(symmetric)
    x = torch.from_numpy(rng.standard_normal((4, 2, 5))).float()
    model(x)
    fill(model, 0.6)
    model[5].reset_running_stats()
    with torch.no_grad():
        vectors(model)
    twin = copy.deepcopy(model[8])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for _ in range(4):
        with parametrize.cached():
            loss = model(x).square().mean() + model[8].weight.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    losses.append(model(x).sum().item())
    losses.append(twin.weight.sum().item())
    remove_weight_norm(model[0])
    remove_spectral_norm(model[3])
    parametrize.remove_parametrizations(model[2], "weight")
    parametrize.remove_parametrizations(symmetric, "weight", leave_parametrized=True)
    losses.append(model(x).sum().item())
    losses.append(len(model.state_dict()))
    losses.append(float((symmetric.weight - symmetric.weight.T).abs().max()))

    conv, bn = nn.Conv2d(2, 3, 3).eval(), nn.BatchNorm2d(3).eval()
    fill(conv), fill(bn)
    bn.running_mean += 0.5
    image = torch.from_numpy(rng.standard_normal((1, 2, 5, 5))).float()
    losses += [bn(conv(image)).sum().item(), fuse_conv_bn_eval(conv, bn)(image).sum().item()]

    adaptive = nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[5, 10], div_value=2.0)
    fill(adaptive)
    hidden = torch.from_numpy(rng.standard_normal((6, 8))).float().requires_grad_()
    output, loss = adaptive(hidden, torch.tensor([0, 4, 5, 9, 10, 19]))
    loss.backward()
    losses += [loss.item(), hidden.grad.norm().item(), adaptive.log_prob(hidden).exp().sum().item()]
    return losses + output.tolist() + adaptive.predict(hidden).tolist()
