"""The path of a gradient from `backward()` to `.grad`: which files a step goes through, found by running one.

Two ranks as threads of this process (`ddp.testing`), a network of one parameter under DistributedDataParallel: the way
of one gradient. The third step: buckets are planned by then, and kernels compiled.

    python docs/walk.py        # prints the table that the site shows in docs/gradient.md
"""

import ast
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
OURS = (f"{ROOT}/engine/", f"{ROOT}/ddp/")  # and not an environment that lies in the checkout


def files_of_a_step() -> list[tuple[str, str]]:
    """Each file with the first function of it that runs, in their order: from `backward()` until it returns."""
    import ddp
    import engine
    from ddp.testing import run_ranks
    from engine import nn

    found: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(OURS) and path not in found:
            found[path] = frame.f_code.co_qualname

    def steps() -> None:
        engine.manual_seed(0)
        net = ddp.DistributedDataParallel(nn.Linear(4, 1, bias=False))
        for step in range(3):
            loss = net(engine.ones(2, 4)).sum()
            if step == 2 and ddp.get_rank() == 0:
                sys.setprofile(note)
            try:
                loss.backward()
            finally:
                sys.setprofile(None)
            net.zero_grad()

    run_ranks(2, steps)
    stand_ins = f"{ROOT}/ddp/testing/"
    return [(path.removeprefix(f"{ROOT}/"), name) for path, name in found.items() if not path.startswith(stand_ins)]


def idea(path: str) -> str:
    """The first sentence of a file's docstring, as it may stand in a table."""
    text = " ".join((ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").split())
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


def table() -> str:
    """The files as a Markdown table."""
    steps = enumerate(files_of_a_step(), 1)
    rows = [f"| {number} | `{path}` | `{name}` | {idea(path)} |" for number, (path, name) in steps]
    return "\n".join(["| | file | enters by | what it is about |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(table())
