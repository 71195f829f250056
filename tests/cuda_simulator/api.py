"""What the real CuPy has: the snapshot `tests/data/cupy_api.json`, and calls checked against its signatures."""

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "data" / "cupy_api.json"


@cache
def snapshot() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def members(module: str) -> dict[str, Any]:
    """Names of a module to what they are."""
    return snapshot()["modules"][module]


@cache
def signature(owner: str, name: str) -> inspect.Signature | None:
    """CuPy's parameters of a function of a module or a method of a class; None where CuPy does not say."""
    tables = snapshot()
    entry = (tables["modules"].get(owner) or tables["classes"].get(owner) or {}).get(name)
    if entry is None or entry.get("parameters") is None:
        return None
    parameters = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for text in entry["parameters"]:
        if text == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif text == "/":
            parameters = [each.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for each in parameters]
        elif text.startswith("**"):
            parameters.append(inspect.Parameter(text[2:], inspect.Parameter.VAR_KEYWORD))
        elif text.startswith("*"):
            parameters.append(inspect.Parameter(text[1:], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            default = None if text.endswith("=") else inspect.Parameter.empty
            parameters.append(inspect.Parameter(text.rstrip("="), kind, default=default))
    return inspect.Signature(parameters)


def check_call(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises: TypeError for arguments that CuPy's function does not take."""
    found = signature(owner, name)
    if found is None:
        return
    if next(iter(found.parameters), "") in ("self", "cls"):
        args = (None, *args)
    try:
        found.bind(*args, **kwargs)
    except TypeError as cause:
        raise TypeError(f"{owner}.{name}{found}: {cause}") from None
