"""What autocast does with the arguments of which function: PyTorch's lists, by the names of its functions.

Source: PyTorch, aten/src/ATen/autocast_mode.h and .cpp, and the page "Automatic Mixed Precision package". The lists of
the two devices differ there, too: layer_norm in bfloat16 stays so on the CPU and becomes float32 on a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

from engine.amp.modes import cast, eligible, modes
from engine.rules.dtypes import dtype, float32
from engine.tensor import Tensor

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Policy = Callable[[tuple[Any, ...], dict[str, Any], str], Arguments]


def _in_dtype(args: tuple[Any, ...], kwargs: dict[str, Any], where: str, kind: dtype) -> Arguments:
    each = [value if value is None or type(value) in _PLAIN else _each(value, where, kind) for value in args]
    return tuple(each), {name: _each(value, where, kind) for name, value in kwargs.items()} if kwargs else kwargs


def in_dtype(kind: dtype) -> Policy:
    """In one dtype."""
    return lambda args, kwargs, where: _in_dtype(args, kwargs, where, kind)


_PLAIN = frozenset([int, float, bool, str])


def _each(value: Any, where: str, kind: dtype) -> Any:
    if isinstance(value, Tensor):
        spec = value._spec
        if spec.dtype is kind or not eligible(value, where):
            return value
        return cast(value, kind)
    if type(value) in (list, tuple) and any(isinstance(item, Tensor) for item in value):
        return type(value)(_each(item, where, kind) for item in value)
    return value


def tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists included."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from (item for item in value if isinstance(item, Tensor))


def low(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """In the block's dtype."""
    return _in_dtype(args, kwargs, where, modes.dtypes[where])


def single(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """In float32."""
    return _in_dtype(args, kwargs, where, float32)


def single_unless_told(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """In float32, unless the call says a dtype."""
    if kwargs.get("dtype") is not None or any(isinstance(value, dtype) for value in args):
        return args, kwargs
    return _in_dtype(args, kwargs, where, float32)


def widest(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """In float32 where one of the tensors is, else in the block's dtype."""
    found = {tensor._spec.dtype for tensor in tensors(args, kwargs) if eligible(tensor, where)}
    kind = modes.dtypes[where]
    return _in_dtype(args, kwargs, where, float32 if found - {kind} else kind)


def untouched(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """As given: here made of functions that are in the lists, in PyTorch not."""
    return args, kwargs


def recurrent(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """Layers of recurrent networks: in the block's dtype, but for a GRU on the CPU, which has that of its state."""
    mode, _, (hidden, *_) = args[:3]
    return (single if where == "cpu" and mode == "gru" and hidden.dtype is float32 else low)(args, kwargs, where)


def padded(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """On the CPU padding by reflection or replication is done in float32."""
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    sizes = kwargs.get("pad", args[1] if len(args) > 1 else ())
    listed = mode == "replicate" or (mode == "reflect" and len(sizes) < 6)
    return (single if listed else untouched)(args, kwargs, where)


def resampled(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """On a GPU in float32, but for the averages of areas."""
    mode = kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
    return (untouched if mode == "area" else single)(args, kwargs, where)


def refused(args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Arguments:
    """binary_cross_entropy on a GPU. Raises: RuntimeError."""
    raise RuntimeError(
        "nn.functional.binary_cross_entropy and nn.BCELoss are unsafe to autocast: the logarithm of a float16 "
        "probability overflows. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss without the sigmoid before "
        "it, which are safe to autocast."
    )


_PRODUCTS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    mm bmm addmm baddbmm addbmm matmul linalg_matmul linalg_vecdot linear prelu scaled_dot_product_attention
"""
_MORE_PRODUCTS_ON_CUDA = "mv addmv addr einsum chain_matmul linalg_multi_dot lstm_step gru_step"
_LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss nll_loss cross_entropy kl_div poisson_nll_loss soft_margin_loss
    margin_ranking_loss hinge_embedding_loss cosine_embedding_loss triplet_margin_loss multi_margin_loss
    multilabel_margin_loss binary_cross_entropy_with_logits
"""
_SINGLE_ON_CPU = """
    binary_cross_entropy ctc_loss avg_pool3d adaptive_avg_pool3d max_pool3d adaptive_max_pool3d max_unpool2d
    max_unpool3d grid_sample polar quantile nanquantile stft cdist trace view_as_complex
    cholesky cholesky_inverse cholesky_solve inverse lu_solve pinverse qr svd
    fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn
    fft_hfft fft_ihfft
    linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv
    linalg_tensorinv linalg_tensorsolve linalg_qr linalg_cholesky_ex linalg_svd linalg_eig linalg_eigh linalg_lstsq
    linalg_inv_ex
"""
_SINGLE_ON_CUDA = """
    acos arccos asin arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal __rtruediv__ rsqrt sinh tan pow
    __pow__ __rpow__ softplus layer_norm rms_norm group_norm cosine_similarity dist pdist cdist
    renorm logsumexp
"""
_SUMS_ON_CUDA = """
    sum prod softmax log_softmax cumsum cumprod norm linalg_norm linalg_vector_norm linalg_matrix_norm
"""
_WIDEST_ON_CUDA = """
    addcdiv addcmul atan2 arctan2 bilinear cross linalg_cross dot vdot grid_sample index_put tensordot scatter_add
"""

# Device type -> name -> policy.
LISTS: dict[str, dict[str, Policy]] = {
    "cpu": {
        **dict.fromkeys(_PRODUCTS.split(), low),
        "recurrence": recurrent,
        **dict.fromkeys(_LOSSES.split(), single),
        **dict.fromkeys(_SINGLE_ON_CPU.split(), single),
        **dict.fromkeys(["mv", "addmv", "addr", "dot", "vdot"], untouched),
        "pad": padded,
        "prod": single_unless_told,
        **dict.fromkeys(["stack", "cat", "concat", "concatenate", "index_copy"], widest),
    },
    "cuda": {
        **dict.fromkeys((_PRODUCTS + _MORE_PRODUCTS_ON_CUDA).split(), low),
        "recurrence": recurrent,
        **dict.fromkeys(_LOSSES.split(), single),
        **dict.fromkeys(_SINGLE_ON_CUDA.split(), single),
        **dict.fromkeys(_SUMS_ON_CUDA.split(), single_unless_told),
        **dict.fromkeys(_WIDEST_ON_CUDA.split(), widest),
        **dict.fromkeys(["interpolate", "upsample"], resampled),
        "binary_cross_entropy": refused,
    },
}
