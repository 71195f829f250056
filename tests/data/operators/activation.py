"""Cases of engine.ops.activation.operator, engine.ops.softmax.operator and engine.ops.pointwise.special_functions."""

import numpy as np

from tests.data.operators.case import Case, normal, uniform

X = normal(1, 3, 7) * 3
CHANNELS_LAST = normal(2, 2, 2, 3, 4).transpose(0, 3, 1, 2)
SLICED = normal(3, 4, 9)[:, ::2]
SCALAR = np.asarray(0.7)
FAR = np.array([-40.0, -20.5, -5.0, -0.25, 0.25, 3.5, 19.0, 30.0])

CASES: dict[str, Case] = {}

_PLAIN = {
    "gelu": lambda t, x: t.nn.functional.gelu(x),
    "gelu_tanh": lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda t, x: t.nn.functional.silu(x),
    "leaky_relu": lambda t, x: t.nn.functional.leaky_relu(x, 0.2),
    "elu": lambda t, x: t.nn.functional.elu(x, 1.3),
    "selu": lambda t, x: t.nn.functional.selu(x),
    "celu": lambda t, x: t.nn.functional.celu(x, 0.5),
    "softplus": lambda t, x: t.nn.functional.softplus(x),
    "softplus_beta": lambda t, x: t.nn.functional.softplus(x, 2.0, 3.0),
    "hardtanh": lambda t, x: t.nn.functional.hardtanh(x, -0.8, 1.1),
    "relu6": lambda t, x: t.nn.functional.relu6(x),
    "hardsigmoid": lambda t, x: t.nn.functional.hardsigmoid(x),
    "hardswish": lambda t, x: t.nn.functional.hardswish(x),
    "mish": lambda t, x: t.nn.functional.mish(x),
    "softsign": lambda t, x: t.nn.functional.softsign(x),
    "tanhshrink": lambda t, x: t.nn.functional.tanhshrink(x),
    "hardshrink": lambda t, x: t.nn.functional.hardshrink(x, 0.6),
    "softshrink": lambda t, x: t.nn.functional.softshrink(x, 0.6),
    "threshold": lambda t, x: t.nn.functional.threshold(x, 0.1, 20.0),
    "logsigmoid": lambda t, x: t.nn.functional.logsigmoid(x),
    "erf": lambda t, x: t.erf(x),
    "erfc": lambda t, x: t.erfc(x),
}
for _name, _function in _PLAIN.items():
    CASES[_name] = Case(_function, (X,))
    CASES[f"{_name} channels last"] = Case(_function, (CHANNELS_LAST,))
    CASES[f"{_name} sliced"] = Case(_function, (SLICED,))
    CASES[f"{_name} 0-dim"] = Case(_function, (SCALAR,))
    CASES[f"{_name} empty"] = Case(_function, (np.empty((0, 3)),), twice=False)
    CASES[f"{_name} far"] = Case(_function, (FAR,), twice=False)
for _name in CASES:
    if _name.startswith("hardsigmoid"):
        CASES[_name] = CASES[_name]._replace(tolerance=1e-7)  # PyTorch holds 1/6 in float32
CASES["erfinv"] = Case(lambda t, x: t.erfinv(x), (np.array([-0.99, -0.6, -1e-5, 0.0, 0.3, 0.75, 0.98]),))
POSITIVE = uniform(10, 0.1, 12, 3, 6)
NEGATIVE = np.array([-7.3, -3.6, -2.25, -0.5, -0.1])
for _label, _array in {"": POSITIVE, " negative": NEGATIVE, " sliced": POSITIVE[:, ::2]}.items():
    CASES[f"lgamma{_label}"] = Case(lambda t, x: t.lgamma(x), (_array,))
    CASES[f"digamma{_label}"] = Case(lambda t, x: t.digamma(x), (_array,))
    for _order in (1, 2, 3):
        CASES[f"polygamma {_order}{_label}"] = Case(lambda t, x, n=_order: t.polygamma(n, x), (_array,))
CASES["prelu"] = Case(lambda t, x, w: t.nn.functional.prelu(x, w), (normal(4, 2, 3, 4), normal(5, 3)))
CASES["prelu one"] = Case(lambda t, x, w: t.nn.functional.prelu(x, w), (normal(4, 2, 3, 4), normal(5, 1)))
CASES["glu"] = Case(lambda t, x: t.nn.functional.glu(x, 1), (normal(6, 2, 6, 3),))
for _name in ("softmax", "log_softmax"):
    for _label, _array in {
        "": normal(7, 3, 5),
        " channels last": CHANNELS_LAST,
        " sliced": SLICED,
        " large": normal(8, 4, 6) * 300,
    }.items():
        for _dim in range(_array.ndim):
            CASES[f"{_name}{_label} dim {_dim}"] = Case(
                lambda t, x, name=_name, dim=_dim: getattr(t.nn.functional, name)(x, dim),
                (_array,),
                twice=_label != " large",
            )
    CASES[f"{_name} 0-dim"] = Case(lambda t, x, name=_name: getattr(t.nn.functional, name)(x, -1), (SCALAR,))
    CASES[f"{_name} empty"] = Case(
        lambda t, x, name=_name: getattr(t.nn.functional, name)(x, 1), (np.empty((0, 3)),), twice=False
    )
    CASES[f"{_name} empty axis"] = Case(
        lambda t, x, name=_name: getattr(t.nn.functional, name)(x, 1), (np.empty((3, 0)),), twice=False
    )
CASES["softmin"] = Case(lambda t, x: t.nn.functional.softmin(x, -1), (uniform(9, -2, 2, 3, 4),))
