"""`engine.special`: special functions with PyTorch's names (torch.special)."""

from engine.ops import digamma as digamma
from engine.ops import digamma as psi
from engine.ops import erf as erf
from engine.ops import erfc as erfc
from engine.ops import erfinv as erfinv
from engine.ops import exp2 as exp2
from engine.ops import expm1 as expm1
from engine.ops import lgamma as gammaln
from engine.ops import log1p as log1p
from engine.ops import log_softmax as log_softmax
from engine.ops import logit as logit
from engine.ops import logsumexp as logsumexp
from engine.ops import polygamma as polygamma
from engine.ops import sigmoid as expit
from engine.ops import sinc as sinc
from engine.ops import softmax as softmax
from engine.ops import xlogy as xlogy

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "log1p",
    "log_softmax",
    "logit",
    "logsumexp",
    "polygamma",
    "psi",
    "sinc",
    "softmax",
    "xlogy",
]
