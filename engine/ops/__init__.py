"""Operators by family. The functions here are what `engine` exports, and what derivative rules call on Tensors.

Read in this order: pointwise, reduce, view, copy, matmul; then the rest.
"""

from typing import TYPE_CHECKING, Any

from engine.ops import index as _index
from engine.ops import pointwise as _pointwise
from engine.ops.activation import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    hardshrink as hardshrink,
    hardsigmoid as hardsigmoid,
    hardswish as hardswish,
    hardtanh as hardtanh,
    leaky_relu as leaky_relu,
    logsigmoid as logsigmoid,
    mish as mish,
    relu6 as relu6,
    relu_ as relu_,
    selu as selu,
    silu as silu,
    softplus as softplus,
    softshrink as softshrink,
    threshold as threshold,
)
from engine.ops.attention import scaled_dot_product_attention as scaled_dot_product_attention
from engine.ops.avg_pool import (
    avg_pool as avg_pool,
    avg_pool_gradient as avg_pool_gradient,
)
from engine.ops.combine import (
    broadcast_tensors as broadcast_tensors,
    cat as cat,
    concat as concat,
    concatenate as concatenate,
    cumprod as cumprod,
    cumsum as cumsum,
    flip as flip,
    hstack as hstack,
    meshgrid as meshgrid,
    repeat as repeat,
    repeat_interleave as repeat_interleave,
    roll as roll,
    stack as stack,
    tile as tile,
    tril as tril,
    triu as triu,
    vstack as vstack,
)
from engine.ops.conv import (
    conv as conv,
    conv_transposed as conv_transposed,
    conv_weight_gradient as conv_weight_gradient,
)
from engine.ops.conv_public import (
    conv1d as conv1d,
    conv2d as conv2d,
    conv3d as conv3d,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    conv_transpose3d as conv_transpose3d,
)
from engine.ops.copy import (
    clone as clone,
    contiguous as contiguous,
    lay_out as lay_out,
    to as to,
)
from engine.ops.dropout import (
    dropout as dropout,
    masked_scale as masked_scale,
)
from engine.ops.embedding import (
    embedding as embedding,
    embedding_backward as embedding_backward,
)
from engine.ops.factories import (
    arange as arange,
    as_tensor as as_tensor,
    asarray as asarray,
    empty as empty,
    empty_like as empty_like,
    empty_strided as empty_strided,
    eye as eye,
    from_dlpack as from_dlpack,
    from_numpy as from_numpy,
    full as full,
    full_like as full_like,
    linspace as linspace,
    logspace as logspace,
    ones as ones,
    ones_like as ones_like,
    tensor as tensor,
    zeros as zeros,
    zeros_like as zeros_like,
)
from engine.ops.index import (
    gather as gather,
    index_select as index_select,
    masked_fill as masked_fill,
    masked_select as masked_select,
    nonzero as nonzero,
    scatter as scatter,
    scatter_add as scatter_add,
    scatter_add_zeros as scatter_add_zeros,
    take as take,
    take_along_dim as take_along_dim,
)
from engine.ops.loss import (
    cross_entropy as cross_entropy,
    nll_loss as nll_loss,
)
from engine.ops.matmul import (
    addmm as addmm,
    baddbmm as baddbmm,
    bmm as bmm,
    dot as dot,
    linear as linear,
    matmul as matmul,
    mm as mm,
    mv as mv,
    outer as outer,
)
from engine.ops.max_pool import (
    adaptive_max_pool as adaptive_max_pool,
    max_pool as max_pool,
    max_pool_with_indices as max_pool_with_indices,
    pool_gather as pool_gather,
    pool_scatter as pool_scatter,
)
from engine.ops.normalization import (
    batch_norm as batch_norm,
    layer_norm as layer_norm,
)
from engine.ops.padding import (
    constant_pad_nd as constant_pad_nd,
)
from engine.ops.pointwise import (
    add as add,
    clamp as clamp,
    clip as clip,
    div as div,
    sub as sub,
    where as where,
)
from engine.ops.pooling import (
    adaptive_avg_pool1d as adaptive_avg_pool1d,
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_avg_pool3d as adaptive_avg_pool3d,
    adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices as adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d as adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices as adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d as adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices as adaptive_max_pool3d_with_indices,
    avg_pool1d as avg_pool1d,
    avg_pool2d as avg_pool2d,
    avg_pool3d as avg_pool3d,
    max_pool1d as max_pool1d,
    max_pool1d_with_indices as max_pool1d_with_indices,
    max_pool2d as max_pool2d,
    max_pool2d_with_indices as max_pool2d_with_indices,
    max_pool3d as max_pool3d,
    max_pool3d_with_indices as max_pool3d_with_indices,
)
from engine.ops.random import (
    bernoulli as bernoulli,
    multinomial as multinomial,
    normal as normal,
    rand as rand,
    rand_like as rand_like,
    randint as randint,
    randint_like as randint_like,
    randn as randn,
    randn_like as randn_like,
    randperm as randperm,
)
from engine.ops.reduce import (
    argmax as argmax,
    argmin as argmin,
    all as all,
    amax as amax,
    amin as amin,
    any as any,
    logsumexp as logsumexp,
    max as max,
    mean as mean,
    min as min,
    norm as norm,
    prod as prod,
    scatter_zeros as scatter_zeros,
    std as std,
    std_mean as std_mean,
    sum as sum,
    var as var,
    var_mean as var_mean,
)
from engine.ops.resample import resample as resample
from engine.ops.softmax import (
    log_softmax as log_softmax,
    softmax as softmax,
)
from engine.ops.special import polygamma as polygamma
from engine.ops.views import (
    as_strided as as_strided,
    as_strided_backward as as_strided_backward,
    broadcast_to as broadcast_to,
    chunk as chunk,
    diagonal as diagonal,
    expand as expand,
    expand_as as expand_as,
    flatten as flatten,
    moveaxis as moveaxis,
    movedim as movedim,
    narrow as narrow,
    permute as permute,
    reshape as reshape,
    select as select,
    split as split,
    squeeze as squeeze,
    swapaxes as swapaxes,
    swapdims as swapdims,
    t as t,
    tensor_split as tensor_split,
    transpose as transpose,
    unbind as unbind,
    unflatten as unflatten,
    unfold as unfold,
    unsqueeze as unsqueeze,
    view as view,
    view_backward as view_backward,
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the functions that the last line adds


# One public function a row of the pointwise table; the wrappers above (add, sub, div, where, clamp) take precedence.
globals().update({name: function for name, function in (_pointwise.FUNCTIONS | _index.INDEX_FUNCTIONS).items() if name not in globals()})
