"""The short trainings that are compared with PyTorch: weights, batches and recipes, run unchanged on both sides.

Everything here speaks PyTorch's names under `engine`; `pytorch_reference.py` runs it with PyTorch under that name
and writes pytorch_reference.json, the tests run it with the engine. Weights and batches come from numpy's
`default_rng` with the seeds below, so no weight file is needed.
"""

import importlib.util
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import engine
import engine.nn as nn
import engine.nn.functional as F
from engine.optim import SGD, Adam, AdamW, Optimizer

STEPS = 20
SEED = 20_260

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "sgd_momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "sgd_dampening": partial(SGD, lr=0.05, momentum=0.9, dampening=0.3),
    "sgd_nesterov": partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": partial(Adam, lr=0.02),
    "adam_weight_decay": partial(Adam, lr=0.02, betas=(0.8, 0.99), weight_decay=0.1),
    "adam_amsgrad": partial(Adam, lr=0.02, amsgrad=True),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
    "adamw_amsgrad": partial(AdamW, lr=0.02, weight_decay=0.1, amsgrad=True),
    "adamw_maximize": partial(AdamW, lr=0.002, weight_decay=0.1, maximize=True),
}


def example(name: str) -> ModuleType:
    """examples/<name>.py as a module, not run as a script."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def initial_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """A float64 array for each name, whatever the order of the names.

    Matrices and kernels are normal with variance 1 / fan-in, vectors called weight (norms) lie near 1, biases near 0.
    """
    weights = {}
    for name, shape in shapes.items():
        noise = np.random.default_rng((SEED, zlib.crc32(name.encode()))).standard_normal(shape)
        if len(shape) > 1:
            weights[name] = noise / np.sqrt(np.prod(shape[1:]))
        else:
            weights[name] = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
    return weights


def set_weights(model: nn.Module) -> None:
    """Fill the parameters of `model`, each once even where two modules share it."""
    parameters = dict(model.named_parameters())
    weights = initial_weights({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    with engine.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(engine.from_numpy(weights[name]))


def digits_batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images (32, 1, 8, 8) float64, a noisy template for each class, and labels (32,) int64."""
    rng = np.random.default_rng((SEED, 1))
    templates = rng.standard_normal((10, 1, 8, 8))
    for _ in range(STEPS):
        labels = rng.integers(0, 10, 32)
        yield templates[labels] + 0.5 * rng.standard_normal((32, 1, 8, 8)), labels


def gpt_batches(context: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens (8, context) int64 that count up in steps of 1 to 4, and the tokens that follow them, (8 * context,)."""
    rng = np.random.default_rng((SEED, 2))
    for _ in range(STEPS):
        starts, strides = rng.integers(0, 256, (8, 1)), rng.integers(1, 5, (8, 1))
        tokens = (starts + strides * np.arange(context + 1)) % 256
        yield tokens[:, :-1].copy(), tokens[:, 1:].flatten()


def digits_losses(dtype: engine.dtype) -> list[float]:
    """Loss of every step of the digits example's network, channels-last, under AdamW."""
    model = example("digits").DigitsNet().to(dtype=dtype).to(memory_format=engine.channels_last)
    set_weights(model)
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for images, labels in digits_batches():
        inputs = engine.from_numpy(images).to(dtype).to(memory_format=engine.channels_last)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), engine.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gpt_losses(dtype: engine.dtype) -> list[float]:
    """Loss of every step of the GPT example's network under its clipping and its two AdamW groups."""
    gpt_stdlib = example("gpt_stdlib")
    model = gpt_stdlib.GPT().to(dtype=dtype)
    set_weights(model)
    optimizer = AdamW(gpt_stdlib.decay_groups(model), lr=1e-3, betas=(0.9, 0.95), fused=True)
    losses = []
    for tokens, targets in gpt_batches(model.context):
        optimizer.zero_grad()
        loss = gpt_stdlib.loss_of(model, engine.from_numpy(tokens), engine.from_numpy(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def optimizer_trajectory(name: str) -> tuple[list[float], dict[str, list[float]]]:
    """Losses and final parameters (flattened) of a small float64 regression under OPTIMIZERS[name]."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype=engine.float64)
    set_weights(model)
    rng = np.random.default_rng((SEED, 3))
    inputs = engine.from_numpy(rng.standard_normal((16, 6)))
    targets = engine.from_numpy(rng.standard_normal((16, 3)))
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: parameter.detach().flatten().tolist() for key, parameter in model.named_parameters()}
