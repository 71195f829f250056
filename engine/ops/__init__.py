"""Operators by family. The functions here are what `engine` exports, and what derivative rules call on Tensors.

Read in this order: row, pointwise, reduce, views, parts, copy, matmul; then the rest.
"""

# ruff: noqa: I001 - one group a family

import sys as _sys
from typing import TYPE_CHECKING, Any

from engine.calls import namespaces as _namespaces
from engine.ops.pointwise import division as _division  # noqa: F401
from engine.ops.pointwise import rows as _pointwise
from engine.ops.activation.operator import (
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
    prelu as prelu,
    relu6 as relu6,
    relu_ as relu_,
    selu as selu,
    silu as silu,
    softplus as softplus,
    softshrink as softshrink,
    threshold as threshold,
)
from engine.ops.index.along_axis import (
    gather as gather,
    index_select as index_select,
    scatter as scatter,
    scatter_add as scatter_add,
    scatter_add_zeros as scatter_add_zeros,
    take as take,
    take_along_dim as take_along_dim,
)
from engine.ops.views.as_strided import (
    as_strided as as_strided,
    as_strided_backward as as_strided_backward,
    as_strided_gather as as_strided_gather,
)
from engine.ops.attention.operator import scaled_dot_product_attention as scaled_dot_product_attention
from engine.ops.pooling.avg_pool import (
    avg_pool as avg_pool,
    avg_pool_gradient as avg_pool_gradient,
)
from engine.ops.norm.batch_norm import batch_norm as batch_norm
from engine.ops.shape.combine import (
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
from engine.ops.pointwise.complex_numbers import (
    adjoint as adjoint,
    angle as angle,
    complex as complex,
    conj as conj,
    conj_physical as conj_physical,
    imag as imag,
    is_conj as is_conj,
    is_neg as is_neg,
    polar as polar,
    real as real,
    resolve_conj as resolve_conj,
    resolve_neg as resolve_neg,
    view_as_complex as view_as_complex,
    view_as_real as view_as_real,
)
from engine.ops.conv.operator import (
    conv as conv,
    conv_transposed as conv_transposed,
    conv_weight_gradient as conv_weight_gradient,
)
from engine.ops.conv.functions import (
    conv1d as conv1d,
    conv2d as conv2d,
    conv3d as conv3d,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    conv_transpose3d as conv_transpose3d,
)
from engine.ops.copy.operator import (
    clone as clone,
    contiguous as contiguous,
    lay_out as lay_out,
    to as to,
)
from engine.ops.reduce.cumulative import (
    cummax as cummax,
    cummin as cummin,
    cumulative_trapezoid as cumulative_trapezoid,
    diff as diff,
    gradient as gradient,
    logcumsumexp as logcumsumexp,
    trapezoid as trapezoid,
    trapz as trapz,
)
from engine.ops.random.dropout import (
    dropout as dropout,
    masked_scale as masked_scale,
)
from engine.ops.matmul.einsum import (
    addbmm as addbmm,
    addmv as addmv,
    addr as addr,
    cdist as cdist,
    cross as cross,
    einsum as einsum,
    ger as ger,
    inner as inner,
    kron as kron,
    pdist as pdist,
    tensordot as tensordot,
    vdot as vdot,
)
from engine.ops.pointwise.composed import (
    addcdiv as addcdiv,
    addcmul as addcmul,
    clamp_max as clamp_max,
    clamp_min as clamp_min,
    deg2rad as deg2rad,
    dist as dist,
    divide as divide,
    float_power as float_power,
    heaviside as heaviside,
    isclose as isclose,
    isin as isin,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    ldexp as ldexp,
    logit as logit,
    masked_scatter as masked_scatter,
    nan_to_num as nan_to_num,
    logaddexp as logaddexp,
    positive as positive,
    rad2deg as rad2deg,
    round as round,
    rsub as rsub,
    square as square,
    subtract as subtract,
    true_divide as true_divide,
)
from engine.ops.embedding.operator import (
    embedding as embedding,
    embedding_backward as embedding_backward,
)
from engine.ops.reduce.extrema import (
    amax as amax,
    amin as amin,
    argmax as argmax,
    argmin as argmin,
    max as max,
    min as min,
    scatter_zeros as scatter_zeros,
)
from engine.ops.creation.factories import (
    arange as arange,
    empty as empty,
    empty_like as empty_like,
    empty_strided as empty_strided,
    eye as eye,
    full as full,
    full_like as full_like,
    linspace as linspace,
    logspace as logspace,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from engine.ops.creation.from_data import (
    as_tensor as as_tensor,
    asarray as asarray,
    from_dlpack as from_dlpack,
    from_numpy as from_numpy,
    tensor as tensor,
)
from engine.ops.fourier.operator import (
    fft_c2c as fft_c2c,
    fft_c2r as fft_c2r,
    fft_r2c as fft_r2c,
)
from engine.ops.norm.group_norm import group_norm as group_norm
from engine.ops.conv.im2col import (
    col2im as col2im,
    im2col as im2col,
)
from engine.ops.index.operator import (
    index_backward as index_backward,
    index_get as index_get,
)
from engine.ops.norm.layer_norm import (
    layer_norm as layer_norm,
    rms_norm as rms_norm,
)
from engine.ops.loss.cross_entropy import (
    cross_entropy as cross_entropy,
)
from engine.ops.loss.nll_loss import (
    nll_loss as nll_loss,
)
from engine.ops.index.masked import (
    masked_fill as masked_fill,
    masked_select as masked_select,
    nonzero as nonzero,
)
from engine.ops.matmul.addmm import (
    addmm as addmm,
    baddbmm as baddbmm,
    linear as linear,
)
from engine.ops.matmul.operator import (
    bmm as bmm,
    dot as dot,
    matmul as matmul,
    mm as mm,
    mv as mv,
    outer as outer,
)
from engine.ops.pooling.max_pool import (
    adaptive_max_pool as adaptive_max_pool,
    max_pool as max_pool,
    max_pool_with_indices as max_pool_with_indices,
    pool_gather as pool_gather,
    pool_scatter as pool_scatter,
)
from engine.ops.sorting.sets import histogram as histogram
from engine.ops.pointwise.frexp import frexp as frexp
from engine.ops.creation.constructors import range as range, scalar_tensor as scalar_tensor
from engine.ops.index.masked import nonzero_static as nonzero_static
from engine.ops.views.parts import narrow_copy as narrow_copy
from engine.ops.pointwise.queries import is_nonzero as is_nonzero, is_same_size as is_same_size, is_signed as is_signed
from engine.ops.pointwise.bessel import (
    entr as entr,
    gammainc as gammainc,
    gammaincc as gammaincc,
    multigammaln as multigammaln,
    mvlgamma as mvlgamma,
    ndtr as ndtr,
    ndtri as ndtri,
)
from engine.ops.reduce.norms import (
    vector_norm as vector_norm,
)
from engine.ops.shape.padding import (
    constant_pad_nd as constant_pad_nd,
    pad as pad,
)
from engine.ops.views.parts import (
    chunk as chunk,
    diagonal as diagonal,
    narrow as narrow,
    select as select,
    split as split,
    tensor_split as tensor_split,
    unsafe_chunk as unsafe_chunk,
    unsafe_split as unsafe_split,
    unbind as unbind,
    unfold as unfold,
)
from engine.ops.pointwise.rows import (
    add as add,
    div as div,
    sub as sub,
)
from engine.ops.pooling.functions import (
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
from engine.ops.random.tensors import (
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
from engine.ops.reduce.operator import (
    all as all,
    any as any,
    mean as mean,
    prod as prod,
    std as std,
    std_mean as std_mean,
    sum as sum,
    var as var,
    var_mean as var_mean,
)
from engine.ops.resample.operator import resample as resample
from engine.ops.pointwise.selection import (
    clamp as clamp,
    clip as clip,
    where as where,
)
from engine.ops.sorting.sets import (
    bincount as bincount,
    bucketize as bucketize,
    histc as histc,
    searchsorted as searchsorted,
    unique as unique,
    unique_consecutive as unique_consecutive,
)
from engine.ops.shape.composed import (
    argwhere as argwhere,
    as_strided_scatter as as_strided_scatter,
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    atleast_3d as atleast_3d,
    block_diag as block_diag,
    broadcast_shapes as broadcast_shapes,
    cartesian_prod as cartesian_prod,
    column_stack as column_stack,
    combinations as combinations,
    diag as diag,
    diag_embed as diag_embed,
    diagflat as diagflat,
    diagonal_scatter as diagonal_scatter,
    dsplit as dsplit,
    dstack as dstack,
    fliplr as fliplr,
    flipud as flipud,
    hsplit as hsplit,
    index_add as index_add,
    index_copy as index_copy,
    index_fill as index_fill,
    index_put as index_put,
    ravel as ravel,
    rot90 as rot90,
    row_stack as row_stack,
    select_scatter as select_scatter,
    slice_scatter as slice_scatter,
    split_with_sizes as split_with_sizes,
    tril_indices as tril_indices,
    triu_indices as triu_indices,
    unravel_index as unravel_index,
    vander as vander,
    vsplit as vsplit,
)
from engine.ops.index.scatter_reduce import (
    index_reduce as index_reduce,
    put as put,
    scatter_reduce as scatter_reduce,
)
from engine.ops.shared import spellings as _spellings  # noqa: F401
from engine.ops.softmax.operator import (
    log_softmax as log_softmax,
    softmax as softmax,
)
from engine.ops.linalg.solving import (
    linalg_inv as linalg_inv,
    linalg_solve as linalg_solve,
)
from engine.ops.sorting.operator import (
    argsort as argsort,
    kthvalue as kthvalue,
    median as median,
    mode as mode,
    msort as msort,
    nanmedian as nanmedian,
    nanquantile as nanquantile,
    quantile as quantile,
    sort as sort,
    topk as topk,
)
from engine.ops.pointwise.special_functions import polygamma as polygamma
from engine.ops.fourier.spectrogram import (
    bartlett_window as bartlett_window,
    blackman_window as blackman_window,
    hamming_window as hamming_window,
    hann_window as hann_window,
    istft as istft,
    kaiser_window as kaiser_window,
    stft as stft,
)
from engine.ops.reduce.statistics import (
    aminmax as aminmax,
    corrcoef as corrcoef,
    count_nonzero as count_nonzero,
    cov as cov,
    logsumexp as logsumexp,
    nanmean as nanmean,
    nansum as nansum,
    renorm as renorm,
)
from engine.ops.resample.upsampling import (
    pixel_shuffle as pixel_shuffle,
    pixel_unshuffle as pixel_unshuffle,
    upsample as upsample,
)
from engine.ops.views.operator import (
    broadcast_to as broadcast_to,
    expand as expand,
    expand_as as expand_as,
    flatten as flatten,
    moveaxis as moveaxis,
    movedim as movedim,
    permute as permute,
    reshape as reshape,
    squeeze as squeeze,
    swapaxes as swapaxes,
    swapdims as swapdims,
    t as t,
    transpose as transpose,
    unflatten as unflatten,
    unsqueeze as unsqueeze,
    view as view,
    view_backward as view_backward,
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the functions that the last line adds


# One public function a row of the pointwise table; the wrappers above (add, sub, div, where, clamp) take precedence.
globals().update({name: function for name, function in _pointwise.FUNCTIONS.items() if name not in globals()})

_namespaces.publish(_sys.modules[__name__])
