"""`engine.special`: special functions with PyTorch's names (torch.special)."""

from engine.ops import digamma as digamma
from engine.ops import digamma as psi
from engine.ops import (
    entr as entr,
)
from engine.ops import erf as erf
from engine.ops import erfc as erfc
from engine.ops import (
    erfcx as erfcx,
)
from engine.ops import erfinv as erfinv
from engine.ops import exp2 as exp2
from engine.ops import expm1 as expm1
from engine.ops import (
    gammainc as gammainc,
)
from engine.ops import (
    gammaincc as gammaincc,
)
from engine.ops import (
    i0 as i0,
)
from engine.ops import (
    i0e as i0e,
)
from engine.ops import (
    i1 as i1,
)
from engine.ops import (
    i1e as i1e,
)
from engine.ops import lgamma as gammaln
from engine.ops import log1p as log1p
from engine.ops import (
    log_ndtr as log_ndtr,
)
from engine.ops import log_softmax as log_softmax
from engine.ops import logit as logit
from engine.ops import logsumexp as logsumexp
from engine.ops import (
    multigammaln as multigammaln,
)
from engine.ops import (
    ndtr as ndtr,
)
from engine.ops import (
    ndtri as ndtri,
)
from engine.ops import polygamma as polygamma
from engine.ops import sigmoid as expit
from engine.ops import sinc as sinc
from engine.ops import (
    xlog1py as xlog1py,
)
from engine.ops import xlogy as xlogy
from engine.ops import (
    zeta as zeta,
)
from engine.ops.softmax import operator as softmax
from engine.ops.writing.taking_out import wrapped as _wrapped

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammainc",
    "gammaincc",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]

globals().update(_wrapped("engine.special", globals()))
