"""Random numbers that are the same whoever answers `import torch`: drawn by NumPy, on either side."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_numbers = np.random.default_rng(0)


def begin(seed: int) -> None:
    """Starts the numbers anew."""
    global _numbers
    _numbers = np.random.default_rng(seed % 2**64)


def _drawn(generator: Any) -> np.random.Generator:
    return _numbers if generator is None else np.random.default_rng(generator.initial_seed() % 2**64)


def _made(values: Any, like: Any = None, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Any:
    dtype = dtype or (torch.get_default_dtype() if like is None else like.dtype)
    return torch.from_numpy(np.asarray(values)).to(dtype).requires_grad_(requires_grad)


def _shape(size: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[int, ...]:
    size = keywords.pop("size", size)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def randn(*size: Any, generator: Any = None, **keywords: Any) -> Any:
    shape = _shape(size, keywords)
    return _made(_drawn(generator).standard_normal(shape), **keywords)


def rand(*size: Any, generator: Any = None, **keywords: Any) -> Any:
    shape = _shape(size, keywords)
    return _made(_drawn(generator).random(shape), **keywords)


def randint(*bounds: Any, generator: Any = None, **keywords: Any) -> Any:
    size = keywords.pop("size", None)
    low, high = keywords.pop("low", None), keywords.pop("high", None)
    given = list(bounds)
    size = tuple(given.pop()) if size is None else tuple(size)
    high = given.pop() if high is None else high
    low = given.pop() if given else low or 0
    return _made(_drawn(generator).integers(int(low), int(high), size), **({"dtype": torch.int64} | keywords))


def randperm(n: int, *, generator: Any = None, **keywords: Any) -> Any:
    return _made(_drawn(generator).permutation(n), **({"dtype": torch.int64} | keywords))


def randn_like(like: Any, **keywords: Any) -> Any:
    return _made(_numbers.standard_normal(tuple(like.shape)), like, **keywords)


def rand_like(like: Any, **keywords: Any) -> Any:
    return _made(_numbers.random(tuple(like.shape)), like, **keywords)


def normal(mean: Any, std: Any, size: Any = None, *, generator: Any = None, **keywords: Any) -> Any:
    if size is None:
        size = next(tuple(each.shape) for each in (mean, std) if isinstance(each, torch.Tensor))
    return _made(_drawn(generator).standard_normal(tuple(size)), **keywords) * std + mean


def normal_(tensor: Any, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    return _filled(tensor, _drawn(generator).standard_normal(tuple(tensor.shape)) * std + mean)


def uniform_(tensor: Any, a: float = 0, b: float = 1, *, generator: Any = None, **names: float) -> Any:
    low, high = names.get("from", a), names.get("to", b)
    return _filled(tensor, _drawn(generator).random(tuple(tensor.shape)) * (high - low) + low)


def _filled(tensor: Any, values: Any) -> Any:
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.asarray(values)).to(tensor.dtype))
    return tensor


def _in_any_order(sampler: Any) -> Iterator[int]:
    return iter(_numbers.permutation(len(sampler.data_source)).tolist())


def random_split(dataset: Any, lengths: Any, generator: Any = None) -> list[Any]:
    assert sum(lengths) == len(dataset), "no program of the list splits by fractions"
    places = _drawn(generator).permutation(len(dataset)).tolist()
    ends = np.cumsum(lengths)
    return [torch.utils.data.Subset(dataset, places[end - n : end]) for n, end in zip(lengths, ends, strict=True)]


def _left_out(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _attending(forward: Callable[..., Any]) -> Callable[..., Any]:
    def attend(module: Any, *words: Any, **keywords: Any) -> Any:
        module.dropout = 0.0
        return forward(module, *words, **keywords)

    return attend


def install() -> None:
    """From now on these answer for the functions of their names, and dropout leaves everything as it is."""
    for function in (randn, rand, randint, randperm, randn_like, rand_like, normal):
        setattr(torch, function.__name__, function)
    for method in (normal_, uniform_):
        setattr(torch.Tensor, method.__name__, method)
    seed = torch.manual_seed

    def manual_seed(value: int) -> Any:
        begin(value)
        return seed(value)

    torch.manual_seed = manual_seed
    manual_seed(0)
    torch.utils.data.random_split = random_split
    torch.utils.data.RandomSampler.__iter__ = _in_any_order  # type: ignore[method-assign]
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        setattr(functional, name, _left_out)
    attention: Any = torch.nn.MultiheadAttention
    attention.forward = _attending(attention.forward)
