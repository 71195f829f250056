"""Cases of engine.ops.loss and the losses composed in engine.nn.functional."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, integers, normal, uniform

CASES: dict[str, Case] = {}

LOGITS, TARGET, WEIGHT = normal(1, 6, 5), integers(2, 0, 5, 6), uniform(3, 0.5, 2, 5)
IMAGE, LABELS = normal(4, 2, 5, 3, 2), integers(5, 0, 5, 2, 3, 2)
IGNORING = TARGET.copy()
IGNORING[[1, 4]] = -100
LABELS_IGNORING = LABELS.copy()
LABELS_IGNORING[0, 1] = 3
_SHAPES: dict[str, tuple[np.ndarray, np.ndarray, int]] = {
    "": (LOGITS, TARGET, -100),
    " ignoring": (LOGITS, IGNORING, -100),
    " image": (IMAGE, LABELS_IGNORING, 3),
    " sequence": (IMAGE[..., 0].copy(), LABELS[..., 0].copy(), -100),
    " channels last": (np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), LABELS, 2),
    " row": (LOGITS[0].copy(), np.asarray(3), -100),
    " one": (LOGITS[:1].copy(), TARGET[:1].copy(), -100),
    " all ignored": (LOGITS, TARGET * 0 - 100, -100),
    " empty": (LOGITS[:0].copy(), TARGET[:0].copy(), -100),
}


def _class_losses(reduction: str, weighted: bool, smoothing: float, label: str) -> None:
    logits, target, ignored = _SHAPES[label]
    options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignored}
    inputs = (logits, target, WEIGHT) if weighted else (logits, target)
    suffix = f"{label} {reduction}{' weighted' if weighted else ''}"
    twice = "ignored" not in label and "empty" not in label

    def cross_entropy(t: Any, x: Any, y: Any, w: Any = None) -> Any:
        return t.nn.functional.cross_entropy(x, y, w, label_smoothing=smoothing, **options)

    def nll_loss(t: Any, x: Any, y: Any, w: Any = None) -> Any:
        return t.nn.functional.nll_loss(t.nn.functional.log_softmax(x, min(1, x.dim() - 1)), y, w, **options)

    CASES[f"cross_entropy{suffix}{f' smoothed {smoothing}' if smoothing else ''}"] = Case(
        cross_entropy, inputs, twice, (2,)
    )
    if not smoothing:
        CASES[f"nll_loss{suffix}"] = Case(nll_loss, inputs, twice, (2,))


for _label in _SHAPES:
    for _reduction in ("none", "mean", "sum"):
        for _weighted in (False, True):
            for _smoothing in (0.0, 0.2):
                _class_losses(_reduction, _weighted, _smoothing, _label)

for _reduction in ("none", "mean", "sum"):
    CASES[f"cross_entropy probabilities {_reduction}"] = Case(
        lambda t, x, y, w, r=_reduction: t.nn.functional.cross_entropy(x, y, w, reduction=r, label_smoothing=0.1),
        (LOGITS, uniform(6, 0, 1, 6, 5), WEIGHT),
        constants=(2,),
    )
    CASES[f"cross_entropy probabilities image {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.cross_entropy(x, y, reduction=r),
        (IMAGE, uniform(7, 0, 1, 2, 5, 3, 2)),
    )

_PAIR = (normal(8, 3, 4), normal(9, 3, 4))
_ODDS = (normal(10, 3, 4), uniform(11, 0, 1, 3, 4))
for _reduction in ("none", "mean", "sum"):
    for _name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        CASES[f"{_name} {_reduction}"] = Case(
            lambda t, x, y, n=_name, r=_reduction: getattr(t.nn.functional, n)(x, y, reduction=r), _PAIR
        )
    CASES[f"smooth_l1_loss beta {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.smooth_l1_loss(x, y, reduction=r, beta=0.4), _PAIR
    )
    CASES[f"huber_loss delta {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.huber_loss(x, y, reduction=r, delta=0.4), _PAIR
    )
    CASES[f"binary_cross_entropy {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.binary_cross_entropy(x, y, reduction=r),
        (uniform(12, 0.05, 0.95, 3, 4), _ODDS[1]),
        constants=(1,),
    )
    CASES[f"binary_cross_entropy_with_logits {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.binary_cross_entropy_with_logits(x, y, reduction=r), _ODDS
    )
    CASES[f"binary_cross_entropy_with_logits weighted {_reduction}"] = Case(
        lambda t, x, y, w, p, r=_reduction: t.nn.functional.binary_cross_entropy_with_logits(
            x, y, w, pos_weight=p, reduction=r
        ),
        (*_ODDS, uniform(13, 0.5, 2, 3, 4), uniform(14, 0.5, 2, 4)),
        constants=(2, 3),
    )
    CASES[f"kl_div {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.kl_div(x, y, reduction="batchmean" if r == "mean" else r),
        _ODDS,
        constants=(1,),
    )
    CASES[f"kl_div log {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.kl_div(
            x, y, reduction="batchmean" if r == "mean" else r, log_target=True
        ),
        _PAIR,
    )
    CASES[f"poisson_nll_loss {_reduction}"] = Case(
        lambda t, x, y, r=_reduction: t.nn.functional.poisson_nll_loss(x, y, reduction=r, full=True),
        _ODDS,
        constants=(1,),
    )
    CASES[f"gaussian_nll_loss {_reduction}"] = Case(
        lambda t, x, y, v, r=_reduction: t.nn.functional.gaussian_nll_loss(x, y, v, reduction=r),
        (*_PAIR, uniform(15, 0.5, 2, 3, 4)),
    )
CASES["binary_cross_entropy_with_logits far"] = Case(
    lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y),
    (np.array([-200.0, -30.0, 40.0, 300.0]), np.array([0.0, 1.0, 1.0, 0.0])),
    False,
    (1,),
)
