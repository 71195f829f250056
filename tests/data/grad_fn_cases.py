"""Calls whose `grad_fn` is compared with PyTorch's, as text. The letters are leaves that require gradients: `x` (2, 3),
`a` (3, 4), `v` (3,), `b` (4, 3), `c` (4,), `p` (2, 3) positive, `s` (3, 3) positive definite, `z` (2, 3) complex, `i`
(1, 2, 4, 4); and others: `k` (2, 3) indices, `m` (2, 3) a mask, `t` (2,) classes.
"""

from typing import Any

import numpy as np

CASES = [
    *("x + x", "x + 1", "x - x", "x * x", "x * 2", "x / p", "-x", "x ** 2", "2 ** x", "x ** p", "x.square()"),
    *("x.abs()", "x.exp()", "x.expm1()", "p.log()", "p.log1p()", "p.log2()", "p.log10()", "p.sqrt()", "p.rsqrt()"),
    *("x.sin()", "x.cos()", "x.tanh()", "x.sigmoid()", "x.erf()", "x.relu()", "x.reciprocal()", "x.clamp(0, 1)"),
    *("x.clamp(min=0)", "x.clamp(p)"),
    *("x.floor()", "x.round()", "x.trunc()", "x.sign()", "x.exp2()", "p.lgamma()", "p.digamma()", "x.sinc()"),
    *("x.lerp(p, 0.5)", "x.lerp(p, p)", "x.maximum(p)", "x.minimum(p)", "x.atan2(p)", "x.hypot(p)", "x.fmod(p)"),
    *("F.gelu(x)", "F.silu(x)", "F.elu(x)", "F.leaky_relu(x)", "F.softplus(x)", "F.logsigmoid(x)", "F.hardtanh(x)"),
    *("F.hardswish(x)", "F.mish(x)", "F.softmax(x, 1)", "F.log_softmax(x, 1)", "F.threshold(x, 0.1, 0.0)"),
    *("T.special.i0e(x)", "T.special.i1(x)", "T.special.i1e(x)", "T.special.erfcx(x)", "T.special.log_ndtr(x)"),
    *("T.special.xlog1py(x, p)", "T.special.zeta(p + 1, p)", "T.special.entr(p)"),
    *("T.div(x, p, rounding_mode='floor')", "T.div(x, p, rounding_mode='trunc')", "T.remainder(x, p)"),
    *(
        "x.fmod(2.0)",
        "x.remainder(2.0)",
        "T.div(x, 2.0, rounding_mode='floor')",
        "F.max_pool1d(x, 2)",
        "F.avg_pool3d(i, 1)",
    ),
    *("x @ a", "x.mm(a)", "x @ v", "x.mv(v)", "v @ v", "v.dot(v)", "x[None] @ a[None]", "T.bmm(x[None], a[None])"),
    *("T.addmm(c, x, a)", "T.baddbmm(c, x[None], a[None])", "x[None] @ a", "v @ a"),
    *("F.linear(x, b, c)", "F.linear(x, b)", "F.linear(v, b, c)", "F.linear(x[None], b, c)", "F.linear(x[None], b)"),
    *("x.sum()", "x.sum(1)", "x.mean()", "x.mean(1)", "x.prod()", "x.prod(1)", "x.var()", "x.std()", "x.var(1)"),
    *("x.amax(1)", "x.amin(1)", "x.max(1)[0]", "x.min(1)[0]", "x.max()", "x.min()", "x.median()", "x.median(1)[0]"),
    *("x.cumsum(1)", "x.cumprod(1)", "x.cummax(1)[0]", "x.logsumexp(1)", "x.logcumsumexp(1)", "x.norm()"),
    *("T.linalg.vector_norm(x)", "x.sort(1)[0]", "x.topk(2, 1)[0]", "x.kthvalue(1, 1)[0]", "x.mode(1)[0]"),
    *("x.t()", "x.T", "x.transpose(0, 1)", "x.permute(1, 0)", "i.permute(0, 2, 3, 1)", "x.view(6)", "x.view(3, 2)"),
    *("x.reshape(6)", "x.flatten()", "x.t().reshape(6)", "x.unsqueeze(0)", "x.squeeze()", "x[None].squeeze(0)"),
    *("x.expand(2, 2, 3)", "x[0]", "x[:, 1]", "x[:, :2]", "x[::2]", "x[None]", "x[[0, 1]]", "x[m]", "x[..., 0]"),
    *("x.select(0, 1)", "x.narrow(1, 0, 2)", "x.diagonal()", "x.unfold(1, 2, 1)", "x.as_strided((2,), (1,))"),
    *("T.cat([x, p])", "T.stack([x, p])", "x.chunk(2)[1]", "x.split(1)[0]", "x.split([1, 1])[1]", "x.unbind()[0]"),
    *("x.gather(1, k)", "x.index_select(1, k[0])", "x.scatter(1, k, p)", "x.scatter(1, k, 1.0)", "x.clone()"),
    *("x.masked_fill(m, 0.0)", "x.where(m, p)", "x.tril()", "x.triu()", "x.flip(0)", "x.double()", "x.contiguous()"),
    *(
        "x.t().contiguous()",
        "F.pad(x, (1, 1))",
        "x.clone().mul_(2)",
        "x.clone().copy_(p)",
        "x.repeat(2, 1)",
        "x.roll(1)",
    ),
    *("z.real", "z.imag", "z.conj()", "z.abs()", "z.angle()", "T.view_as_real(z)", "T.complex(x, p)"),
    *("T.fft.fft(z)", "T.fft.rfft(x)", "T.fft.irfft(z)"),
    *("T.linalg.inv(s)", "T.linalg.det(s)", "T.linalg.slogdet(s)[1]", "T.linalg.cholesky(s)", "T.linalg.qr(s)[0]"),
    *("T.linalg.eigh(s)[0]", "T.linalg.svd(s)[1]", "T.linalg.solve(s, v)", "T.linalg.lu_factor(s)[0]"),
    *("T.linalg.pinv(s)", "T.linalg.eigvalsh(s)"),
    *("F.cross_entropy(x, t)", "F.nll_loss(x, t)", "F.mse_loss(x, p)", "F.l1_loss(x, p)", "F.dropout(x, 0.5)"),
    *("F.embedding(k, b)", "F.layer_norm(x, (3,))", "F.rms_norm(x, (3,))", "F.group_norm(x, 3)"),
    *("F.batch_norm(x, None, None, training=True)", "F.conv2d(i, i)", "F.conv_transpose2d(i, i.transpose(0, 1))"),
    *("F.max_pool2d(i, 2)", "F.avg_pool2d(i, 2)", "F.adaptive_avg_pool2d(i, 1)", "F.interpolate(i, scale_factor=2)"),
    *("F.unfold(i, 2)", "F.fold(F.unfold(i, 2), (4, 4), 2)", "F.pixel_shuffle(i.repeat(1, 2, 1, 1), 2)"),
    "F.scaled_dot_product_attention(i, i, i)",
]


def names(package: Any) -> dict[str, str | None]:
    """The name of each case's `grad_fn` in a package that is PyTorch or like it."""
    rng = np.random.default_rng(0)
    square = rng.random((3, 3))

    def leaf(array: np.ndarray) -> Any:
        return package.tensor(array, requires_grad=True)

    around = {
        "T": package,
        "F": package.nn.functional,
        **{name: leaf(rng.standard_normal(shape)) for name, shape in [("x", (2, 3)), ("a", (3, 4)), ("v", (3,))]},
        **{name: leaf(rng.standard_normal(shape)) for name, shape in [("b", (4, 3)), ("c", (4,)), ("i", (1, 2, 4, 4))]},
        "p": leaf(rng.random((2, 3)) + 0.5),
        "s": leaf(square @ square.T + np.eye(3)),
        "z": leaf(rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3))),
        "k": package.tensor([[0, 1, 2], [2, 1, 0]]),
        "m": package.tensor([[True, False, True], [False, True, False]]),
        "t": package.tensor([0, 2]),
    }
    found = {}
    for case in CASES:
        node = eval(case, dict(around)).grad_fn
        found[case] = None if node is None else node.name()
    return found
