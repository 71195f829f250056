"""Writes torch_saved.pt, a file of PyTorch's own, of every kind of data that `engine.load` reads.

python tests/data/torch_saved.py          (in an environment with PyTorch)
"""

import collections
from pathlib import Path

import torch
from torch import nn

KINDS = ["bool", "uint8", "int8", "int16", "int32", "int64"]
KINDS += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
base = torch.arange(24.0)
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(memory_format=torch.channels_last)
for place, parameter in enumerate(model.parameters()):
    nn.init.constant_(parameter, place + 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
marked = torch.ones(2)
marked.note = "by hand"
content = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "parameter": nn.Parameter(torch.ones(3), requires_grad=False),
    "leaf": torch.ones(2, requires_grad=True),
    "views": [base[2:8], base.view(4, 6).t(), base],
    "expanded": torch.ones(1).expand(5),
    "kinds": [torch.tensor([1, 0], dtype=getattr(torch, name)) for name in KINDS],
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 3),
    "marked": marked,
    "plain": [b"\x00\xff", bytearray(b"ab"), {1, 2}, 1 + 2j, 1 << 70, "é", 0.1, True, None, (1, (2, (3,)))],
    "own": [torch.Size([1, 2]), torch.float16, torch.device("cpu")],
    "ordered": collections.OrderedDict(b=1, a=2),
    "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5, 5]).state_dict(),
}
torch.save(content, Path(__file__).with_suffix(".pt"))
