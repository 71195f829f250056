"""Patches, class token, positions, encoder blocks of MultiheadAttention and of nn.TransformerEncoder."""

# ruff: noqa: B008 - in the style of the public code it stands for

import math
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.init import trunc_normal_


class MLPBlock(nn.Sequential):
    def __init__(self, in_dim, mlp_dim, dropout):
        super().__init__(
            nn.Linear(in_dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, in_dim), nn.Dropout(dropout)
        )
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                if m.bias is not None:
                    nn.init.normal_(m.bias, std=1e-6)


class EncoderBlock(nn.Module):
    def __init__(self, heads, dim, mlp_dim, norm_layer=partial(nn.LayerNorm, eps=1e-6)):
        super().__init__()
        self.ln_1 = norm_layer(dim)
        self.self_attention = nn.MultiheadAttention(dim, heads, dropout=0.0, batch_first=True)
        self.ln_2 = norm_layer(dim)
        self.mlp = MLPBlock(dim, mlp_dim, 0.0)

    def forward(self, input: torch.Tensor):
        torch._assert(input.dim() == 3, f"Expected (batch_size, seq_length, hidden_dim) got {input.shape}")
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = x + input
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self, image_size=8, patch_size=4, dim=8, classes=6, library_encoder=False):
        super().__init__()
        self.patch_size, self.dim = patch_size, dim
        self.conv_proj = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)
        seq_length = (image_size // patch_size) ** 2 + 1
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.empty(1, seq_length, dim).normal_(std=0.02))
        if library_encoder:
            layer = nn.TransformerEncoderLayer(dim, 2, 16, 0.0, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(dim), enable_nested_tensor=False)
        else:
            self.encoder = nn.Sequential(*[EncoderBlock(2, dim, 16) for _ in range(2)], nn.LayerNorm(dim))
        self.heads = nn.Linear(dim, classes)
        fan_in = self.conv_proj.in_channels * self.conv_proj.kernel_size[0] * self.conv_proj.kernel_size[1]
        trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / fan_in))
        if self.conv_proj.bias is not None:
            nn.init.zeros_(self.conv_proj.bias)

    def forward(self, x):
        n, _, h, w = x.shape
        x = self.conv_proj(x).reshape(n, self.dim, (h // self.patch_size) * (w // self.patch_size)).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        return self.heads(self.encoder(x)[:, 0])


def mixup(batch, target, num_classes, lam):
    target = torch.nn.functional.one_hot(target, num_classes=num_classes).to(dtype=batch.dtype)
    batch_rolled, target_rolled = batch.roll(1, 0), target.roll(1, 0)
    batch = batch_rolled.mul_(1.0 - lam).add_(batch.mul(lam))
    return batch, target_rolled.mul_(1.0 - lam).add_(target.mul(lam))


def main(fill):
    losses = []
    for library_encoder in (False, True):
        rng = np.random.default_rng(10)
        model = VisionTransformer(library_encoder=library_encoder)
        fill(model)
        ema = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda avg, new, _: 0.8 * avg + 0.2 * new)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=6)
        for _ in range(5):
            images = torch.from_numpy(rng.standard_normal((4, 3, 8, 8))).float()
            images, target = mixup(images, torch.from_numpy(rng.integers(0, 6, 4)), 6, 0.7)
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update_parameters(model)
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses += [model(images).norm().item(), ema(images).norm().item()]
        losses.append(sum(p.numel() for p in model.parameters() if p.requires_grad))
    return losses
