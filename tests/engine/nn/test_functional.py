"""What formulas do not show: randomness, writing in place, one-hot, renormalised tables, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine import nn


@pytest.fixture(autouse=True)
def _seeded() -> None:
    engine.manual_seed(0)


def test_dropout_keeps_the_expectation() -> None:
    x = engine.ones(200, 200).requires_grad_()
    out = F.dropout(x, 0.25)
    values = out.detach().numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert values.mean() == pytest.approx(1.0, abs=0.02)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)


@pytest.mark.parametrize(
    ("layer", "shape", "kept"),
    [
        (nn.Dropout1d, (20, 30, 4), 2),
        (nn.Dropout1d, (300, 4), 1),
        (nn.Dropout2d, (20, 30, 3, 2), 2),
        (nn.Dropout3d, (20, 30, 2, 2, 2), 2),
        (nn.Dropout3d, (300, 2, 2, 2), 1),
        (nn.FeatureAlphaDropout, (20, 30, 4), 2),
    ],
    ids=["1d", "1d unbatched", "2d", "3d", "3d unbatched", "feature alpha"],
)
def test_whole_channels_are_dropped(layer: Any, shape: tuple[int, ...], kept: int) -> None:
    out = layer(0.4)(engine.ones(shape)).numpy().reshape(int(np.prod(shape[:kept])), -1)
    assert (out == out[:, :1]).all()
    smallest = out.min()
    assert (out[:, 0] == smallest).mean() == pytest.approx(0.4, abs=0.08)


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    values = nn.AlphaDropout(0.3)(engine.randn(400, 400)).numpy()
    assert values.mean() == pytest.approx(0.0, abs=0.02)
    assert values.std() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    "layer", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_dropout_at_its_ends(layer: Any) -> None:
    x = engine.randn(2, 3, 4) if layer is not nn.Dropout3d else engine.randn(2, 3, 2, 2, 2)
    assert layer(0.5).eval()(x) is x
    assert layer(0.0)(x) is x
    assert float(layer(1.0)(x).abs().sum()) == 0.0
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
        layer(1.5)


def test_dropout_in_place() -> None:
    x = engine.ones(50, 50)
    assert F.dropout(x, 0.5, inplace=True) is x
    assert 0 < float(x.eq(0).to(engine.float32).mean()) < 1
    with pytest.raises(RuntimeError, match="Expected 2D or 3D input"):
        F.dropout1d(engine.ones(2, 2, 2, 2))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("relu_", ()),
        ("hardtanh_", (-0.5, 0.25)),
        ("threshold_", (0.1, 7.0)),
        ("elu_", (0.3,)),
        ("selu_", ()),
        ("celu_", (0.3,)),
        ("leaky_relu_", (0.2,)),
        ("leaky_relu_", (0.0,)),
        ("leaky_relu_", (-0.2,)),
        ("rrelu_", (0.1, 0.3)),
        ("relu6", ()),
        ("silu", ()),
        ("mish", ()),
        ("hardsigmoid", ()),
        ("hardswish", ()),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "laid_out", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2]], ids=["rows", "columns", "gaps"]
)
def test_functions_in_place_write_and_differentiate(
    name: str, arguments: tuple[float, ...], dtype: str, laid_out: Callable[..., engine.Tensor]
) -> None:
    values = engine.randn(6, 8) * 3
    values[0] = engine.tensor([np.nan, np.inf, -np.inf, 0.0, -0.0, 6.0, 3.0, -3.0])
    values = values.to(getattr(engine, dtype))
    start, other = values.clone().requires_grad_(), values.clone().requires_grad_()
    written = laid_out(start * 2)
    if name.endswith("_"):
        result = getattr(F, name)(written, *arguments)
    else:
        result = getattr(F, name)(written, *arguments, inplace=True)
    assert result is written
    plain = getattr(F, name.removesuffix("_"))(laid_out(other * 2), *arguments)
    engine.testing.assert_close(result, plain, rtol=0, atol=0, equal_nan=True)
    (result * 3).sum().backward()
    (plain * 3).sum().backward()
    engine.testing.assert_close(start.grad, other.grad, rtol=0, atol=0, equal_nan=True)


def test_activations_in_place_of_whole_and_complex_numbers() -> None:
    whole = engine.tensor([-3, 0, 9])
    assert F.relu6(whole, inplace=True) is whole
    assert whole.tolist() == [0, 0, 6]
    values = engine.tensor([1 + 2j, -3j])
    expected = F.silu(values)
    assert F.silu(values, inplace=True) is values
    engine.testing.assert_close(values, expected)


@pytest.mark.parametrize("function", [F.leaky_relu, F.hardtanh, F.relu6, F.elu, F.silu, F.hardswish])
def test_results_may_be_written_into(function: Callable[..., engine.Tensor]) -> None:
    """As in PyTorch: what the derivative looks at is the input."""
    start, other = (engine.linspace(-8, 8, 33).requires_grad_() for _ in range(2))
    written = function(start * 1)
    written += 10
    written.sum().backward()
    function(other * 1).sum().backward()
    engine.testing.assert_close(start.grad, other.grad, rtol=0, atol=0)


def test_rrelu_draws_its_slopes() -> None:
    slopes = F.rrelu(-engine.ones(3000), 0.2, 0.4, training=True).numpy()
    assert -0.4 <= slopes.min() < -0.38
    assert -0.22 < slopes.max() <= -0.2


def test_gumbel_softmax() -> None:
    logits = engine.tensor([[0.0, 1.0, 2.0]]).expand(4000, 3).contiguous().requires_grad_()
    soft = F.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.detach().sum(1).numpy(), 1.0, rtol=1e-5)
    hard = F.gumbel_softmax(logits, hard=True)
    assert set(np.unique(hard.detach().numpy().round(6))) == {0.0, 1.0}
    np.testing.assert_allclose(hard.detach().mean(0).numpy(), F.softmax(logits[0], 0).detach().numpy(), atol=0.03)
    hard[:, 0].sum().backward()
    assert float(logits.grad.abs().sum()) > 0


def test_softmax_guesses_its_axis_as_pytorch_does() -> None:
    x = engine.randn(2, 3, 4)
    np.testing.assert_array_equal(F.softmax(x).numpy(), F.softmax(x, 0).numpy())
    np.testing.assert_array_equal(F.softmax(x[0]).numpy(), F.softmax(x[0], 1).numpy())


def test_one_hot() -> None:
    classes = engine.tensor([[0, 2], [1, 1]])
    assert F.one_hot(classes).tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0]]]
    assert F.one_hot(classes, 5).shape == (2, 2, 5)
    assert F.one_hot(engine.zeros(0, dtype=engine.int64), 3).shape == (0, 3)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        F.one_hot(classes, 2)
    with pytest.raises(RuntimeError, match="non-negative"):
        F.one_hot(classes - 1)
    with pytest.raises(RuntimeError, match="index tensor"):
        F.one_hot(engine.ones(2))
    with pytest.raises(RuntimeError, match="empty tensor"):
        F.one_hot(engine.zeros(0, dtype=engine.int64))


def test_tables_are_renormalised_where_used() -> None:
    table = nn.Embedding(4, 3, max_norm=1.0)
    with engine.no_grad():
        table.weight.fill_(2.0)
    table(engine.tensor([1, 3, 3])).sum().backward()
    lengths = np.linalg.norm(table.weight.detach().numpy(), axis=1)
    np.testing.assert_allclose(lengths, [12**0.5, 1.0, 12**0.5, 1.0], rtol=1e-5)


def test_pretrained_tables() -> None:
    values = engine.arange(6.0).view(3, 2)
    table = nn.Embedding.from_pretrained(values)
    assert not table.weight.requires_grad
    assert table(engine.tensor([2])).tolist() == [[4.0, 5.0]]
    bag = nn.EmbeddingBag.from_pretrained(values, freeze=False, mode="sum")
    assert bag.weight.requires_grad
    assert bag(engine.tensor([[0, 1]])).tolist() == [[2.0, 4.0]]


def test_bags_with_weights_and_a_last_offset() -> None:
    table = engine.arange(6.0).view(3, 2)
    indices, offsets = engine.tensor([0, 1, 2, 2]), engine.tensor([0, 2, 4])
    weights = engine.tensor([1.0, 2.0, 3.0, 4.0])
    out = F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)
    assert out.tolist() == [[4.0, 7.0], [28.0, 35.0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Embedding(3, 2, padding_idx=3), AssertionError, "Padding_idx must be within"),
        (lambda: nn.Embedding(3, 2, _weight=engine.ones(2, 2)), AssertionError, "Shape of weight"),
        (lambda: F.embedding_bag(engine.tensor([0]), engine.ones(3, 2)), ValueError, "offsets has to be"),
        (
            lambda: F.embedding_bag(engine.tensor([[0]]), engine.ones(3, 2), mode="median"),
            ValueError,
            "sum, mean or max",
        ),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "in_channels must be divisible"),
        (lambda: nn.Conv2d(4, 3, 3, groups=2), ValueError, "out_channels must be divisible"),
        (lambda: nn.Conv2d(4, 4, 3, groups=0), ValueError, "groups must be a positive"),
        (lambda: nn.Conv2d(4, 4, 3, padding="equal"), ValueError, "Invalid padding string"),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2), ValueError, "not supported for strided"),
        (lambda: nn.Conv2d(4, 4, 3, padding_mode="mirror"), ValueError, "padding_mode must be one of"),
        (lambda: nn.Conv2d(4, 4, (3, 3, 3)), ValueError, "expected an int or 2 ints"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, padding_mode="circular"), ValueError, 'Only "zeros" padding'),
        (
            lambda: nn.ConvTranspose2d(1, 1, 3, stride=2)(engine.ones(1, 1, 3, 3), output_size=(20, 20)),
            ValueError,
            "valid sizes range from",
        ),
        (lambda: nn.BatchNorm2d(3)(engine.ones(2, 3)), ValueError, r"expected 4D input \(got 2D input\)"),
        (lambda: nn.BatchNorm1d(3)(engine.ones(1, 3)), ValueError, "more than 1 value per channel"),
        (lambda: nn.InstanceNorm2d(3)(engine.ones(2, 3, 1, 1)), ValueError, "more than 1 spatial element"),
        (lambda: nn.InstanceNorm2d(3, affine=True)(engine.ones(2, 4, 2, 2)), ValueError, "to match num_features"),
        (lambda: nn.GroupNorm(2, 3), ValueError, "must be divisible by num_groups"),
        (lambda: nn.Hardtanh(1.0, 0.0), ValueError, "must be greater than min_val"),
        (lambda: nn.Softmax2d()(engine.ones(2, 2)), ValueError, "expected input to be 3D or 4D"),
        (lambda: F.glu(engine.ones(3)), RuntimeError, "must be even"),
        (lambda: F.celu(engine.ones(3), 0.0), RuntimeError, "alpha cannot be 0"),
        (lambda: F.interpolate(engine.ones(1, 1, 4)), ValueError, "either size or scale_factor"),
        (lambda: F.interpolate(engine.ones(1, 1, 4), 2, 2.0), ValueError, "only one of size or scale_factor"),
        (lambda: F.interpolate(engine.ones(1, 1, 4), 2, mode="bilinear"), NotImplementedError, "needs 4D input"),
        (lambda: F.interpolate(engine.ones(1, 1, 4), (2, 2)), ValueError, "same number of spatial dimensions"),
        (
            lambda: F.interpolate(engine.ones(1, 1, 4), 2, align_corners=True),
            ValueError,
            "align_corners option can only be set",
        ),
        (lambda: F.mse_loss(engine.ones(2), engine.ones(2), reduction="average"), ValueError, "average is not a valid"),
        (lambda: F.binary_cross_entropy(engine.ones(2) * 2, engine.ones(2)), RuntimeError, "between 0 and 1"),
        (
            lambda: F.binary_cross_entropy(engine.ones(2), engine.ones(1, 2)),
            ValueError,
            "ensure they have the same size",
        ),
        (lambda: F.gaussian_nll_loss(engine.ones(2), engine.ones(2), -1.0), ValueError, "negative entry"),
        (
            lambda: F.gaussian_nll_loss(engine.ones(2, 3), engine.ones(2, 3), engine.ones(4)),
            ValueError,
            "incorrect size",
        ),
        (lambda: F.huber_loss(engine.ones(2), engine.ones(2), delta=0.0), RuntimeError, "non-positive values"),
        (lambda: nn.TripletMarginLoss(margin=0.0), ValueError, "margin to be greater than 0"),
        (lambda: nn.MultiMarginLoss(p=3), ValueError, "only p == 1 and p == 2"),
        (lambda: nn.MultiheadAttention(5, 2), AssertionError, "divisible by num_heads"),
        (lambda: nn.MultiheadAttention(0, 2), ValueError, "must be greater than 0"),
        (
            lambda: nn.MultiheadAttention(4, 2)(*[engine.ones(3, 2, 4)] * 3, attn_mask=engine.ones(2, 2)),
            RuntimeError,
            "shape of the 2D attn_mask",
        ),
        (
            lambda: nn.MultiheadAttention(4, 2)(engine.ones(3, 4), *[engine.ones(3, 2, 4)] * 2),
            AssertionError,
            "expected `key` and `value` to be 2-D",
        ),
        (
            lambda: nn.MultiheadAttention(4, 2)(*[engine.ones(3, 4)] * 3, is_causal=True),
            RuntimeError,
            "Need attn_mask if specifying the is_causal hint",
        ),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="swoosh"), RuntimeError, "should be relu/gelu"),
        (
            lambda: nn.Transformer(4, 2, 1, 1, 8)(engine.ones(3, 2, 4), engine.ones(3, 1, 4)),
            RuntimeError,
            "batch number of src and tgt",
        ),
        (lambda: nn.LSTM(3, 0), ValueError, "hidden_size must be greater than zero"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ValueError, "proj_size has to be smaller"),
        (lambda: nn.RNN(3, 4, nonlinearity="elu"), ValueError, "Unknown nonlinearity 'elu'"),
        (lambda: nn.GRU(3, 4, bias=1), TypeError, "bias should be of type bool"),
        (lambda: nn.GRU(3, 4, dropout=2.0, num_layers=2), ValueError, "dropout should be a number"),
        (lambda: nn.GRU(3, 4)(engine.ones(2, 2, 5)), RuntimeError, "Expected 3, got 5"),
        (lambda: nn.GRU(3, 4)(engine.ones(2)), ValueError, "Expected input to be 2D or 3D"),
        (lambda: nn.GRU(3, 4)(engine.ones(2, 2, 3), engine.ones(1, 4)), RuntimeError, "hx should also be 3-D"),
        (lambda: nn.GRU(3, 4)(engine.ones(2, 2, 3), engine.ones(1, 3, 4)), RuntimeError, "Expected hidden size"),
        (lambda: nn.GRU(3, 4)((engine.ones(2, 3), engine.ones(2))), TypeError, "expected a Tensor or PackedSequence"),
        (lambda: nn.LSTMCell(3, 4)(engine.ones(2, 2, 3)), ValueError, "Expected input to be 1D or 2D"),
        (lambda: nn.Unflatten("a", (1, 2)), TypeError, "expected dim to be an int"),
        (lambda: nn.MaxUnpool1d(2)(engine.ones(1, 1, 2), engine.zeros(1, 1, 3)), RuntimeError, "shape of indices"),
        (lambda: F.grid_sample(engine.ones(1, 1, 2, 2), engine.ones(1, 1, 1, 2), "cubic"), ValueError, "'bilinear' or"),
        (lambda: F.pixel_shuffle(engine.ones(1, 3, 2, 2), 2), RuntimeError, "divisible by the square"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:Default grid_sample")
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_warnings_of_losses() -> None:
    with pytest.warns(UserWarning, match="Using a target size"):
        F.mse_loss(engine.ones(2, 1), engine.ones(2))
    with pytest.warns(UserWarning, match="'batchmean' divides"):
        F.kl_div(engine.zeros(2), engine.ones(2))
    with pytest.warns(UserWarning, match="dropout option adds dropout"):
        nn.LSTM(2, 2, dropout=0.5)


def test_old_names_of_reductions() -> None:
    x, y = engine.tensor([1.0, 2.0]), engine.tensor([0.0, 0.0])
    assert float(F.mse_loss(x, y, size_average=False)) == 5.0
    assert F.mse_loss(x, y, reduce=False).tolist() == [1.0, 4.0]
    assert nn.L1Loss(size_average=True).reduction == "mean"
    assert float(F.mse_loss(x, y, weight=engine.tensor([1.0, 3.0]))) == 13 / 4


def test_binary_cross_entropy_at_its_ends() -> None:
    x = engine.tensor([0.0, 1.0, 0.0, 1.0]).requires_grad_()
    loss = F.binary_cross_entropy(x, engine.tensor([0.0, 1.0, 1.0, 0.0]), reduction="none")
    assert loss.tolist() == [0.0, 0.0, 100.0, 100.0]
    loss.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1.0, -1.0, -1e12, 1e12], rtol=1e-5)


def test_recurrent_dropout_is_between_layers_and_only_in_training() -> None:
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.9)
    x = engine.randn(5, 2, 3)
    assert not np.array_equal(layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy())


def test_encoder_finds_causal_masks_by_itself() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2)
    x = engine.randn(5, 2, 4)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with_hint, without = encoder(x, mask, is_causal=True), encoder(x, mask, is_causal=False)
    np.testing.assert_allclose(with_hint.detach().numpy(), without.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(encoder(x, mask).detach().numpy(), with_hint.detach().numpy())
    changed = x.clone()
    changed[4] = 0
    np.testing.assert_allclose(encoder(changed, mask).detach().numpy()[:4], with_hint.detach().numpy()[:4], rtol=1e-5)


def test_layers_of_an_encoder_are_copies() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)
    assert encoder.layers[0].linear1.weight is not encoder.layers[1].linear1.weight
    np.testing.assert_array_equal(
        encoder.layers[0].linear1.weight.detach().numpy(), encoder.layers[1].linear1.weight.detach().numpy()
    )


def test_sequences_of_different_lengths() -> None:
    sequences = [engine.ones(2, 3), engine.ones(4, 3) * 2, engine.ones(1, 3) * 3]
    padded = nn.utils.rnn.pad_sequence(sequences, padding_value=-1.0)
    assert padded.shape == (4, 3, 3)
    assert padded[:, 0, 0].tolist() == [1.0, 1.0, -1.0, -1.0]
    left = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_side="left")
    assert left[2, :, 0].tolist() == [0.0, 0.0, 0.0, 3.0]
    back = nn.utils.rnn.unpad_sequence(padded, engine.tensor([2, 4, 1]))
    assert [row.tolist() for row in back] == [row.tolist() for row in sequences]
    with pytest.raises(RuntimeError, match="empty list"):
        nn.utils.rnn.pad_sequence([])
    with pytest.raises(RuntimeError, match="same shape after the first axis"):
        nn.utils.rnn.pad_sequence([engine.ones(2, 3), engine.ones(2, 4)])


def test_plain_tensors_in_a_parameters_place() -> None:
    layer = nn.Linear(2, 1, bias=False)
    weight = layer.weight
    del layer.weight
    layer.weight = weight * 0
    assert float(layer(engine.ones(1, 2))) == 0.0
