"""`torch.hub`: nothing is downloaded here."""

import os
from typing import Any, NoReturn

from engine.errors.absent import absent


def _refused(call: str) -> NoReturn:
    raise NotImplementedError(
        f"engine.hub.{call}: nothing is downloaded here; fetch the file yourself and read it with engine.load, which "
        "takes safetensors files"
    )


def _get_torch_home() -> str:
    """Where PyTorch's packages keep their files: TORCH_HOME, or torch in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def load(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refused("load")


def load_state_dict_from_url(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refused("load_state_dict_from_url")


def download_url_to_file(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refused("download_url_to_file")


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.hub", name)
