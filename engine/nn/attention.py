"""`MultiheadAttention`: the parameters of `F.multi_head_attention_forward`. And the names with which PyTorch's users
choose between attention kernels: this package's one, and cuDNN's where that is installed.
"""

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import engine
import engine.nn.functional as F
from engine.memory import cudnn
from engine.nn import init
from engine.nn.linear import NonDynamicallyQuantizableLinear
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor


class SDPBackend(enum.Enum):
    """PyTorch's kernels of `scaled_dot_product_attention`."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3


@contextmanager
def sdpa_kernel(backends: SDPBackend | Sequence[SDPBackend], set_priority: bool = False) -> Iterator[None]:
    """Inside, cuDNN's attention serves only if CUDNN_ATTENTION is among these; all others are this package's kernel,
    which serves what cuDNN does not, too.
    """
    given = [backends] if isinstance(backends, SDPBackend) else backends
    before, cudnn.attends = cudnn.attends, SDPBackend.CUDNN_ATTENTION in given
    try:
        yield
    finally:
        cudnn.attends = before


@contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> Iterator[None]:
    """The same, under PyTorch's older name: torch.backends.cuda.sdp_kernel."""
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION] if enable_cudnn else []):
        yield


class MultiheadAttention(Module):
    """Attention of `num_heads` heads. Vaswani et al. (2017).

    Shapes: query (L, N, embed_dim), key (S, N, kdim), value (S, N, vdim) -> (L, N, embed_dim); N first with
    `batch_first`; or without N. Parameters: `in_proj_weight` (3 embed_dim, embed_dim), or three of them if kdim or vdim
    differ. Raises: ValueError unless embed_dim and num_heads are positive and num_heads divides embed_dim.
    """

    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and "
                f"num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn

        def parameter(*shape: int) -> Parameter:
            return Parameter(engine.empty(shape, device=device, dtype=dtype))

        same = self._qkv_same_embed_dim
        self.register_parameter("q_proj_weight", None if same else parameter(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if same else parameter(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if same else parameter(embed_dim, self.vdim))
        self.register_parameter("in_proj_weight", parameter(3 * embed_dim, embed_dim) if same else None)
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", parameter(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", parameter(1, 1, embed_dim) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Xavier-uniform projections, Xavier-normal added keys and values, biases 0."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                init.xavier_normal_(added)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights or None); masks are True (or -inf) where attention is forbidden."""
        if swap := self.batch_first and query.dim() == 3:
            # the same tensor must stay the same object: then one product projects all three
            swapped = {id(x): x.transpose(0, 1) for x in (query, key, value)}
            query, key, value = (swapped[id(x)] for x in (query, key, value))
        out, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (out.transpose(0, 1) if swap else out), weights
