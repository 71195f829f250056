"""Sampling images at given places: affine grids and grid_sample. Jaderberg et al. (2015)."""

import warnings
from collections.abc import Sequence

import engine
from engine.calls.listening import heard
from engine.tensor import Tensor


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Places (N, H, W, 2) to which the affine maps `theta` (N, 2, 3) take the pixels of images of `size` (N, C, H, W).

    Coordinates (x, y) go from -1 to 1 over the image: from edge to edge, or between corner pixels with `align_corners`.
    Raises: ValueError or NotImplementedError for other shapes.
    """
    if align_corners is None:
        _warn("affine_grid")
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (2, 3) or len(size) != 4:
        raise NotImplementedError(
            f"affine_grid: expected theta (N, 2, 3) and a size of 4 entries, got {tuple(theta.shape)} and {tuple(size)}"
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {tuple(size)}")
    _, _, height, width = size

    def axis(length: int) -> Tensor:
        if align_corners:
            return (
                engine.linspace(-1, 1, length, dtype=theta.dtype) if length > 1 else engine.zeros(1, dtype=theta.dtype)
            )
        return (engine.arange(length, dtype=theta.dtype) * 2 + 1) / length - 1

    x, y = axis(width).to(theta.device), axis(height).to(theta.device)
    base = engine.stack(
        [
            x.view(1, width).expand(height, width),
            y.view(height, 1).expand(height, width),
            engine.ones(height, width, dtype=theta.dtype, device=theta.device),
        ],
        -1,
    )
    return (base.view(1, height * width, 3) @ theta.transpose(1, 2)).view(theta.shape[0], height, width, 2)


@heard
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The values of images (N, C, H, W) at the places (N, h, w, 2) of `grid`: (N, C, h, w).

    Modes: bilinear, nearest; outside the image zeros, the border, or its reflection. Coordinates as in `affine_grid`.
    Raises: ValueError for an unknown mode; RuntimeError or NotImplementedError for shapes that do not fit.
    """
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"nn.functional.grid_sample(): expected mode to be 'bilinear' or 'nearest', but got: '{mode}'")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"'{padding_mode}'"
        )
    if align_corners is None:
        _warn("grid_sample")
    if input.dim() != 4 or grid.dim() != 4:
        raise NotImplementedError(f"grid_sample: expected 4-D input and grid, got {input.dim()}-D and {grid.dim()}-D")
    if grid.shape[0] != input.shape[0] or grid.shape[3] != 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid (N, h, w, 2) with the batch size of the input, got input "
            f"{tuple(input.shape)} and grid {tuple(grid.shape)}"
        )
    height, width = input.shape[2:]
    x = _pixels(grid[..., 0], width, padding_mode, bool(align_corners))
    y = _pixels(grid[..., 1], height, padding_mode, bool(align_corners))
    if mode == "nearest":
        return _values(input, x.detach().round(), y.detach().round())
    left, top = x.detach().floor(), y.detach().floor()
    right_share, bottom_share = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
    upper = _values(input, left, top) * (1 - right_share) + _values(input, left + 1, top) * right_share
    lower = _values(input, left, top + 1) * (1 - right_share) + _values(input, left + 1, top + 1) * right_share
    return upper * (1 - bottom_share) + lower * bottom_share


def _warn(name: str) -> None:
    warnings.warn(
        f"Default {name} behavior is align_corners=False. Please specify align_corners=True if the old behavior is "
        "desired.",
        stacklevel=3,
    )


def _pixels(coordinate: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Coordinates -1 to 1 as pixels, brought into the image where the padding mode says so."""
    pixel = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return pixel * 0
        offset = (pixel - low).abs()
        turns = (offset.detach() / span).floor()
        rest = offset - turns * span
        pixel = engine.where(turns.remainder(2).eq(0), rest, span - rest) + low
    return pixel if padding_mode == "zeros" else pixel.clamp(0, size - 1)


def _values(input: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The pixels at whole places (N, h, w): (N, C, h, w), zero outside."""
    samples, channels, height, width = input.shape
    inside = (x >= 0).logical_and(x < width).logical_and(y >= 0).logical_and(y < height)
    index = y.clamp(0, height - 1).to(engine.int64) * width + x.clamp(0, width - 1).to(engine.int64)
    index = index.reshape(samples, 1, -1).expand(samples, channels, index.shape[1] * index.shape[2])
    values = input.reshape(samples, channels, height * width).gather(2, index)
    return values.reshape(samples, channels, *x.shape[1:]) * inside.unsqueeze(1).to(input.dtype)
