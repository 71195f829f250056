"""Cases that run alike on `engine` and on PyTorch: every layer and loss, with the arrays that go in. Used by
`nn_reference.py` (PyTorch, to write `nn_reference.json`) and by tests/engine/nn.

A case is (name, how to build the module from the package `nn`, input arrays). Floating point inputs get gradients
unless `fixed` lists their position; parameters are filled by `fill`, so both sides compute with the same numbers.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Uniform float64 numbers, the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def ints(*shape: int, below: int, seed: int = 0) -> np.ndarray:
    """Uniform int64 numbers from 0."""
    return np.random.default_rng([seed, *shape]).integers(0, below, shape)


def signs(*shape: int) -> np.ndarray:
    """1.0 and -1.0 in turn."""
    return np.resize(np.array([1.0, -1.0]), shape)


def fill(shape: tuple[int, ...], number: int) -> np.ndarray:
    """The values of parameter or buffer `number` of a module: positive for variances, small."""
    return np.random.default_rng([7, number, *shape]).uniform(0.1, 0.6, shape)


class Case(NamedTuple):
    """`build(nn)` gives the module; `inputs` are its positional, `keywords` its named arguments; `eval`: in evaluation
    mode.
    """

    name: str
    build: Callable[[Any], Any]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any] = MappingProxyType({})
    eval: bool = False
    fixed: tuple[int, ...] = ()  # positions of floating inputs that take no gradient


def _activations() -> list[Case]:
    x = floats(3, 5, low=-4, high=4)
    names = (
        "ReLU ReLU6 Hardtanh ELU CELU SELU SiLU Mish Hardsigmoid Hardswish LeakyReLU GELU Tanh Sigmoid LogSigmoid "
        "Softplus Softsign Tanhshrink Hardshrink Softshrink"
    )
    plain = names.split()
    cases = [Case(name, lambda nn, name=name: getattr(nn, name)(), (x,)) for name in plain]
    inplace = plain[: plain.index("GELU")]
    cases += [
        Case(
            f"{name} in place",
            lambda nn, name=name: nn.Sequential(nn.Identity(), Twice(nn), getattr(nn, name)(inplace=True)),
            (x,),
        )
        for name in inplace
    ]
    return [
        *cases,
        Case("GELU tanh", lambda nn: nn.GELU(approximate="tanh"), (x,)),
        Case("ELU alpha", lambda nn: nn.ELU(0.3), (x,)),
        Case("CELU alpha", lambda nn: nn.CELU(0.3), (x,)),
        Case("Threshold", lambda nn: nn.Threshold(0.1, 20.0), (x,)),
        Case("Softplus beta", lambda nn: nn.Softplus(2.0, 3.0), (x,)),
        Case("PReLU one", lambda nn: nn.PReLU(), (x,)),
        Case("PReLU channels", lambda nn: nn.PReLU(5), (floats(2, 5, 3),)),
        Case("RReLU", lambda nn: nn.RReLU(), (x,), eval=True),
        Case("GLU", lambda nn: nn.GLU(0), (floats(4, 3),)),
        Case("Softmax", lambda nn: nn.Softmax(1), (x,)),
        Case("Softmin", lambda nn: nn.Softmin(0), (x,)),
        Case("LogSoftmax", lambda nn: nn.LogSoftmax(-1), (x,)),
        Case("Softmax2d", lambda nn: nn.Softmax2d(), (floats(2, 3, 2, 2),)),
    ]


def Twice(nn: Any) -> Any:
    """A layer that doubles, so that what comes next may write in place."""

    class Doubling(nn.Module):
        def forward(self, input: Any) -> Any:
            return input * 2

    return Doubling()


def _linear() -> list[Case]:
    return [
        Case("Linear", lambda nn: nn.Linear(4, 3), (floats(2, 4),)),
        Case("Linear 3d", lambda nn: nn.Linear(4, 3, bias=False), (floats(2, 5, 4),)),
        Case("Bilinear", lambda nn: nn.Bilinear(3, 4, 2), (floats(5, 3), floats(5, 4))),
        Case("Identity", lambda nn: nn.Identity(54, unused=0.1), (floats(2, 4),)),
        Case("Flatten", lambda nn: nn.Flatten(), (floats(2, 3, 4),)),
        Case("Unflatten", lambda nn: nn.Unflatten(1, (2, -1)), (floats(2, 6),)),
        Case("Embedding", lambda nn: nn.Embedding(6, 3, padding_idx=2), (ints(2, 4, below=6),)),
        Case("Embedding frequency", lambda nn: nn.Embedding(6, 3, scale_grad_by_freq=True), (ints(3, 4, below=6),)),
        Case("EmbeddingBag mean", lambda nn: nn.EmbeddingBag(6, 3), (ints(2, 4, below=6),)),
        Case(
            "EmbeddingBag sum",
            lambda nn: nn.EmbeddingBag(6, 3, mode="sum", padding_idx=1),
            (ints(8, below=6), np.array([0, 3, 3])),
        ),
        Case("EmbeddingBag max", lambda nn: nn.EmbeddingBag(6, 3, mode="max"), (ints(8, below=6), np.array([0, 2, 5]))),
    ]


def _convolutions() -> list[Case]:
    image = floats(2, 4, 6, 5)
    return [
        Case("Conv1d", lambda nn: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (floats(2, 4, 9),)),
        Case("Conv1d same", lambda nn: nn.Conv1d(4, 2, 4, padding="same", dilation=2), (floats(2, 4, 9),)),
        Case("Conv2d", lambda nn: nn.Conv2d(4, 3, 3, padding=(1, 2), stride=(2, 1)), (image,)),
        Case("Conv2d unbatched", lambda nn: nn.Conv2d(4, 3, 3, bias=False), (floats(4, 6, 5),)),
        Case("Conv2d depthwise", lambda nn: nn.Conv2d(4, 8, 3, groups=4, dilation=2, padding=2), (image,)),
        *[
            Case(
                f"Conv2d {mode}",
                lambda nn, mode=mode: nn.Conv2d(4, 3, 3, padding=1, padding_mode=mode),
                (image,),
            )
            for mode in ("reflect", "replicate", "circular")
        ],
        Case("Conv2d same circular", lambda nn: nn.Conv2d(4, 3, 4, padding="same", padding_mode="circular"), (image,)),
        Case("Conv3d", lambda nn: nn.Conv3d(2, 3, 2, padding=1), (floats(1, 2, 3, 4, 3),)),
        Case(
            "ConvTranspose1d", lambda nn: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, groups=2), (floats(2, 4, 5),)
        ),
        Case(
            "ConvTranspose2d",
            lambda nn: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, dilation=2),
            (floats(1, 4, 3, 2),),
        ),
        Case(
            "ConvTranspose2d size",
            lambda nn: nn.ConvTranspose2d(4, 3, 3, stride=2),
            (floats(1, 4, 3, 2),),
            {"output_size": (8, 6)},
        ),
        Case("ConvTranspose3d", lambda nn: nn.ConvTranspose3d(2, 3, 2, stride=2), (floats(1, 2, 2, 2, 2),)),
        Case("Unfold", lambda nn: nn.Unfold((2, 3), padding=1, stride=2), (image,)),
        Case("Fold", lambda nn: nn.Fold((4, 5), (2, 3), padding=1, stride=2), (floats(1, 12, 9),)),
    ]


def _norms() -> list[Case]:
    image = floats(2, 4, 3, 2)
    return [
        Case("BatchNorm1d", lambda nn: nn.BatchNorm1d(4), (floats(5, 4),)),
        Case("BatchNorm1d sequence", lambda nn: nn.BatchNorm1d(4, momentum=None), (floats(5, 4, 3),)),
        Case("BatchNorm2d", lambda nn: nn.BatchNorm2d(4, eps=1e-3, momentum=0.3), (image,)),
        Case("BatchNorm2d eval", lambda nn: nn.BatchNorm2d(4), (image,), eval=True),
        Case(
            "BatchNorm2d untracked",
            lambda nn: nn.BatchNorm2d(4, track_running_stats=False, affine=False),
            (image,),
            eval=True,
        ),
        Case("BatchNorm3d", lambda nn: nn.BatchNorm3d(2), (floats(2, 2, 2, 2, 2),)),
        Case("InstanceNorm1d", lambda nn: nn.InstanceNorm1d(4), (floats(2, 4, 5),)),
        Case("InstanceNorm2d", lambda nn: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (image,)),
        Case(
            "InstanceNorm2d eval",
            lambda nn: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            (image,),
            eval=True,
        ),
        Case("InstanceNorm2d unbatched", lambda nn: nn.InstanceNorm2d(4), (floats(4, 3, 2),)),
        Case("InstanceNorm3d", lambda nn: nn.InstanceNorm3d(2), (floats(2, 2, 2, 2, 2),)),
        Case("LayerNorm", lambda nn: nn.LayerNorm(5), (floats(3, 5),)),
        Case("LayerNorm two axes", lambda nn: nn.LayerNorm((2, 5), bias=False), (floats(3, 2, 5),)),
        Case("GroupNorm", lambda nn: nn.GroupNorm(2, 4), (image,)),
        Case("RMSNorm", lambda nn: nn.RMSNorm(5), (floats(3, 5),)),
        Case("RMSNorm two axes", lambda nn: nn.RMSNorm((2, 5), eps=1e-3), (floats(3, 2, 5),)),
        Case("LocalResponseNorm", lambda nn: nn.LocalResponseNorm(3, alpha=0.1), (image,)),
    ]


def _pooling() -> list[Case]:
    line, image, volume = floats(2, 3, 9), floats(2, 3, 7, 6), floats(1, 2, 4, 5, 6)
    return [
        Case("MaxPool1d", lambda nn: nn.MaxPool1d(3, stride=2, padding=1), (line,)),
        Case("MaxPool2d", lambda nn: nn.MaxPool2d((3, 2), ceil_mode=True), (image,)),
        Case("MaxPool2d dilated", lambda nn: nn.MaxPool2d(2, stride=1, dilation=2), (image,)),
        Case("MaxPool2d indices", lambda nn: nn.MaxPool2d(2, return_indices=True), (image,)),
        Case("MaxPool3d", lambda nn: nn.MaxPool3d(2), (volume,)),
        Case("MaxUnpool2d", lambda nn: nn.MaxUnpool2d(2), (floats(1, 1, 2, 2), np.array([[[[0, 3], [9, 14]]]]))),
        Case("MaxUnpool1d", lambda nn: nn.MaxUnpool1d(2), (floats(1, 2, 2), np.array([[[0, 3], [1, 2]]]))),
        Case("AvgPool1d", lambda nn: nn.AvgPool1d(3, stride=2, padding=1), (line,)),
        Case(
            "AvgPool2d",
            lambda nn: nn.AvgPool2d((3, 2), padding=(1, 0), count_include_pad=False, ceil_mode=True),
            (image,),
        ),
        Case("AvgPool2d divisor", lambda nn: nn.AvgPool2d(2, divisor_override=3), (image,)),
        Case("AvgPool3d", lambda nn: nn.AvgPool3d(2), (volume,)),
        Case("LPPool1d", lambda nn: nn.LPPool1d(2, 3, stride=2), (line,)),
        Case("LPPool2d", lambda nn: nn.LPPool2d(2, (2, 3)), (image,)),
        Case("LPPool3d", lambda nn: nn.LPPool3d(2, 2), (volume,)),
        Case("AdaptiveAvgPool1d", lambda nn: nn.AdaptiveAvgPool1d(4), (line,)),
        Case("AdaptiveAvgPool2d", lambda nn: nn.AdaptiveAvgPool2d((3, None)), (image,)),
        Case("AdaptiveAvgPool3d", lambda nn: nn.AdaptiveAvgPool3d((2, 3, 1)), (volume,)),
        Case("AdaptiveMaxPool1d", lambda nn: nn.AdaptiveMaxPool1d(4), (line,)),
        Case("AdaptiveMaxPool2d", lambda nn: nn.AdaptiveMaxPool2d((3, 4)), (image,)),
        Case("AdaptiveMaxPool3d", lambda nn: nn.AdaptiveMaxPool3d(2), (volume,)),
    ]


def _rearranging() -> list[Case]:
    image = floats(1, 2, 4, 3)
    pads = {1: (2, 1), 2: (1, 2, 2, 1), 3: (1, 2, 2, 1, 1, 1)}
    inputs = {1: floats(2, 2, 4), 2: image, 3: floats(1, 1, 3, 4, 3)}
    cases = [
        Case(
            f"{kind}Pad{dims}d",
            lambda nn, kind=kind, dims=dims: getattr(nn, f"{kind}Pad{dims}d")(pads[dims]),
            (inputs[dims],),
        )
        for kind in ("Zero", "Reflection", "Replication", "Circular")
        for dims in (1, 2, 3)
    ]
    cases += [
        Case(
            f"ConstantPad{dims}d",
            lambda nn, dims=dims: getattr(nn, f"ConstantPad{dims}d")(pads[dims], 1.5),
            (inputs[dims],),
        )
        for dims in (1, 2, 3)
    ]

    def upsample(name: str, image: np.ndarray, **options: Any) -> Case:
        return Case(f"Upsample {name}", lambda nn: nn.Upsample(**options), (image,))

    line, volume = floats(1, 2, 5), floats(1, 1, 2, 3, 2)
    return [
        *cases,
        Case("ZeroPad2d cropping", lambda nn: nn.ZeroPad2d((-1, 1, 0, -1)), (image,)),
        upsample("nearest", image, scale_factor=2),
        upsample("nearest down", floats(1, 1, 7, 5), size=(3, 4)),
        upsample("nearest fraction", image, scale_factor=(1.5, 2.3)),
        upsample("nearest-exact", image, size=(7, 2), mode="nearest-exact"),
        upsample("linear", line, size=8, mode="linear"),
        upsample("linear corners", line, size=8, mode="linear", align_corners=True),
        upsample("bilinear", image, scale_factor=1.7, mode="bilinear"),
        upsample("bilinear recomputed", image, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        upsample("bilinear corners", image, size=(3, 7), mode="bilinear", align_corners=True),
        upsample("bicubic", image, scale_factor=2, mode="bicubic"),
        upsample("bicubic corners", image, size=(5, 2), mode="bicubic", align_corners=True),
        upsample("trilinear", volume, size=(3, 2, 4), mode="trilinear"),
        upsample("area", image, size=(2, 2), mode="area"),
        Case("UpsamplingNearest2d", lambda nn: nn.UpsamplingNearest2d(scale_factor=2), (image,)),
        Case("UpsamplingBilinear2d", lambda nn: nn.UpsamplingBilinear2d(scale_factor=2), (image,)),
        Case("PixelShuffle", lambda nn: nn.PixelShuffle(2), (floats(1, 8, 2, 3),)),
        Case("PixelUnshuffle", lambda nn: nn.PixelUnshuffle(2), (floats(1, 2, 4, 6),)),
        Case("ChannelShuffle", lambda nn: nn.ChannelShuffle(2), (floats(1, 6, 2),)),
        Case("CosineSimilarity", lambda nn: nn.CosineSimilarity(), (floats(3, 4), floats(3, 4, seed=1))),
        Case("PairwiseDistance", lambda nn: nn.PairwiseDistance(keepdim=True), (floats(3, 4), floats(3, 4, seed=1))),
        Case("PairwiseDistance p1", lambda nn: nn.PairwiseDistance(1.0), (floats(3, 4), floats(3, 4, seed=1))),
    ]


def Function(nn: Any, name: str, *arguments: Any) -> Any:
    """A layer that calls a function of `nn.functional` with further arguments."""

    class Calling(nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return getattr(nn.functional, name)(*inputs, *arguments)

    return Calling()


def _functions() -> list[Case]:
    image, grid = floats(2, 3, 5, 4), floats(2, 3, 6, 2, low=-2.2, high=2.2)
    theta = floats(2, 2, 3)
    cases = [
        Case(
            f"grid_sample {mode} {padding} {corners}",
            lambda nn, options=(mode, padding, corners): Function(nn, "grid_sample", *options),
            (image, grid),
            fixed=() if mode == "bilinear" else (1,),
        )
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
    ]
    return [
        *cases,
        Case("affine_grid corners", lambda nn: Function(nn, "affine_grid", (2, 3, 4, 5), True), (theta,)),
        Case("affine_grid edges", lambda nn: Function(nn, "affine_grid", (2, 3, 1, 5), False), (theta,)),
        Case("normalize", lambda nn: Function(nn, "normalize", 1.5, -1), (floats(3, 4),)),
        Case(
            "smooth_l1_loss zero",
            lambda nn: Function(nn, "smooth_l1_loss", None, None, "sum", 0.0),
            (floats(3), floats(3, seed=1)),
        ),
    ]


def _recurrent() -> list[Case]:
    sequence, single = floats(4, 2, 3), floats(4, 3)
    return [
        Case("RNN", lambda nn: nn.RNN(3, 5), (sequence,)),
        Case("RNN relu", lambda nn: nn.RNN(3, 5, nonlinearity="relu", num_layers=2, bias=False), (sequence,)),
        Case("RNN state", lambda nn: nn.RNN(3, 5, bidirectional=True, num_layers=2), (sequence, floats(4, 2, 5))),
        Case("LSTM", lambda nn: nn.LSTM(3, 5, num_layers=2, bidirectional=True, batch_first=True), (floats(2, 4, 3),)),
        Case("LSTM unbatched", lambda nn: nn.LSTM(3, 5), (single, (floats(1, 5), floats(1, 5, seed=1)))),
        Case("LSTM projected", lambda nn: nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True), (sequence,)),
        Case("GRU", lambda nn: nn.GRU(3, 5, num_layers=2), (sequence,)),
        Case("GRU bidirectional", lambda nn: nn.GRU(3, 5, bidirectional=True, bias=False), (sequence, floats(2, 2, 5))),
        Case("GRU unbatched", lambda nn: nn.GRU(3, 5, batch_first=True), (single,)),
        Case("RNNCell", lambda nn: nn.RNNCell(3, 5, nonlinearity="relu"), (floats(2, 3), floats(2, 5))),
        Case("LSTMCell", lambda nn: nn.LSTMCell(3, 5), (floats(2, 3), (floats(2, 5), floats(2, 5, seed=1)))),
        Case("GRUCell", lambda nn: nn.GRUCell(3, 5), (floats(3), floats(5))),
    ]


def _attention() -> list[Case]:
    query, memory = floats(3, 2, 8), floats(4, 2, 8, seed=1)
    causal = np.triu(np.full((3, 3), -np.inf), 1)
    hidden = np.array([[False, False, True], [False, True, True]])
    return [
        Case("MultiheadAttention self", lambda nn: Self(nn, nn.MultiheadAttention(8, 2)), (query,)),
        Case("MultiheadAttention cross", lambda nn: nn.MultiheadAttention(8, 2), (query, memory, memory)),
        Case(
            "MultiheadAttention three",
            lambda nn: nn.MultiheadAttention(8, 4, batch_first=True),
            (floats(2, 3, 8), floats(2, 4, 8), floats(2, 4, 8, seed=2)),
            {"average_attn_weights": False},
        ),
        Case(
            "MultiheadAttention kdim",
            lambda nn: nn.MultiheadAttention(8, 2, kdim=5, vdim=6, bias=False),
            (query, floats(4, 2, 5), floats(4, 2, 6)),
        ),
        Case(
            "MultiheadAttention extra",
            lambda nn: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
            (query, query, query),
            {"attn_mask": causal},
        ),
        Case(
            "MultiheadAttention masks",
            lambda nn: nn.MultiheadAttention(8, 2),
            (query, query, query),
            {"key_padding_mask": hidden, "need_weights": False},
        ),
        Case(
            "MultiheadAttention causal",
            lambda nn: nn.MultiheadAttention(8, 2),
            (query, query, query),
            {"attn_mask": causal, "need_weights": False, "is_causal": True},
        ),
        Case(
            "MultiheadAttention unbatched",
            lambda nn: nn.MultiheadAttention(8, 2),
            (floats(3, 8), floats(4, 8), floats(4, 8)),
            {"attn_mask": ints(3, 4, below=2).astype(bool) & (np.arange(4) > 0)},
        ),
        Case("TransformerEncoderLayer", lambda nn: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (query,)),
        Case(
            "TransformerEncoderLayer first",
            lambda nn: nn.TransformerEncoderLayer(
                8, 2, 16, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
            ),
            (floats(2, 3, 8),),
            {"src_key_padding_mask": hidden},
        ),
        Case(
            "TransformerEncoder",
            lambda nn: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, norm=nn.LayerNorm(8), enable_nested_tensor=False
            ),
            (query,),
            {"mask": causal},
        ),
        Case(
            "TransformerDecoderLayer",
            lambda nn: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
            (query, memory),
            {"tgt_mask": causal},
        ),
        Case(
            "TransformerDecoderLayer first",
            lambda nn: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=True, bias=False),
            (query, memory),
        ),
        Case(
            "Transformer", lambda nn: nn.Transformer(8, 2, 1, 2, 16, dropout=0.0), (memory, query), {"tgt_mask": causal}
        ),
    ]


def Self(nn: Any, attention: Any) -> Any:
    """Attention of one input to itself: query, key and value are the same tensor."""

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, input: Any) -> Any:
            return self.attention(input, input, input)

    return SelfAttention()


def _losses() -> list[Case]:
    x, y = floats(4, 5), floats(4, 5, seed=1)
    probabilities = floats(4, 5, low=0.05, high=0.95)
    logs = np.log(floats(4, 5, low=0.1, high=0.3))
    binary = ints(4, 5, below=2).astype(float)
    classes = ints(4, below=5)
    weights = floats(5, low=0.2, high=1.5)
    one, two, three = (floats(4, 6, seed=seed) for seed in (2, 3, 4))
    fixed = (1,)

    def each(name: str, build: Callable[..., Any], *inputs: Any, fixed: tuple[int, ...] = fixed) -> list[Case]:
        return [
            Case(f"{name} {reduction}", lambda nn, r=reduction: build(nn, r), inputs, fixed=fixed)
            for reduction in ("mean", "sum", "none")
        ]

    return [
        *each("L1Loss", lambda nn, r: nn.L1Loss(reduction=r), x, y),
        *each("MSELoss", lambda nn, r: nn.MSELoss(reduction=r), x, y),
        *each("SmoothL1Loss", lambda nn, r: nn.SmoothL1Loss(reduction=r, beta=0.7), x, y),
        *each("HuberLoss", lambda nn, r: nn.HuberLoss(reduction=r, delta=0.7), x, y),
        *each("BCELoss", lambda nn, r: nn.BCELoss(reduction=r), probabilities, binary),
        *each("BCEWithLogitsLoss", lambda nn, r: nn.BCEWithLogitsLoss(reduction=r), x, binary),
        *each("KLDivLoss", lambda nn, r: nn.KLDivLoss(reduction=r), logs, probabilities),
        Case(
            "KLDivLoss batchmean",
            lambda nn: nn.KLDivLoss(reduction="batchmean", log_target=True),
            (logs, y),
            fixed=fixed,
        ),
        *each("PoissonNLLLoss", lambda nn, r: nn.PoissonNLLLoss(reduction=r, full=True), x, binary * 3),
        Case(
            "PoissonNLLLoss rates", lambda nn: nn.PoissonNLLLoss(log_input=False), (probabilities, binary), fixed=fixed
        ),
        *each(
            "GaussianNLLLoss",
            lambda nn, r: nn.GaussianNLLLoss(reduction=r, full=True),
            x,
            y,
            floats(4, 1, low=0.1, high=1),
        ),
        *each("CrossEntropyLoss", lambda nn, r: nn.CrossEntropyLoss(reduction=r), x, classes),
        Case(
            "CrossEntropyLoss smooth", lambda nn: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2), (x, classes)
        ),
        Case("CrossEntropyLoss image", lambda nn: nn.CrossEntropyLoss(), (floats(2, 3, 2, 2), ints(2, 2, 2, below=3))),
        Case("CrossEntropyLoss probabilities", lambda nn: nn.CrossEntropyLoss(), (x, np.exp(y)), fixed=fixed),
        *each("NLLLoss", lambda nn, r: nn.NLLLoss(reduction=r, ignore_index=1), logs, classes),
        *each("MarginRankingLoss", lambda nn, r: nn.MarginRankingLoss(0.3, reduction=r), x, y, signs(4, 5), fixed=(2,)),
        *each("HingeEmbeddingLoss", lambda nn, r: nn.HingeEmbeddingLoss(0.8, reduction=r), x, signs(4, 5)),
        *each("SoftMarginLoss", lambda nn, r: nn.SoftMarginLoss(reduction=r), x, signs(4, 5)),
        *each(
            "MultiLabelMarginLoss",
            lambda nn, r: nn.MultiLabelMarginLoss(reduction=r),
            x,
            np.array([[3, 0, -1, 1, 2], [0, -1, 0, 0, 0], [4, 3, 2, 1, 0], [-1, 0, 1, 2, 3]]),
        ),
        *each("MultiLabelSoftMarginLoss", lambda nn, r: nn.MultiLabelSoftMarginLoss(reduction=r), x, binary),
        *each("MultiMarginLoss", lambda nn, r: nn.MultiMarginLoss(reduction=r), x, classes),
        Case("MultiMarginLoss squared", lambda nn: nn.MultiMarginLoss(p=2, margin=0.5), (x, classes)),
        *each(
            "CosineEmbeddingLoss",
            lambda nn, r: nn.CosineEmbeddingLoss(0.1, reduction=r),
            one,
            two,
            signs(4),
            fixed=(2,),
        ),
        *each("TripletMarginLoss", lambda nn, r: nn.TripletMarginLoss(reduction=r), one, two, three, fixed=()),
        Case("TripletMarginLoss swap", lambda nn: nn.TripletMarginLoss(p=1, swap=True, margin=3.0), (one, two, three)),
        *each(
            "TripletMarginWithDistanceLoss",
            lambda nn, r: nn.TripletMarginWithDistanceLoss(reduction=r),
            one,
            two,
            three,
            fixed=(),
        ),
        Case("Weighted losses", lambda nn: Weighted(nn, weights), (x, classes)),
        *each(
            "CTCLoss",
            lambda nn, r: nn.CTCLoss(reduction=r),
            np.log(floats(6, 3, 4, low=0.1, high=0.4)),
            ints(3, 2, below=3) + 1,
            (6, 4, 1),
            (2, 1, 2),
        ),
        *each(
            "CTCLoss zero_infinity",
            lambda nn, r: nn.CTCLoss(3, r, True),
            np.log(floats(6, 3, 4, low=0.1, high=0.4)),
            ints(5, below=3),
            (6, 4, 1),
            (2, 1, 2),
        ),
        Case(
            "AdaptiveLogSoftmaxWithLoss",
            lambda nn: nn.AdaptiveLogSoftmaxWithLoss(6, 12, [3, 7], 2.0, True),
            (floats(5, 6), np.array([0, 3, 6, 7, 11])),
        ),
    ]


def Weighted(nn: Any, weights: np.ndarray) -> Any:
    """The sum of all losses that take a weight for each class; the weight is a buffer that `fill` overwrites."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Linear(len(weights), 1, bias=False).weight.detach()[0]
            self.cross_entropy = nn.CrossEntropyLoss(weight, label_smoothing=0.2)
            self.nll = nn.NLLLoss(weight)
            self.margin = nn.MultiMarginLoss(weight=weight)
            self.bce = nn.BCEWithLogitsLoss(weight, pos_weight=weight)
            self.soft = nn.MultiLabelSoftMarginLoss(weight)

        def forward(self, input: Any, target: Any) -> Any:
            flags = (input.detach() > 0).to(input.dtype)
            return (
                self.cross_entropy(input, target)
                + self.nll(input, target)
                + self.margin(input, target)
                + self.bce(input, flags)
                + self.soft(input, flags)
            )

    return Sum()


CASES = [
    *_activations(),
    *_linear(),
    *_convolutions(),
    *_norms(),
    *_pooling(),
    *_rearranging(),
    *_functions(),
    *_recurrent(),
    *_attention(),
    *_losses(),
]


def run(case: Case, package: Any, nn: Any) -> dict[str, Any]:
    """What `case` computes with `package` (engine or torch) in float64: outputs, gradients, buffers afterwards, and the
    repr.
    """
    module = case.build(nn).double().train(not case.eval)
    for number, tensor in enumerate(module.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(package.from_numpy(fill(tuple(tensor.shape), number)))
    leaves: list[Any] = []

    def prepared(value: Any, position: int) -> Any:
        if isinstance(value, tuple):
            return tuple(prepared(each, position) for each in value)
        if not isinstance(value, np.ndarray):
            return value
        tensor = package.from_numpy(value.copy())
        if tensor.is_floating_point() and position not in case.fixed and position >= 0:
            leaves.append(tensor.requires_grad_(True))
        return tensor

    inputs = [prepared(value, position) for position, value in enumerate(case.inputs)]
    keywords = {name: prepared(value, -1) for name, value in case.keywords.items()}
    outputs = flattened(module(*inputs, **keywords))
    total = None
    for number, output in enumerate(outputs):
        if output.is_floating_point() and output.requires_grad:
            weight = package.from_numpy(floats(*output.shape, seed=100 + number)) if output.dim() else 1.5
            part = (output * weight).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    leaves += list(module.parameters())
    return {
        "repr": repr(module),
        "outputs": [numbers(output) for output in outputs],
        "shapes": [list(output.shape) for output in outputs],
        "gradients": [None if leaf.grad is None else numbers(leaf.grad) for leaf in leaves],
        "buffers": {name: numbers(buffer) for name, buffer in module.named_buffers()},
    }


def flattened(result: Any) -> list[Any]:
    """All tensors of a result, in order."""
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flattened(part)]
    return [] if result is None else [result]


def numbers(tensor: Any) -> list[Any]:
    """The elements in row-major order with nine digits; of more than 24, six random projections."""
    values = np.asarray(tensor.detach().numpy(), order="C").reshape(-1)
    if values.size > 24:
        values = np.random.default_rng(values.size).standard_normal((6, values.size)) @ values
    return [float(f"{value:.9g}") for value in values.tolist()]
