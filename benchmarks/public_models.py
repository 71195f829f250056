"""Models of public repositories, as whoever answers `import torch` builds them: what a training step of each needs.

`MODELS` says of each the repository, its shape of inputs and how to build it; the folder of clones is `SOURCES`. What
is a package is imported; of a script, or of a file whose imports are not there, only the named classes are taken
(`definitions`). Sizes are those of its authors where these take less than a second a step, or smaller ones.
"""

import ast
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

SOURCES = Path(os.environ["PUBLIC_MODELS"])

Step = Callable[[], Any]  # computes the loss of one batch
Built = tuple[list[Any], Step]  # modules whose parameters are trained, and the step


@contextmanager
def folder_of(path: str) -> Iterator[None]:
    """A folder of the clones where Python looks for modules. What was imported from it stays, for those who look for
    the module of a class, as torch.compile does; what was from another one is forgotten, which may have the same names.
    """
    folder = SOURCES / path
    for name, module in [*sys.modules.items()]:
        parents = Path(getattr(module, "__file__", None) or "").parents
        if SOURCES in parents and folder not in parents and SOURCES / "vision" not in parents:
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def found(path: str, module: str, name: str) -> Any:
    """A name of a module in a folder of the clones."""
    with folder_of(path):
        return getattr(importlib.import_module(module), name)


def definitions(file: str, *names: str, **known: Any) -> Any:
    """The classes and functions of a file, without running it; `known` are the other names that they use."""
    tree = ast.parse((SOURCES / file).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    module = types.ModuleType("definitions")
    vars(module).update(
        {"torch": torch, "nn": nn, "F": functional, "np": np, "Variable": lambda each, **_: each, **known}
    )
    sys.modules["definitions"] = module
    exec(compile(tree, file, "exec"), vars(module))
    return module


def torchvision(module: str, name: str) -> Any:
    """A name of torchvision.models, whose files run without torchvision's own compiled operators."""
    if "torchvision" not in sys.modules:
        _prepare_torchvision()
    return getattr(importlib.import_module(f"torchvision.models.{module}"), name)


def _prepare_torchvision() -> None:
    """Packages in whose folders the files are found, without what they do when they are imported."""
    for package in ("torchvision", "torchvision.models", "torchvision.ops", "torchvision.transforms"):
        _stand_in(package).__path__ = [str(SOURCES / "vision" / package.replace(".", "/"))]
    modes = types.SimpleNamespace(BILINEAR=1, BICUBIC=2)
    presets = {"ImageClassification": dict, "SemanticSegmentation": dict, "InterpolationMode": modes}
    _stand_in("torchvision.transforms._presets", **presets)  # what pictures become before the network
    _stand_in("torchvision._internally_replaced_utils", load_state_dict_from_url=None)  # nothing is downloaded
    _stand_in("torchvision.utils", _log_api_usage_once=lambda _: None, _make_ntuple=lambda x, n: (x,) * n)
    depth = importlib.import_module("torchvision.ops.stochastic_depth").StochasticDepth
    vars(sys.modules["torchvision.ops"])["StochasticDepth"] = depth


def _stand_in(name: str, **known: Any) -> Any:
    sys.modules[name] = module = types.ModuleType(name)
    vars(module).update(known)
    return module


def normal(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def whole(highest: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(1).integers(0, highest, shape))


def classified(model: Any, inputs: Any) -> Built:
    """Cross entropy with classes that are drawn; outputs are (N, ..., C), or (N, C, H, W) for each pixel."""
    with torch.no_grad():
        logits = logits_of(model(inputs))
    pixels = logits.ndim == 4
    classes = logits.shape[1] if pixels else logits.shape[-1]
    targets = whole(classes, *(logits.shape[0], *logits.shape[2:]) if pixels else logits.reshape(-1, classes).shape[:1])

    def step() -> Any:
        outputs = logits_of(model(inputs))
        return functional.cross_entropy(outputs if pixels else outputs.reshape(-1, classes), targets)

    return [model], step


def logits_of(outputs: Any) -> Any:
    """The logits among what a model returns: logits and more, or a dictionary of them (segmentation)."""
    if isinstance(outputs, dict):
        return outputs["out"]
    return outputs[0] if isinstance(outputs, tuple) else outputs


def vision(module: str, name: str, *shape: int, **options: Any) -> Built:
    return classified(torchvision(module, name)(weights=None, num_classes=10, **options), normal(*shape))


def segmentation(module: str, name: str, *shape: int) -> Built:
    options = {"weights": None, "weights_backbone": None, "num_classes": 10}
    return classified(torchvision(f"segmentation.{module}", name)(**options), normal(*shape))


def cifar(name: str, *arguments: Any) -> Built:
    return classified(found("pytorch-cifar", "models", name)(*arguments), normal(8, 3, 32, 32))


SMALL = {"image_size": 64, "patch_size": 16, "num_classes": 10, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 128}


def transformer(module: str, name: str, *shape: int, **options: Any) -> Built:
    return classified(found("vit-pytorch/vit_pytorch", module, name)(**(options or SMALL)), normal(*shape))


def unet(bilinear: bool) -> Built:
    return classified(found("Pytorch-UNet", "unet.unet_model", "UNet")(3, 2, bilinear), normal(1, 3, 64, 64))


def convnext() -> Built:
    known = {"trunc_normal_": nn.init.trunc_normal_, "DropPath": None}
    module = definitions("ConvNeXt/models/convnext.py", "Block", "ConvNeXt", "LayerNorm", **known)
    return classified(
        module.ConvNeXt(num_classes=10, depths=[2, 2, 2, 2], dims=[32, 64, 128, 256]), normal(8, 3, 64, 64)
    )


def nano_gpt() -> Built:
    """As its config/train_shakespeare_char.py on a CPU: 4 layers of 128, batch 12 of 64 tokens."""
    with folder_of("nanoGPT"):
        module = importlib.import_module("model")
        shape = {"block_size": 64, "vocab_size": 65, "n_layer": 4, "n_head": 4, "n_embd": 128}
        model = module.GPT(module.GPTConfig(dropout=0.0, bias=False, **shape))
    tokens, targets = whole(65, 12, 64), whole(65, 12, 64)
    return [model], lambda: model(tokens, targets)[1]


def mini_gpt() -> Built:
    """As its projects/adder: gpt-nano, 64 additions a batch."""
    with folder_of("minGPT"):
        module = importlib.import_module("mingpt.model")
        config = module.GPT.get_default_config()
        config.model_type, config.vocab_size, config.block_size = "gpt-nano", 10, 6
        model = module.GPT(config)
    tokens, targets = whole(10, 64, 6), whole(10, 64, 6)
    return [model], lambda: model(tokens, targets)[1]


def language_model(kind: str) -> Built:
    """As its main.py: 2 layers of 200, 35 tokens of a batch of 20; a vocabulary of 2000 words."""
    kinds = {"math": importlib.import_module("math")}
    names = ("RNNModel", "PositionalEncoding", "TransformerModel")
    module = definitions("examples/word_language_model/model.py", *names, **kinds)
    tokens, targets = whole(2000, 35, 20), whole(2000, 35 * 20)
    if kind == "Transformer":
        model = module.TransformerModel(2000, 200, 2, 200, 2, 0.2)
        return [model], lambda: functional.nll_loss(model(tokens).view(-1, 2000), targets)
    model = module.RNNModel(kind, 2000, 200, 200, 2, 0.2)
    return [model], lambda: functional.nll_loss(model(tokens, model.init_hidden(20))[0], targets)


def rows_of_digits(width: int, layers: int, batch: int) -> Built:
    """An LSTM that reads a digit row by row, as several tutorials have it."""
    file = "pytorch-tutorial/tutorials/02-intermediate/recurrent_neural_network/main.py"
    module = definitions(file, "RNN", device="cpu")
    return classified(module.RNN(28, width, layers, 10), normal(batch, 28, 28))


def recurrent(kind: str, width: int, layers: int, batch: int, tokens: int) -> Built:
    model = nn.ModuleDict({"layers": getattr(nn, kind)(width, width, layers), "head": nn.Linear(width, 10)})
    inputs, targets = normal(tokens, batch, width), whole(10, batch)
    return [model], lambda: functional.cross_entropy(model["head"](model["layers"](inputs)[0][-1]), targets)


def gan(name: str, code: bool = False) -> Built:
    """The generator's and the discriminator's loss of one batch of 64; infogan's have classes and codes besides."""
    options = {"img_size": 32, "channels": 1, "latent_dim": 62 if code else 100, "code_dim": 2, "n_classes": 10}
    known = {"opt": types.SimpleNamespace(**options), "img_shape": (1, 32, 32)}
    module = definitions(f"PyTorch-GAN/implementations/{name}/{name}.py", "Generator", "Discriminator", **known)
    generator, discriminator = module.Generator(), module.Discriminator()
    noise, real = normal(64, options["latent_dim"]), normal(64, 1, 32, 32)
    codes = (torch.eye(10)[whole(10, 64)], normal(64, 2)) if code else ()

    def verdict(pictures: Any) -> Any:
        judged = discriminator(pictures)
        return judged if isinstance(judged, tuple) else (judged,)

    def step() -> Any:
        pictures = generator(noise, *codes)
        judged = verdict(pictures)
        losses = ((judged[0] - 1) ** 2).mean() + (verdict(real)[0] - 1).square().mean()
        losses = losses + verdict(pictures.detach())[0].square().mean()
        for each, wanted in zip(judged[1:], codes, strict=True):
            losses = losses + ((each - wanted) ** 2).mean()
        return losses

    return [generator, discriminator], step


def wgan_gp() -> Built:
    """The critic's loss with the penalty on its gradient, and the generator's, for one batch of 64."""
    known = {
        "opt": types.SimpleNamespace(latent_dim=100),
        "img_shape": (1, 28, 28),
        "Tensor": torch.FloatTensor,
        "autograd": torch.autograd,
    }
    names = ("Generator", "Discriminator", "compute_gradient_penalty")
    module = definitions("PyTorch-GAN/implementations/wgan_gp/wgan_gp.py", *names, **known)
    generator, critic = module.Generator(), module.Discriminator()
    noise, real = normal(64, 100), normal(64, 1, 28, 28)

    def step() -> Any:
        pictures = generator(noise)
        penalty = module.compute_gradient_penalty(critic, real, pictures.detach())
        return critic(pictures.detach()).mean() - critic(real).mean() + 10 * penalty - critic(pictures).mean()

    return [generator, critic], step


def dcgan() -> Built:
    """The generator and the discriminator of pytorch/examples at half their width, 16 pictures of 64 x 64."""
    module = definitions("examples/dcgan/main.py", "Generator", "Discriminator", nz=100, ngf=32, ndf=32, nc=3)
    generator, discriminator = module.Generator(0), module.Discriminator(0)
    noise, real = normal(16, 100, 1, 1), normal(16, 3, 64, 64)
    ones, zeros = torch.ones(16), torch.zeros(16)

    def step() -> Any:
        pictures = generator(noise)
        loss = functional.binary_cross_entropy
        return (
            loss(discriminator(pictures), ones)
            + loss(discriminator(real), ones)
            + loss(discriminator(pictures.detach()), zeros)
        )

    return [generator, discriminator], step


class Recommender(nn.Module):  # type: ignore[misc]
    """DLRM's parts in a few lines: bags of embeddings, their products with each other, linear layers around them."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.rows, self.columns = np.tril_indices(tables + 1, -1)

    def forward(self, dense: Any, sparse: Any) -> Any:
        x = self.bottom(dense)
        features = torch.stack([x] + [bag(each) for bag, each in zip(self.bags, sparse, strict=True)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([x, products], dim=1)).squeeze(1)


def recommender() -> Built:
    model = Recommender(8, 2000, 32)
    dense, sparse, clicks = normal(128, 13), [whole(2000, 128, 4) for _ in range(8)], whole(2, 128).float()
    return [model], lambda: functional.binary_cross_entropy_with_logits(model(dense, sparse), clicks)


IMAGES = (8, 3, 64, 64)
LEVIT = {
    "image_size": 64,
    "num_classes": 10,
    "stages": 3,
    "dim": (32, 48, 64),
    "depth": 1,
    "heads": (2, 3, 4),
    "mlp_mult": 2,
}
CVT = {
    "num_classes": 10,
    "s1_emb_dim": 16,
    "s2_emb_dim": 32,
    "s3_emb_dim": 64,
    "s1_depth": 1,
    "s2_depth": 1,
    "s3_depth": 1,
}
MOBILE = {
    "image_size": (64, 64),
    "dims": [32, 40, 48],
    "channels": [8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 64],
    "num_classes": 10,
}
NEST = {
    "image_size": 64,
    "patch_size": 8,
    "dim": 16,
    "heads": 2,
    "num_hierarchies": 3,
    "block_repeats": (1, 1, 1),
    "num_classes": 10,
}
PIT = {"image_size": 64, "patch_size": 16, "dim": 64, "num_classes": 10, "depth": (1, 1), "heads": 4, "mlp_dim": 128}
CAIT = SMALL | {"depth": 2, "cls_depth": 1, "layer_dropout": 0.0}
XCIT = SMALL | {"depth": 2, "cls_depth": 1}
CCT = {
    "img_size": 32, "embedding_dim": 64, "n_conv_layers": 1, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2.0,
    "num_classes": 10, "kernel_size": 7, "stride": 2, "padding": 3, "pooling_kernel_size": 3, "pooling_stride": 2,
    "pooling_padding": 1, "positional_embedding": "learnable",
}  # fmt: skip

Row = tuple[str, Callable[[], Built]]
MODELS: dict[str, Row] = {}


def _add(repository: str, function: Callable[..., Built], rows: dict[str, tuple[Any, ...]]) -> None:
    for name, given in rows.items():
        options = given[-1] if given and isinstance(given[-1], dict) else {}
        MODELS[name] = repository, partial(function, *given[: len(given) - bool(options)], **options)


_add(
    "pytorch/vision",
    vision,
    {
        "AlexNet": ("alexnet", "alexnet", *IMAGES),
        "VGG11 with batch norm": ("vgg", "vgg11_bn", *IMAGES),
        "ResNet-18": ("resnet", "resnet18", *IMAGES),
        "ResNet-50": ("resnet", "resnet50", *IMAGES),
        "ResNeXt-50": ("resnet", "resnext50_32x4d", *IMAGES),
        "DenseNet-121": ("densenet", "densenet121", *IMAGES),
        "SqueezeNet": ("squeezenet", "squeezenet1_1", *IMAGES),
        "GoogLeNet": ("googlenet", "googlenet", *IMAGES, {"aux_logits": False, "init_weights": False}),
        "MobileNet v2": ("mobilenetv2", "mobilenet_v2", *IMAGES),
        "MobileNet v3 small": ("mobilenetv3", "mobilenet_v3_small", *IMAGES),
        "MobileNet v3 large": ("mobilenetv3", "mobilenet_v3_large", *IMAGES),
        "MnasNet": ("mnasnet", "mnasnet0_5", *IMAGES),
        "ShuffleNet v2": ("shufflenetv2", "shufflenet_v2_x1_0", *IMAGES),
        "EfficientNet B0": ("efficientnet", "efficientnet_b0", *IMAGES),
        "RegNet Y 400MF": ("regnet", "regnet_y_400mf", *IMAGES),
        "RegNet X 400MF": ("regnet", "regnet_x_400mf", *IMAGES),
        "ConvNeXt tiny": ("convnext", "convnext_tiny", 2, 3, 64, 64),
        "Swin tiny": ("swin_transformer", "swin_t", 2, 3, 64, 64),
        "Vision Transformer B/16": ("vision_transformer", "vit_b_16", 2, 3, 64, 64, {"image_size": 64}),
    },
)
_add(
    "pytorch/vision",
    segmentation,
    {"FCN": ("fcn", "fcn_resnet50", 2, 3, 64, 64), "LR-ASPP": ("lraspp", "lraspp_mobilenet_v3_large", 2, 3, 64, 64)},
)
_add(
    "kuangliu/pytorch-cifar",
    cifar,
    {
        "LeNet": ("LeNet",),
        "VGG11 of CIFAR": ("VGG", "VGG11"),
        "MobileNet of CIFAR": ("MobileNet",),
        "SENet-18": ("SENet18",),
        "PreAct ResNet-18": ("PreActResNet18",),
    },
)
_add(
    "lucidrains/vit-pytorch",
    transformer,
    {
        "ViT": ("vit", "ViT", 4, 3, 64, 64),
        "SimpleViT": ("simple_vit", "SimpleViT", 4, 3, 64, 64),
        "DeepViT": ("deepvit", "DeepViT", 4, 3, 64, 64),
        "CaiT": ("cait", "CaiT", 4, 3, 64, 64, CAIT),
        "RvT": ("rvt", "RvT", 4, 3, 64, 64),
        "Normalized ViT": ("normalized_vit", "nViT", 4, 3, 64, 64),
        "CvT": ("cvt", "CvT", 4, 3, 64, 64, CVT),
        "LeViT": ("levit", "LeViT", 4, 3, 64, 64, LEVIT),
        "NesT": ("nest", "NesT", 4, 3, 64, 64, NEST),
        "MobileViT": ("mobile_vit", "MobileViT", 4, 3, 64, 64, MOBILE),
        "PiT": ("pit", "PiT", 4, 3, 64, 64, PIT),
        "XCiT": ("xcit", "XCiT", 4, 3, 64, 64, XCIT),
        "CCT": ("cct", "CCT", 4, 3, 32, 32, CCT),
    },
)
_add("milesial/Pytorch-UNet", unet, {"UNet, transposed": (False,), "UNet, bilinear": (True,)})
_add("facebookresearch/ConvNeXt", convnext, {"ConvNeXt": ()})
_add("karpathy/nanoGPT", nano_gpt, {"nanoGPT": ()})
_add("karpathy/minGPT", mini_gpt, {"minGPT": ()})
_add(
    "pytorch/examples",
    language_model,
    {"word language model, LSTM": ("LSTM",), "word language model, GRU": ("GRU",),
     "word language model, Transformer": ("Transformer",)},
)  # fmt: skip
_add("pytorch/examples", dcgan, {"DCGAN": ()})
_add(
    "yunjey/pytorch-tutorial",
    rows_of_digits,
    {"LSTM on rows of digits": (128, 2, 100), "LSTM on rows, width 64": (64, 1, 64)},
)
_add(
    "torch.nn",
    recurrent,
    {
        "LSTM, width 16, batch 4": ("LSTM", 16, 1, 4, 28),
        "LSTM, width 512": ("LSTM", 512, 1, 16, 16),
        "GRU, width 32, batch 16": ("GRU", 32, 1, 16, 28),
        "RNN, width 32, batch 16": ("RNN", 32, 1, 16, 28),
    },
)
_add(
    "eriklindernoren/PyTorch-GAN",
    gan,
    {"DCGAN of PyTorch-GAN": ("dcgan",), "InfoGAN": ("infogan", True), "GAN": ("gan",)},
)
_add("eriklindernoren/PyTorch-GAN", wgan_gp, {"WGAN-GP": ()})
_add("facebookresearch/dlrm, in its form", recommender, {"DLRM": ()})


def workload(name: str) -> Built:
    """One of the four workloads of `workloads.py`, with one batch of it."""
    os.environ["BENCHMARK_LIBRARY"] = "torch"
    model, inputs, classes = importlib.import_module("workloads").STATED[name](torch.Generator().manual_seed(0))
    return [model], lambda: functional.cross_entropy(model(inputs), classes)


_add("workloads.py", workload, {f"workload {name}": (name,) for name in ("mlp", "cnn", "gpt", "tiny")})
