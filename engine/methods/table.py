"""Every method of Tensor that comes from elsewhere: a name, and where it is defined.

Tensor inherits this table for type checkers, who see each method with its signature; when the program runs, `attach`
puts the methods into Tensor itself, so that no call has further to look.
"""

from collections.abc import Callable
from typing import Any

from engine import beside_linalg, linalg, ops
from engine.autograd import accumulate, api
from engine.methods import conversion, forms, in_place, operators, storage
from engine.ops.creation import constructors
from engine.ops.index import operator as index
from engine.ops.matmul import einsum
from engine.ops.pointwise import queries
from engine.ops.pointwise.row import FUNCTIONS
from engine.ops.random import tensors as random
from engine.ops.views.history import adopt_history, refresh
from engine.ops.writing import inplace
from engine.tensor import Tensor, printing


def unary(name: str) -> Callable[[Tensor], Tensor]:
    """The function of a row of the pointwise table that takes one tensor."""
    return FUNCTIONS[name]


def binary(name: str) -> Callable[[Tensor, Any], Tensor]:
    """That of a row that takes two."""
    return FUNCTIONS[name]


def several(name: str) -> Callable[..., Tensor]:
    """That of a row that takes more."""
    return FUNCTIONS[name]


def part(function: Callable[[Tensor], Tensor]) -> Tensor:
    """A property; the type is that of its value."""
    return property(function)  # type: ignore[return-value]


class Methods:
    """The methods, by name."""

    __add__ = operators.binary("add", "add")
    __radd__ = operators.reflected("add", "add")
    __iadd__ = operators.in_place("add", "add")
    __mul__ = operators.binary("mul", "mul")
    __rmul__ = operators.reflected("mul", "mul")
    __imul__ = operators.in_place("mul", "mul")
    __and__ = operators.binary("and", "bitwise_and")
    __rand__ = operators.reflected("and", "bitwise_and")
    __iand__ = operators.in_place("and", "bitwise_and")
    __or__ = operators.binary("or", "bitwise_or")
    __ror__ = operators.reflected("or", "bitwise_or")
    __ior__ = operators.in_place("or", "bitwise_or")
    __xor__ = operators.binary("xor", "bitwise_xor")
    __rxor__ = operators.reflected("xor", "bitwise_xor")
    __ixor__ = operators.in_place("xor", "bitwise_xor")
    __sub__ = operators.binary("sub", "sub")
    __rsub__ = operators.reflected("sub", "sub")
    __isub__ = operators.in_place("sub", "sub")
    __truediv__ = operators.binary("truediv", "div")
    __rtruediv__ = operators.reflected("truediv", "div")
    __itruediv__ = operators.in_place("truediv", "div")
    __floordiv__ = operators.binary("floordiv", "floor_divide")
    __rfloordiv__ = operators.reflected("floordiv", "floor_divide")
    __ifloordiv__ = operators.in_place("floordiv", "floor_divide")
    __mod__ = operators.binary("mod", "remainder")
    __rmod__ = operators.reflected("mod", "remainder")
    __imod__ = operators.in_place("mod", "remainder")
    __pow__ = operators.binary("pow", "pow")
    __rpow__ = operators.reflected("pow", "pow")
    __ipow__ = operators.in_place("pow", "pow")
    __lshift__ = operators.binary("lshift", "bitwise_left_shift")
    __rlshift__ = operators.reflected("lshift", "bitwise_left_shift")
    __ilshift__ = operators.in_place("lshift", "bitwise_left_shift")
    __rshift__ = operators.binary("rshift", "bitwise_right_shift")
    __rrshift__ = operators.reflected("rshift", "bitwise_right_shift")
    __irshift__ = operators.in_place("rshift", "bitwise_right_shift")
    __eq__ = operators.binary("eq", "eq")  # type: ignore[assignment]
    __ne__ = operators.binary("ne", "ne")  # type: ignore[assignment]
    __lt__ = operators.binary("lt", "lt")
    __le__ = operators.binary("le", "le")
    __gt__ = operators.binary("gt", "gt")
    __ge__ = operators.binary("ge", "ge")
    __matmul__ = operators.matmul
    __rmatmul__ = operators.reflected_matmul
    __neg__ = operators.negative
    __pos__ = operators.positive
    __abs__ = ops.abs
    __invert__ = operators.invert
    __repr__ = printing.tensor_repr
    __array_wrap__ = forms.array_wrap
    __getitem__ = index.getitem
    __setitem__ = index.setitem

    # --- history ------------------------------------------------------------------------------------------------------

    backward = api.backward_of
    _new_accumulator = accumulate.new_accumulator
    _refresh = refresh
    _adopt_history = adopt_history
    _constructed = staticmethod(constructors.construct)

    # --- elementwise, of one tensor -----------------------------------------------------------------------------------

    abs = unary("abs")
    absolute = unary("absolute")
    acos = unary("acos")
    acosh = unary("acosh")
    angle = unary("angle")
    arccos = unary("arccos")
    arccosh = unary("arccosh")
    arcsin = unary("arcsin")
    arcsinh = unary("arcsinh")
    arctan = unary("arctan")
    arctanh = unary("arctanh")
    asin = unary("asin")
    asinh = unary("asinh")
    atan = unary("atan")
    atanh = unary("atanh")
    bitwise_not = unary("bitwise_not")
    ceil = unary("ceil")
    cos = unary("cos")
    cosh = unary("cosh")
    digamma = unary("digamma")
    erf = unary("erf")
    erfc = unary("erfc")
    erfinv = unary("erfinv")
    exp = unary("exp")
    exp2 = unary("exp2")
    expm1 = unary("expm1")
    fix = unary("fix")
    floor = unary("floor")
    frac = unary("frac")
    i0 = unary("i0")
    isfinite = unary("isfinite")
    isinf = unary("isinf")
    isnan = unary("isnan")
    lgamma = unary("lgamma")
    log = unary("log")
    log10 = unary("log10")
    log1p = unary("log1p")
    log2 = unary("log2")
    logical_not = unary("logical_not")
    neg = unary("neg")
    negative = unary("negative")
    reciprocal = unary("reciprocal")
    relu = unary("relu")
    rsqrt = unary("rsqrt")
    sgn = unary("sgn")
    sigmoid = unary("sigmoid")
    sign = unary("sign")
    signbit = unary("signbit")
    sin = unary("sin")
    sinc = unary("sinc")
    sinh = unary("sinh")
    sqrt = unary("sqrt")
    tan = unary("tan")
    tanh = unary("tanh")
    trunc = unary("trunc")

    # --- elementwise, of two ------------------------------------------------------------------------------------------

    arctan2 = binary("arctan2")
    atan2 = binary("atan2")
    bitwise_and = binary("bitwise_and")
    bitwise_left_shift = binary("bitwise_left_shift")
    bitwise_or = binary("bitwise_or")
    bitwise_right_shift = binary("bitwise_right_shift")
    bitwise_xor = binary("bitwise_xor")
    copysign = binary("copysign")
    eq = binary("eq")
    floor_divide = binary("floor_divide")
    fmax = binary("fmax")
    fmin = binary("fmin")
    fmod = binary("fmod")
    gcd = binary("gcd")
    ge = binary("ge")
    greater = binary("greater")
    greater_equal = binary("greater_equal")
    gt = binary("gt")
    hypot = binary("hypot")
    igamma = binary("igamma")
    igammac = binary("igammac")
    lcm = binary("lcm")
    le = binary("le")
    lerp = several("lerp")
    less = binary("less")
    less_equal = binary("less_equal")
    logaddexp2 = binary("logaddexp2")
    logical_and = binary("logical_and")
    logical_or = binary("logical_or")
    logical_xor = binary("logical_xor")
    lt = binary("lt")
    maximum = binary("maximum")
    minimum = binary("minimum")
    mul = binary("mul")
    multiply = binary("multiply")
    ne = binary("ne")
    nextafter = binary("nextafter")
    not_equal = binary("not_equal")
    pow = binary("pow")
    remainder = binary("remainder")
    xlogy = binary("xlogy")

    # --- elementwise, with arguments of their own ---------------------------------------------------------------------

    add = ops.add
    addcdiv = ops.addcdiv
    addcmul = ops.addcmul
    adjoint = ops.adjoint
    clamp = ops.clamp
    clamp_max = ops.clamp_max
    clamp_min = ops.clamp_min
    clip = ops.clip
    conj = ops.conj
    conj_physical = ops.conj_physical
    deg2rad = ops.deg2rad
    dist = ops.dist
    div = ops.div
    divide = ops.divide
    float_power = ops.float_power
    heaviside = ops.heaviside
    imag = part(ops.imag)
    is_conj = ops.is_conj
    is_neg = ops.is_neg
    isclose = ops.isclose
    isin = ops.isin
    isneginf = ops.isneginf
    isposinf = ops.isposinf
    isreal = ops.isreal
    ldexp = ops.ldexp
    logaddexp = ops.logaddexp
    logit = ops.logit
    mH = part(ops.adjoint)
    masked_scatter = ops.masked_scatter
    mvlgamma = ops.mvlgamma
    nan_to_num = ops.nan_to_num
    positive = ops.positive
    rad2deg = ops.rad2deg
    real = part(ops.real)
    resolve_conj = ops.resolve_conj
    resolve_neg = ops.resolve_neg
    round = ops.round
    square = ops.square
    sub = ops.sub
    subtract = ops.subtract
    true_divide = ops.true_divide

    # --- activations --------------------------------------------------------------------------------------------------

    hardshrink = ops.hardshrink
    log_softmax = ops.log_softmax
    prelu = ops.prelu
    softmax = ops.softmax

    # --- reductions ---------------------------------------------------------------------------------------------------

    all = ops.all
    amax = ops.amax
    amin = ops.amin
    aminmax = ops.aminmax
    any = ops.any
    argmax = ops.argmax
    argmin = ops.argmin
    corrcoef = ops.corrcoef
    count_nonzero = ops.count_nonzero
    cov = ops.cov
    cummax = ops.cummax
    cummin = ops.cummin
    diff = ops.diff
    logcumsumexp = ops.logcumsumexp
    logsumexp = ops.logsumexp
    max = ops.max
    mean = ops.mean
    min = ops.min
    nanmean = ops.nanmean
    nansum = ops.nansum
    norm = beside_linalg.norm
    prod = ops.prod
    renorm = ops.renorm
    std = ops.std
    sum = ops.sum
    var = ops.var

    # --- order --------------------------------------------------------------------------------------------------------

    argsort = ops.argsort
    bincount = ops.bincount
    histc = ops.histc
    kthvalue = ops.kthvalue
    median = ops.median
    mode = ops.mode
    msort = ops.msort
    nanmedian = ops.nanmedian
    nanquantile = ops.nanquantile
    quantile = ops.quantile
    sort = ops.sort
    topk = ops.topk
    unique = ops.unique
    unique_consecutive = ops.unique_consecutive

    # --- products -----------------------------------------------------------------------------------------------------

    addbmm = ops.addbmm
    addmm = ops.addmm
    addmv = ops.addmv
    addr = ops.addr
    baddbmm = ops.baddbmm
    bmm = ops.bmm
    cross = ops.cross
    dot = ops.dot
    ger = ops.ger
    inner = ops.inner
    kron = ops.kron
    matmul = ops.matmul
    mm = ops.mm
    mv = ops.mv
    outer = ops.outer
    trace = einsum.trace
    vdot = ops.vdot

    # --- linear algebra -----------------------------------------------------------------------------------------------

    cholesky = beside_linalg.cholesky
    cholesky_inverse = linalg.cholesky_inverse
    cholesky_solve = linalg.cholesky_solve
    det = linalg.det
    inverse = linalg.inv
    logdet = linalg.logdet
    lu_solve = beside_linalg.lu_solve
    matrix_exp = linalg.matrix_exp
    matrix_power = linalg.matrix_power
    pinverse = linalg.pinv
    qr = beside_linalg.qr
    slogdet = linalg.slogdet
    svd = beside_linalg.svd

    # --- frequencies --------------------------------------------------------------------------------------------------

    istft = ops.istft
    stft = ops.stft

    # --- views --------------------------------------------------------------------------------------------------------

    as_strided = ops.as_strided
    broadcast_to = ops.broadcast_to
    chunk = ops.chunk
    diagonal = ops.diagonal
    expand = ops.expand
    expand_as = ops.expand_as
    flatten = ops.flatten
    moveaxis = ops.moveaxis
    movedim = ops.movedim
    narrow = ops.narrow
    permute = ops.permute
    reshape = ops.reshape
    select = ops.select
    split = ops.split
    squeeze = ops.squeeze
    swapaxes = ops.swapaxes
    swapdims = ops.swapdims
    t = ops.t
    tensor_split = ops.tensor_split
    transpose = ops.transpose
    unbind = ops.unbind
    unflatten = ops.unflatten
    unfold = ops.unfold
    unsafe_chunk = ops.unsafe_chunk
    unsafe_split = ops.unsafe_split
    unsqueeze = ops.unsqueeze
    view = ops.view

    # --- shapes -------------------------------------------------------------------------------------------------------

    argwhere = ops.argwhere
    as_strided_scatter = ops.as_strided_scatter
    cumprod = ops.cumprod
    cumsum = ops.cumsum
    diag = ops.diag
    diag_embed = ops.diag_embed
    diagflat = ops.diagflat
    diagonal_scatter = ops.diagonal_scatter
    dsplit = ops.dsplit
    flip = ops.flip
    fliplr = ops.fliplr
    flipud = ops.flipud
    hsplit = ops.hsplit
    index_add = ops.index_add
    index_copy = ops.index_copy
    index_fill = ops.index_fill
    index_put = ops.index_put
    ravel = ops.ravel
    repeat = ops.repeat
    repeat_interleave = ops.repeat_interleave
    roll = ops.roll
    rot90 = ops.rot90
    select_scatter = ops.select_scatter
    slice_scatter = ops.slice_scatter
    split_with_sizes = ops.split_with_sizes
    tile = ops.tile
    tril = ops.tril
    triu = ops.triu
    vsplit = ops.vsplit

    # --- places -------------------------------------------------------------------------------------------------------

    gather = ops.gather
    index_reduce = ops.index_reduce
    index_select = ops.index_select
    masked_fill = ops.masked_fill
    masked_select = ops.masked_select
    nonzero = ops.nonzero
    put = ops.put
    scatter = ops.scatter
    scatter_add = ops.scatter_add
    scatter_reduce = ops.scatter_reduce
    take = ops.take
    take_along_dim = ops.take_along_dim

    # --- copies -------------------------------------------------------------------------------------------------------

    clone = ops.clone
    contiguous = ops.contiguous
    to = ops.to

    # --- questions ----------------------------------------------------------------------------------------------------

    allclose = queries.allclose
    equal = queries.equal
    frexp = ops.frexp
    histogram = ops.histogram
    is_nonzero = ops.is_nonzero
    is_same_size = ops.is_same_size
    is_signed = ops.is_signed
    narrow_copy = ops.narrow_copy
    nonzero_static = ops.nonzero_static

    # --- dtypes and devices -------------------------------------------------------------------------------------------

    bfloat16 = conversion.to_dtype("bfloat16")
    bool = conversion.to_dtype("bool")
    byte = conversion.to_dtype("uint8")
    cdouble = conversion.to_dtype("complex128")
    cfloat = conversion.to_dtype("complex64")
    char = conversion.to_dtype("int8")
    cpu = conversion.cpu
    cuda = conversion.cuda
    double = conversion.to_dtype("float64")
    float = conversion.to_dtype("float32")
    get_device = conversion.get_device
    half = conversion.to_dtype("float16")
    int = conversion.to_dtype("int32")
    long = conversion.to_dtype("int64")
    new = conversion.new
    new_empty = conversion.new_empty
    new_empty_strided = conversion.new_empty_strided
    new_full = conversion.new_full
    new_ones = conversion.new_ones
    new_tensor = conversion.new_tensor
    new_zeros = conversion.new_zeros
    short = conversion.to_dtype("int16")
    to_dense = conversion.to_dense
    to_sparse = conversion.to_sparse
    type = conversion.type
    type_as = conversion.type_as

    # --- memory -------------------------------------------------------------------------------------------------------

    is_pinned = storage.is_pinned
    is_set_to = storage.is_set_to
    is_shared = storage.is_shared
    pin_memory = storage.pin_memory
    record_stream = storage.record_stream
    resize_ = storage.resize_
    resize_as_ = storage.resize_as_
    set_ = storage.set_
    share_memory_ = storage.share_memory_

    # --- arguments of their own ---------------------------------------------------------------------------------------

    H = part(forms.hermitian)
    T = part(forms.reversed_axes)
    mT = part(forms.transposed)
    polygamma = forms.polygamma
    reshape_as = forms.reshape_as
    sum_to_size = forms.sum_to_size
    view_as = forms.view_as
    where = forms.where

    # --- in place -----------------------------------------------------------------------------------------------------

    abs_ = in_place.twin("abs")
    absolute_ = in_place.written_back("absolute")
    acos_ = in_place.twin("acos")
    acosh_ = in_place.twin("acosh")
    add_ = in_place.twin("add")
    addbmm_ = in_place.written_back("addbmm")
    addcdiv_ = in_place.written_back("addcdiv")
    addcmul_ = in_place.written_back("addcmul")
    addmm_ = in_place.written_back("addmm")
    addmv_ = in_place.written_back("addmv")
    addr_ = in_place.written_back("addr")
    arccos_ = in_place.twin("acos")
    arccosh_ = in_place.twin("acosh")
    arcsin_ = in_place.twin("asin")
    arcsinh_ = in_place.twin("asinh")
    arctan2_ = in_place.twin("atan2")
    arctan_ = in_place.twin("atan")
    arctanh_ = in_place.twin("atanh")
    as_strided_ = in_place.as_strided_
    asin_ = in_place.twin("asin")
    asinh_ = in_place.twin("asinh")
    atan2_ = in_place.twin("atan2")
    atan_ = in_place.twin("atan")
    atanh_ = in_place.twin("atanh")
    baddbmm_ = in_place.written_back("baddbmm")
    bitwise_and_ = in_place.twin("bitwise_and")
    bitwise_left_shift_ = in_place.twin("bitwise_left_shift")
    bitwise_not_ = in_place.twin("bitwise_not")
    bitwise_or_ = in_place.twin("bitwise_or")
    bitwise_right_shift_ = in_place.twin("bitwise_right_shift")
    bitwise_xor_ = in_place.twin("bitwise_xor")
    ceil_ = in_place.twin("ceil")
    clamp_ = in_place.clamp_
    clamp_max_ = in_place.written_back("clamp_max")
    clamp_min_ = in_place.written_back("clamp_min")
    clip_ = in_place.written_back("clip")
    copy_ = inplace.copy_
    copysign_ = in_place.twin("copysign")
    cos_ = in_place.twin("cos")
    cosh_ = in_place.twin("cosh")
    cumprod_ = in_place.written_back("cumprod")
    cumsum_ = in_place.written_back("cumsum")
    deg2rad_ = in_place.written_back("deg2rad")
    digamma_ = in_place.twin("digamma")
    div_ = in_place.div_
    divide_ = in_place.div_
    eq_ = in_place.twin("eq")
    erf_ = in_place.twin("erf")
    erfc_ = in_place.twin("erfc")
    erfinv_ = in_place.twin("erfinv")
    exp2_ = in_place.twin("exp2")
    exp_ = in_place.twin("exp")
    expm1_ = in_place.twin("expm1")
    fill_ = inplace.fill_
    fill_diagonal_ = in_place.fill_diagonal_
    fix_ = in_place.twin("trunc")
    float_power_ = in_place.written_back("float_power")
    floor_ = in_place.twin("floor")
    floor_divide_ = in_place.twin("floor_divide")
    fmax_ = in_place.twin("fmax")
    fmin_ = in_place.twin("fmin")
    fmod_ = in_place.twin("fmod")
    frac_ = in_place.written_back("frac")
    gcd_ = in_place.twin("gcd")
    ge_ = in_place.twin("ge")
    geometric_ = in_place.geometric_
    greater_ = in_place.twin("gt")
    greater_equal_ = in_place.twin("ge")
    gt_ = in_place.twin("gt")
    heaviside_ = in_place.heaviside_
    hypot_ = in_place.twin("hypot")
    i0_ = in_place.twin("i0")
    igamma_ = in_place.twin("igamma")
    igammac_ = in_place.twin("igammac")
    index_add_ = in_place.index_add_
    index_copy_ = in_place.index_copy_
    index_fill_ = in_place.written_back("index_fill")
    index_put_ = in_place.index_put_
    index_reduce_ = in_place.written_back("index_reduce")
    lcm_ = in_place.twin("lcm")
    ldexp_ = in_place.written_back("ldexp")
    le_ = in_place.twin("le")
    lerp_ = in_place.twin("lerp")
    less_ = in_place.twin("lt")
    less_equal_ = in_place.twin("le")
    lgamma_ = in_place.twin("lgamma")
    log10_ = in_place.twin("log10")
    log1p_ = in_place.twin("log1p")
    log2_ = in_place.twin("log2")
    log_ = in_place.twin("log")
    log_normal_ = in_place.log_normal_
    logical_and_ = in_place.twin("logical_and")
    logical_not_ = in_place.twin("logical_not")
    logical_or_ = in_place.twin("logical_or")
    logical_xor_ = in_place.twin("logical_xor")
    logit_ = in_place.written_back("logit")
    lt_ = in_place.twin("lt")
    masked_fill_ = in_place.masked_fill_
    masked_scatter_ = in_place.written_back("masked_scatter")
    maximum_ = in_place.twin("maximum")
    minimum_ = in_place.twin("minimum")
    mul_ = in_place.twin("mul")
    multiply_ = in_place.twin("mul")
    mvlgamma_ = in_place.written_back("mvlgamma")
    nan_to_num_ = in_place.written_back("nan_to_num")
    ne_ = in_place.twin("ne")
    neg_ = in_place.twin("neg")
    negative_ = in_place.twin("neg")
    nextafter_ = in_place.twin("nextafter")
    not_equal_ = in_place.twin("ne")
    pow_ = in_place.twin("pow")
    put_ = in_place.written_back("put")
    rad2deg_ = in_place.written_back("rad2deg")
    reciprocal_ = in_place.twin("reciprocal")
    relu_ = in_place.twin("relu")
    remainder_ = in_place.twin("remainder")
    renorm_ = in_place.written_back("renorm")
    round_ = in_place.round_
    rsqrt_ = in_place.twin("rsqrt")
    scatter_ = in_place.scatter_
    scatter_add_ = in_place.scatter_add_
    scatter_reduce_ = in_place.written_back("scatter_reduce")
    sgn_ = in_place.twin("sgn")
    sigmoid_ = in_place.twin("sigmoid")
    sign_ = in_place.twin("sign")
    sin_ = in_place.twin("sin")
    sinc_ = in_place.twin("sinc")
    sinh_ = in_place.twin("sinh")
    sqrt_ = in_place.twin("sqrt")
    square_ = in_place.twin("square")
    squeeze_ = in_place.squeeze_
    sub_ = in_place.twin("sub")
    subtract_ = in_place.subtract_
    swapaxes_ = in_place.swapaxes_
    swapdims_ = in_place.swapaxes_
    t_ = in_place.t_
    tan_ = in_place.twin("tan")
    tanh_ = in_place.twin("tanh")
    transpose_ = in_place.transpose_
    tril_ = in_place.written_back("tril")
    triu_ = in_place.written_back("triu")
    true_divide_ = in_place.div_
    trunc_ = in_place.twin("trunc")
    unsqueeze_ = in_place.unsqueeze_
    xlogy_ = in_place.twin("xlogy")
    zero_ = inplace.zero_

    # --- random -------------------------------------------------------------------------------------------------------

    bernoulli = ops.bernoulli
    bernoulli_ = random.bernoulli_
    exponential_ = random.exponential_
    multinomial = ops.multinomial
    normal_ = random.normal_
    random_ = random.random_
    uniform_ = random.uniform_


def attach() -> None:
    """Puts the methods into Tensor."""
    for name, method in vars(Methods).items():
        if name not in ("__module__", "__doc__", "__dict__", "__weakref__", "__hash__"):
            setattr(Tensor, name, method)
