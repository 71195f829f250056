"""Every layer and every loss of `engine.nn` once: how it is made, what goes in; prints what comes out.

    python examples/layers.py            # all of them
    python examples/layers.py Conv       # those with Conv in their names

Names and arguments are PyTorch's. Inputs are (batch, features), (batch, channels, length), (batch, channels, height,
width) and so on; recurrent layers and Transformers take (time, batch, features) unless batch_first=True.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import engine
import engine.nn as nn
from engine import arange, ones, rand, randint, randn, tensor

Example = tuple[nn.Module, tuple[Any, ...]]


def linear() -> Iterator[Example]:
    """Products with weights, and reshaping."""
    yield nn.Linear(8, 4), (randn(2, 8),)
    yield nn.LazyLinear(4), (randn(2, 8),)  # the number of inputs is that of the first batch
    yield nn.Bilinear(8, 6, 4), (randn(2, 8), randn(2, 6))
    yield nn.Identity(), (randn(2, 8),)
    yield nn.Flatten(), (randn(2, 3, 4),)
    yield nn.Unflatten(1, (3, 4)), (randn(2, 12),)


def containers() -> Iterator[Example]:
    """Modules of modules, and of parameters."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
            self.named = nn.ModuleDict({"act": nn.ReLU(), "out": nn.Linear(8, 4)})
            self.scales = nn.ParameterList([nn.Parameter(ones(8)) for _ in range(2)])
            self.shifts = nn.ParameterDict({"last": nn.Parameter(engine.zeros(4))})
            self.seen = nn.Buffer(engine.zeros(()))  # saved with the model, not trained

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            self.seen += len(x)
            for block, scale in zip(self.blocks, self.scales, strict=True):
                x = x + scale * self.named["act"](block(x))
            return self.named["out"](x) + self.shifts["last"]

    yield Residual(), (randn(2, 8),)
    yield nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (randn(2, 8),)
    yield nn.DataParallel(nn.Linear(8, 4)), (randn(2, 8),)


def convolutions() -> Iterator[Example]:
    """Over length, area and volume, and their transposes."""
    sizes = (10,), (10, 10), (6, 6, 6)
    plain = nn.Conv1d, nn.Conv2d, nn.Conv3d
    transposed = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
    lazy = nn.LazyConv1d, nn.LazyConv2d, nn.LazyConv3d
    lazy_transposed = nn.LazyConvTranspose1d, nn.LazyConvTranspose2d, nn.LazyConvTranspose3d
    for dimension, size in enumerate(sizes):
        yield plain[dimension](4, 8, 3, padding=1), (randn(2, 4, *size),)
        yield transposed[dimension](4, 8, 2, stride=2), (randn(2, 4, *size),)
        yield lazy[dimension](8, 3), (randn(2, 4, *size),)
        yield lazy_transposed[dimension](8, 2), (randn(2, 4, *size),)
    yield nn.Conv2d(4, 4, 3, groups=4), (randn(2, 4, 10, 10),)  # depthwise
    yield nn.Unfold(3), (randn(2, 4, 10, 10),)
    yield nn.Fold((10, 10), 3), (randn(2, 36, 64),)


def pooling() -> Iterator[Example]:
    """The largest, the mean or a power mean of windows; windows of a size, or as many windows as asked for."""
    largest = nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d
    undone = nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d
    mean = nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d
    norm = nn.LPPool1d, nn.LPPool2d, nn.LPPool3d
    largest_of = nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d
    mean_of = nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d
    for dimension in range(3):
        x = randn(2, 4, *[8] * (dimension + 1))
        yield largest[dimension](2), (x,)
        values, places = largest[dimension](2, return_indices=True)(x)
        yield undone[dimension](2), (values, places)
        yield mean[dimension](2), (x,)
        yield norm[dimension](2, 2), (x.abs(),)
        yield largest_of[dimension](3), (x,)
        yield mean_of[dimension](3), (x,)


def padding() -> Iterator[Example]:
    """Around the last one, two or three dimensions."""
    for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular"):
        for dimension in (1, 2, 3):
            layer = getattr(nn, f"{kind}Pad{dimension}d")
            yield layer(1, 0.5) if kind == "Constant" else layer(1), (randn(2, 4, *[5] * dimension),)


def resizing() -> Iterator[Example]:
    """More, or other, pixels."""
    image = randn(2, 4, 6, 6)
    yield nn.Upsample(scale_factor=2, mode="bicubic"), (image,)
    yield nn.UpsamplingBilinear2d(scale_factor=2), (image,)
    yield nn.UpsamplingNearest2d(scale_factor=2), (image,)
    yield nn.PixelShuffle(2), (image,)
    yield nn.PixelUnshuffle(2), (image,)
    yield nn.ChannelShuffle(2), (image,)


def normalisation() -> Iterator[Example]:
    """Over the batch, over features, over groups of channels."""
    for dimension in (1, 2, 3):
        x = randn(4, 8, *[5] * dimension)
        for kind in ("BatchNorm", "InstanceNorm"):
            yield getattr(nn, f"{kind}{dimension}d")(8), (x,)
            yield getattr(nn, f"Lazy{kind}{dimension}d")(), (x,)
    yield nn.GroupNorm(2, 8), (randn(4, 8, 5),)
    yield nn.LayerNorm(8), (randn(4, 8),)
    yield nn.RMSNorm(8), (randn(4, 8),)
    yield nn.LocalResponseNorm(3), (randn(4, 8, 5),)


def activations() -> Iterator[Example]:
    """Element by element, or along a dimension."""
    x = randn(2, 8)
    names = "ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Softplus Softsign"
    names += " Softshrink Tanhshrink Hardtanh Hardsigmoid Hardswish Hardshrink GLU"
    for name in names.split():
        yield getattr(nn, name)(), (x,)
    yield nn.Threshold(0.1, 20), (x,)
    for layer in (nn.Softmax, nn.LogSoftmax, nn.Softmin):
        yield layer(dim=1), (x,)
    yield nn.Softmax2d(), (randn(2, 4, 3, 3),)


def dropout() -> Iterator[Example]:
    """Elements, or whole channels, become 0 in training; after .eval() nothing happens."""
    yield nn.Dropout(0.1), (randn(2, 8),)
    yield nn.AlphaDropout(0.1), (randn(2, 8),)
    yield nn.FeatureAlphaDropout(0.1), (randn(2, 4, 5),)
    for dimension, layer in enumerate((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), 1):
        yield layer(0.1), (randn(2, 4, *[5] * dimension),)


def sequences() -> Iterator[Example]:
    """Embeddings, recurrent networks, attention."""
    tokens = randint(0, 100, (5, 2))
    yield nn.Embedding(100, 8), (tokens,)
    yield nn.EmbeddingBag(100, 8, mode="mean"), (tokens,)
    x = randn(5, 2, 8)  # (time, batch, features)
    for name in ("RNN", "LSTM", "GRU"):
        yield getattr(nn, name)(8, 16, num_layers=2), (x,)
        yield getattr(nn, f"{name}Cell")(8, 16), (x[0],)
    yield nn.MultiheadAttention(8, 2), (x, x, x)
    yield nn.TransformerEncoderLayer(8, 2, 16), (x,)
    yield nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2), (x,)
    yield nn.TransformerDecoderLayer(8, 2, 16), (x, x)
    yield nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2), (x, x)
    yield nn.Transformer(8, 2, 1, 1, 16), (x, x)


def distances() -> Iterator[Example]:
    """Of rows."""
    yield nn.CosineSimilarity(), (randn(2, 8), randn(2, 8))
    yield nn.PairwiseDistance(), (randn(2, 8), randn(2, 8))


def losses() -> Iterator[Example]:
    """Outputs and targets to one number; reduction="none" gives one each."""
    x, y, sign = randn(4, 5), randn(4, 5), tensor([1.0, -1.0, 1.0, -1.0])
    classes, several = tensor([0, 4, 2, 1]), tensor([[1, 0, -1, -1, -1]] * 4)
    for loss in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss):
        yield loss(), (x, y)
    yield nn.CrossEntropyLoss(label_smoothing=0.1), (x, classes)
    yield nn.NLLLoss(), (x.log_softmax(1), classes)
    yield nn.AdaptiveLogSoftmaxWithLoss(5, 20, [4, 10], div_value=2.0), (x, classes)
    yield nn.KLDivLoss(reduction="batchmean"), (x.log_softmax(1), y.softmax(1))
    yield nn.BCELoss(), (x.sigmoid(), rand(4, 5))
    yield nn.BCEWithLogitsLoss(), (x, rand(4, 5))
    yield nn.PoissonNLLLoss(), (x, y.abs())
    yield nn.GaussianNLLLoss(), (x, y, ones(4, 5))
    yield nn.HingeEmbeddingLoss(), (x[:, 0], sign)
    yield nn.SoftMarginLoss(), (x[:, 0], sign)
    yield nn.MarginRankingLoss(), (x[:, 0], y[:, 0], sign)
    yield nn.CosineEmbeddingLoss(), (x, y, sign)
    yield nn.MultiMarginLoss(), (x, classes)
    yield nn.MultiLabelMarginLoss(), (x, several)
    yield nn.MultiLabelSoftMarginLoss(), (x, (several > 0).float())
    yield nn.TripletMarginLoss(), (x, y, randn(4, 5))
    yield nn.TripletMarginWithDistanceLoss(), (x, y, randn(4, 5))
    yield nn.CTCLoss(), (randn(9, 4, 6).log_softmax(2), arange(1, 5).expand(4, 4), tensor([9] * 4), tensor([3] * 4))


FAMILIES: tuple[Callable[[], Iterator[Example]], ...] = (
    linear,
    containers,
    convolutions,
    pooling,
    padding,
    resizing,
    normalisation,
    activations,
    dropout,
    sequences,
    distances,
    losses,
)


def described(value: Any) -> str:
    """The shape of a tensor, of each of several, or a number."""
    if isinstance(value, engine.Tensor):
        return str(tuple(value.shape)) if value.ndim else f"{value.item():.3f}"
    return "None" if value is None else ", ".join(described(each) for each in value)


def main() -> None:
    engine.manual_seed(0)
    for family in FAMILIES:
        for layer, inputs in family():
            name = type(layer).__name__
            if all(word in name for word in sys.argv[1:]):
                print(f"{name:29} {described(inputs)} -> {described(layer(*inputs))}")


if __name__ == "__main__":
    main()
