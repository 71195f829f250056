"""Cases of mixed precision that PyTorch and the engine both run: expressions, three small networks, a scaler. Each
function takes the library, `torch` or `engine`.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

_EXPRESSIONS = """
a @ a.T | m.matmul(a, a.T) | a.mm(a.T) | m.einsum('ij,kj->ik', a, a) | m.mv(a, v) | m.dot(v, v) | m.inner(a, a)
m.outer(v, v) | m.addmm(q, q, q) | m.addmv(v, q, v) | m.addr(q, v, v) | m.bmm(c, c.mT) | m.baddbmm(c @ c.mT, c, c.mT)
m.addbmm(q[:3, :3], c, c.mT) | m.chain_matmul(a, a.T) | m.linalg.multi_dot([a, a.T, a]) | m.linalg.vecdot(a, a)
m.tensordot(a, a.T, 1) | a.double() @ a.double().T
F.linear(a, a) | F.conv1d(c, c) | F.conv2d(i, w) | F.conv2d(i, w, wb) | F.conv_transpose2d(i, w) | F.prelu(a, p)
F.scaled_dot_product_attention(c, c, c) | F.bilinear(f, f, bw)
F.softmax(a, 1) | a.softmax(1) | F.log_softmax(a, 1) | F.softmin(a, 1) | a.exp() | a.pow(2) | a ** 2 | 2 ** a | 1 / a
a.reciprocal() | a.tanh() | a.sum() | a.sum(1) | a.mean() | a.prod() | a.prod(1) | a.cumsum(0) | a.cumprod(0) | a.norm()
a.norm(dim=1) | m.linalg.vector_norm(a) | m.linalg.norm(a) | m.linalg.matrix_norm(a) | a.std() | a.var(1) | a.max()
a.amax(1) | a.logsumexp(1) | m.dist(a, a) | m.cdist(a, a) | F.pairwise_distance(a, a) | F.cosine_similarity(a, a)
F.normalize(a) | a.renorm(2, 0, 1.0)
F.mse_loss(a, f) | F.l1_loss(a, f) | F.smooth_l1_loss(a, f) | F.huber_loss(a, f) | F.cross_entropy(a, y)
F.cross_entropy(a, y, label_smoothing=0.1) | F.cross_entropy(a, y, reduction='none') | F.nll_loss(a, y)
F.binary_cross_entropy_with_logits(a, f) | F.binary_cross_entropy(a.sigmoid(), f.sigmoid()) | F.soft_margin_loss(a, f)
F.poisson_nll_loss(a, f) | F.hinge_embedding_loss(a, f) | F.margin_ranking_loss(v, v, v) | F.multi_margin_loss(a, y)
F.triplet_margin_loss(a, f, a) | F.cosine_embedding_loss(a, f, m.ones(3)) | F.gaussian_nll_loss(a, f, f.exp())
F.gelu(a) | F.silu(a) | F.relu(a) | F.elu(a) | F.softplus(a) | F.logsigmoid(a) | F.mish(a) | F.glu(a) | F.leaky_relu(a)
F.layer_norm(a, (4,)) | F.layer_norm(a, (4,), n, n) | F.group_norm(a, 2, n, n) | F.instance_norm(c)
F.batch_norm(a, None, None, training=True) | F.batch_norm(i, z, n, n, n, training=True) | F.batch_norm(a, z, n, n, n)
m.cat([a, f]) | m.cat([a, a]) | m.stack([a, f]) | m.stack([f, f]) | m.where(a > 0, a, f) | a + f | a * f | a + 1
m.addcmul(a, f, a) | m.addcdiv(a, f, a) | m.atan2(a, f) | m.lerp(a, a, 0.5) | m.maximum(a, f) | m.kron(a, a)
F.embedding(y, a) | F.max_pool2d(i, 2) | F.avg_pool2d(i, 2) | F.adaptive_avg_pool2d(i, 1) | F.unfold(i, 2)
F.interpolate(i, scale_factor=2) | F.interpolate(i, scale_factor=2, mode='bilinear') | F.grid_sample(i, g)
F.pad(i, (1, 1, 1, 1), mode='reflect') | F.pad(i, (1, 1, 1, 1)) | F.pad(c, (1, 1), mode='replicate')
F.avg_pool3d(k, 2) | F.max_pool3d(k, 2)
m.linalg.inv(s) | m.linalg.solve(s, s) | m.linalg.cholesky(s) | m.linalg.qr(s)[0] | m.linalg.svd(s)[1]
m.fft.rfft(a).real | m.quantile(v, 0.5) | m.index_select(a, 0, y) | a.index_copy(0, y, f) | a.gather(0, y[:, None])
a.clamp(min=0) | a.float() | a.sort()[0] | a.topk(2)[0]
nn.MultiheadAttention(4, 2)(c, c, c)[0] | nn.MultiheadAttention(4, 2)(c, c, c, need_weights=False)[0]
nn.TransformerEncoderLayer(4, 2, 8)(c) | nn.TransformerDecoderLayer(4, 2, 8)(c, c) | nn.Transformer(4, 2, 1, 1, 8)(c, c)
nn.LayerNorm(4)(a) | nn.BatchNorm2d(4)(i) | nn.Embedding(5, 4)(y) | nn.ConvTranspose2d(4, 2, 3)(i)
nn.RNN(4, 5)(c)[0] | nn.GRU(4, 5)(c)[0] | nn.LSTMCell(4, 5)(a)[0] | nn.GRUCell(4, 5)(a) | nn.RNNCell(4, 5)(a)
"""
_ONLY_BFLOAT16 = ["nn.LSTM(4, 5)(c)[0]", "nn.LSTM(4, 5)(c)[1][1]"]  # in PyTorch
EXPRESSIONS = [each.strip() for each in _EXPRESSIONS.strip().replace("\n", "|").split("|")]
_FLOAT32 = ("f", "n", "z", "wb", "bw")  # whatever the others are


def _operands() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {"a": (3, 4), "f": (3, 4), "v": (4,), "q": (4, 4), "c": (2, 3, 4), "i": (2, 4, 6, 6), "w": (4, 4, 3, 3)}
    shapes |= {"wb": (4,), "bw": (2, 4, 4), "k": (1, 1, 4, 4, 4)}
    fixed = {"p": np.full(1, 0.2), "n": np.ones(4), "z": np.zeros(4), "s": np.eye(4) * 4 + 0.1}
    return {name: draw(shape) for name, shape in shapes.items()} | fixed | {"g": np.tanh(draw((2, 3, 3, 2)))}


def expressions(m: Any, kind: str, low_inputs: bool) -> dict[str, str]:
    """Dtype of each expression under autocast("cpu", kind), of operands in float32 or in the low dtype."""
    dtype = getattr(m, kind)
    names: dict[str, Any] = {"m": m, "nn": m.nn, "F": m.nn.functional}
    for name, array in _operands().items():
        tensor = m.from_numpy(array.astype(np.float32))
        names[name] = tensor.to(dtype) if low_inputs and name not in _FLOAT32 else tensor
    names["y"] = m.tensor([0, 2, 1])
    found = {}
    for each in EXPRESSIONS + (_ONLY_BFLOAT16 if kind == "bfloat16" else []):
        with warnings.catch_warnings(), m.autocast("cpu", dtype):
            warnings.simplefilter("ignore")
            found[each] = str(eval(each, names).dtype).rpartition(".")[2]
    return found


# --- networks ---------------------------------------------------------------------------------------------------------


def _mlp(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 4))


def _cnn(nn: Any) -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


def _gpt(nn: Any) -> Any:
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Embedding(11, 16), nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(16, 11)
    )


NETWORKS = {"mlp": _mlp, "cnn": _cnn, "gpt": _gpt}


def _batches(name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(1)
    for _ in range(6):
        if name == "gpt":
            text = random.integers(0, 11, (4, 9))
            yield text[:, :-1], text[:, 1:]
        else:
            shape = (8, 16) if name == "mlp" else (4, 3, 8, 8)
            yield random.standard_normal(shape).astype(np.float32), random.integers(0, 4, shape[0])


def train(m: Any, name: str, kind: str) -> dict[str, Any]:
    """Dtypes of what each module gives, losses of six steps of AdamW and dtypes of the gradients, under autocast."""
    net = NETWORKS[name](m.nn)
    random = np.random.default_rng(2)
    with m.no_grad():
        for parameter in net.parameters():
            values = random.standard_normal(tuple(parameter.shape)) * 0.2 + (parameter.ndim == 1)
            parameter.copy_(m.from_numpy(values.astype(np.float32)))
    dtypes: dict[str, str] = {}

    def note(path: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            dtypes[path] = str(output.dtype).rpartition(".")[2]

        return hook

    for path, module in net.named_modules():
        module.register_forward_hook(note(path))
    optimizer = m.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in _batches(name):
        with m.autocast("cpu", getattr(m, kind)):
            output = net(m.from_numpy(x))
            loss = m.nn.functional.cross_entropy(output.flatten(0, -2), m.from_numpy(y).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = sorted({str(parameter.grad.dtype).rpartition(".")[2] for parameter in net.parameters()})
    return {"dtypes": dtypes, "losses": losses, "gradients": gradients}


# --- the scaler -------------------------------------------------------------------------------------------------------

_OVERFLOWS = {3: float("inf"), 4: float("nan"), 9: float("-inf")}


def scale(m: Any, device: str = "cpu") -> dict[str, Any]:
    """Twelve steps of SGD under a GradScaler, three of which overflow: scale, parameters and state after each."""
    weight = m.nn.Parameter(m.tensor([1.0, -2.0, 3.0], device=device))
    other = m.nn.Parameter(m.tensor([0.5], device=device))
    optimizer = m.optim.SGD([weight, other], lr=0.125, momentum=0.5)
    scaler = m.amp.GradScaler(device, init_scale=8.0, growth_factor=2.0, backoff_factor=0.25, growth_interval=3)
    scales, values, norms = [], [], []
    for step in range(12):
        optimizer.zero_grad()
        factor = m.tensor([1.0, _OVERFLOWS.get(step, 0.5), 1.0], device=device)
        loss = (weight * factor).sum() * other.sum()
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            if step not in _OVERFLOWS:
                norms.append(m.nn.utils.clip_grad_norm_([weight, other], 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        values.append([*weight.tolist(), *other.tolist()])
    return {"scales": scales, "values": values, "norms": norms, "state": scaler.state_dict()}
