"""Inverted residuals with squeeze-and-excitation, dense blocks with checkpoints, a segmentation head."""

# ruff: noqa: RUF046 - in the style of the public code it stands for

from collections import OrderedDict
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint as cp
from torch.nn.modules.batchnorm import _BatchNorm


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeeze):
        super().__init__()
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc1 = torch.nn.Conv2d(channels, squeeze, 1)
        self.fc2 = torch.nn.Conv2d(squeeze, channels, 1)
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x):
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand_ratio, activation):
        super().__init__()
        hidden = int(round(inp * expand_ratio))
        self.use_res_connect = stride == 1 and inp == oup
        norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        self.conv = nn.Sequential(
            OrderedDict(
                [
                    ("expand", nn.Conv2d(inp, hidden, 1, bias=False)),
                    ("bn1", norm(hidden)),
                    ("act1", activation(inplace=True)),
                    ("depthwise", nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)),
                    ("bn2", norm(hidden)),
                    ("act2", activation(inplace=True)),
                    ("se", SqueezeExcitation(hidden, 2)),
                    ("project", nn.Conv2d(hidden, oup, 1, bias=False)),
                    ("bn3", norm(oup)),
                ]
            )
        )

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class DenseLayer(nn.Module):
    def __init__(self, features, growth, efficient):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(features)
        self.conv1 = nn.Conv2d(features, growth, 3, padding=1, bias=False)
        self.efficient = efficient

    def bn_function(self, *inputs):
        return self.conv1(F.relu(self.norm1(torch.cat(inputs, 1))))

    def forward(self, features):
        if self.efficient and any(each.requires_grad for each in features):
            return cp.checkpoint(self.bn_function, *features, use_reentrant=False)
        return self.bn_function(*features)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.SiLU())
        self.blocks = nn.Sequential(
            InvertedResidual(4, 4, 1, 2, nn.ReLU6), InvertedResidual(4, 6, 2, 1.5, nn.Hardswish)
        )
        self.dense = nn.ModuleList([DenseLayer(6 + 2 * i, 2, efficient=i > 0) for i in range(3)])
        self.lateral = nn.Conv2d(4, 12, 1)
        self.head = nn.Conv2d(12, 5, 1)

    def forward(self, x):
        low = self.stem(x)
        features = [self.blocks(low)]
        for layer in self.dense:
            features.append(layer(features))
        high = torch.cat(features, 1)
        high = F.interpolate(high, size=low.shape[-2:], mode="bilinear", align_corners=False)
        out = self.head(F.gelu(high + self.lateral(low)))
        return F.interpolate(out, scale_factor=2, mode="nearest")


def main(fill):
    rng = np.random.default_rng(9)
    model = Net().to(memory_format=torch.channels_last)
    fill(model)
    norms, others = [], []
    for module in model.modules():
        (norms if isinstance(module, _BatchNorm) else others).extend(module.parameters(recurse=False))
    optimizer = torch.optim.RMSprop(
        [{"params": others, "weight_decay": 1e-3}, {"params": norms}], lr=0.003, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    losses = []
    for _ in range(5):
        x = torch.from_numpy(rng.standard_normal((3, 3, 16, 16))).float().to(memory_format=torch.channels_last)
        target = torch.from_numpy(rng.integers(0, 5, (3, 16, 16)))
        target[0, 0] = 255
        logits = model(x)
        loss = F.cross_entropy(logits, target, weight=torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0]), ignore_index=255)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), clip_value=0.5)
        optimizer.step()
        scheduler.step(loss)
        confusion = torch.bincount(logits.argmax(1).flatten() * 5, minlength=25)
        losses += [loss.item(), optimizer.param_groups[0]["lr"], confusion[0].item()]
    return losses
