"""Draws the pictures of docs/layout.md and docs/gradient.md from what the code itself says of layouts and buckets.

python docs/drawings.py        # writes docs/pictures/*.svg; a test holds that they are up to date
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"

_COLOURS = ("#e08a7d", "#8fc08a", "#86a9d8", "#d9b96a", "#b596c9")
_CELL = 34
_STYLE = (
    "text{font:13px sans-serif;fill:#7a7a7a}.in{fill:#1f1f1f}.mono{font:12px monospace}"
    "rect{stroke:#ffffff;stroke-width:1.5}line,path{stroke:#8a8a8a;fill:none}"
)


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def _cell(x: float, y: float, colour: str, words: str = "", width: float = _CELL) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{_CELL}" fill="{colour}"/>'
    return box + (_text(x + width / 2, y + 22, words, "in mono", "middle") if words else "")


def memory_orders() -> str:
    """2 x 2 pixels of 3 channels: where each element lies, by the strides that the rules give."""
    from engine.rules import layout

    shape = (1, 3, 2, 2)
    parts = []
    for row, (name, memory_format) in enumerate(
        (("row-major", layout.contiguous_format), ("channels-last", layout.channels_last))
    ):
        strides = layout.strides_for_format(shape, memory_format)
        top = 30 + 85 * row
        parts.append(_text(10, top - 8, f"{name}: shape {shape}, strides {strides}"))
        for _, channel, y, x in product(*map(range, shape)):
            place = channel * strides[1] + y * strides[2] + x * strides[3]
            parts.append(_cell(10 + _CELL * place, top, _COLOURS[channel], f"{'RGB'[channel]}{2 * y + x}"))
    parts.append(_text(10, 195, "memory from left to right: the letter is the channel, the number the pixel"))
    return _svg(100 + 12 * _CELL, 210, parts)


def bucket() -> str:
    """A small network's gradients in one bucket, as the planning code lays them out."""
    from ddp.gradients.plan import plan_bucket
    from engine import channels_last, nn

    conv = nn.Conv2d(2, 2, 2).to(memory_format=channels_last)
    named = {"conv.weight": conv.weight, "conv.bias": conv.bias, "linear.weight": nn.Linear(3, 2).weight}
    shapes = [tuple(parameter.shape) for parameter in named.values()]
    strides = [tuple(parameter.stride()) for parameter in named.values()]
    plan = plan_bucket(range(3), shapes, strides, itemsize=4)
    parts = [_text(10, 22, "the bucket: one flat piece of memory, which is what is summed over the ranks")]
    size = 20
    parts += [_cell(10 + size * place, 35, "#e6e6e6", width=size) for place in range(plan.count)]
    for number, (name, slot) in enumerate(zip(named, plan.slots, strict=True)):
        for element in range(named[name].numel()):
            parts.append(_cell(10 + size * (slot.offset + element), 35, _COLOURS[number], width=size))
        left = 10 + size * slot.offset
        line = 100 + 42 * number
        parts.append(f'<path d="M{left + 4},{35 + _CELL + 2} V{line - 4} H{left + 12}"/>')
        parts.append(_text(left + 16, line, f"{name}.grad", "mono"))
        parts.append(_text(left + 16, line + 16, f"shape {slot.shape}, strides {slot.stride}"))
    parts.append(_text(10, 235, "grey: up to the next cache line, always zero"))
    return _svg(40 + size * plan.count + 140, 250, parts)


def path() -> str:
    """backward on two ranks over time: gradients fill buckets, full buckets travel while backward goes on."""
    layers = ("layer 4", "layer 3", "layer 2", "layer 1")
    parts = []
    for rank in (0, 1):
        top = 50 + 150 * rank
        parts.append(_text(10, top + 22, f"rank {rank}"))
        for number, name in enumerate(layers):
            left = 80 + (100 + 12 * rank) * number
            parts.append(_cell(left, top, _COLOURS[2], name, 96 + 12 * rank))
        for number, (bucket_name, first) in enumerate((("bucket 1", 1), ("bucket 2", 3))):
            filled = 80 + (100 + 12 * rank) * (first + 1)
            ready = 80 + 112 * (first + 1)  # on the slower rank
            parts.append(f'<line x1="{filled - 4}" y1="{top + _CELL}" x2="{filled - 4}" y2="{top + 50}"/>')
            if ready > filled:
                parts.append(_cell(filled, top + 50, "#d8d8d8", "waits" if ready - filled > 40 else "", ready - filled))
            parts.append(_cell(ready, top + 50, _COLOURS[3 + number], f"sum of {bucket_name}", 130))
    parts.append(_cell(80 + 112 * 4 + 135, 50, _COLOURS[1], "optimizer", 100))
    parts.append(_cell(80 + 112 * 4 + 135, 200, _COLOURS[1], "optimizer", 100))
    parts.append(_text(10, 24, "backward goes from the last layer to the first; a full bucket is summed meanwhile"))
    parts.append(_text(10, 330, "time goes to the right; bucket 1 is hidden behind backward, bucket 2 is not"))
    return _svg(780, 345, parts)


DRAWINGS = {"memory_orders.svg": memory_orders, "bucket.svg": bucket, "path.svg": path}

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_text(draw())
