"""Facts about PyTorch's layouts, a JSON object a line (tests/data/conformance)."""

import json
from pathlib import Path
from typing import Any

FACTS = Path(__file__).with_name("conformance")


def facts(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTS / name).read_text().splitlines()]
