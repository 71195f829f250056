"""`torch.onnx`: exporting is not possible from here."""

from typing import Any, NoReturn

from engine.errors.absent import absent


def export(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "engine.onnx.export: save the state_dict with engine.save, a safetensors file that PyTorch reads, and export "
        "from there"
    )


def register_custom_op_symbolic(*args: Any, **kwargs: Any) -> None:
    """Nothing: there is no exporter that could use it."""


class symbolic_opset11:
    """What a description for an exporter is written with; nobody runs it."""


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.onnx", name)
