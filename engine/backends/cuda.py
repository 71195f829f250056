"""Permissions for reduced precision on a GPU. They may be set; every product here is computed in full precision."""

from types import SimpleNamespace

from engine.cuda import is_available as is_built

matmul = SimpleNamespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
)

__all__ = ["is_built", "matmul"]
