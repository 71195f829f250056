"""Random numbers of a GPU: the generator of Philox words, what is made of them, and where it goes on."""

import math

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine import distributions as D
from engine.kernels.cuda.launch import OPTIONS, _text
from engine.memory import backend
from engine.ops.random import sampling
from engine.ops.random.cuda import fills as kernels
from engine.random import DeviceGenerator, device_generator
from engine.utils.checkpoint import checkpoint
from tests import cuda_device

FLOATS = [engine.float32, engine.float64, engine.float16, engine.bfloat16]
INTEGERS = [engine.int8, engine.int16, engine.int32, engine.int64, engine.uint8, engine.bool]


# --- Philox -----------------------------------------------------------------------------------------------------------


def philox(seed: int, offset: int, index: int) -> list[int]:
    """Philox4x32-10 as its paper states it, on Python's integers."""
    counter = [offset % 2**32, offset >> 32, index % 2**32, index >> 32]
    key = [seed % 2**32, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ key[0], right % 2**32, (left >> 32) ^ counter[3] ^ key[1], left % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


# Random123's known answers (kat_vectors, philox4x32 with 10 rounds): counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
WORDS = """
extern "C" __global__ void words(uint64 seed, uint64 offset, uint64 index, uint32* out) {
    Words drawn = philox(seed, offset, index);
    for (int i = 0; i < 4; i++) out[i] = drawn.word[i];
}
"""


@pytest.mark.parametrize("case", KNOWN)
def test_known_answers(cuda, case) -> None:
    counter, key, expected = ([int(word, 16) for word in text.split()] for text in case)
    numbers = [low | high << 32 for low, high in (key, counter[:2], counter[2:])]
    assert philox(*numbers) == expected
    cupy = backend.require_cupy()
    code = "\n".join([_text("common.cuh"), _text("philox.cuh"), WORDS])
    out = cupy.zeros(4, np.uint32)
    cupy.RawModule(code=code, options=OPTIONS).get_function("words")((1,), (1,), (*map(np.uint64, numbers), out))
    assert out.get().tolist() == expected


@pytest.mark.parametrize("seed", [0, 2**63 + 12345])
def test_words_depend_on_seed_offset_and_place(cuda, seed) -> None:
    generator = DeviceGenerator(cuda).manual_seed(seed)
    generator.set_offset(4 * (2**32 - 1))  # the second call carries into the upper word
    found = engine.empty(2, 7, dtype=engine.int64, device=cuda).random_(-(2**63), 2**63, generator=generator)
    expected = []
    for group in range(4):
        words = [word for call in range(2) for word in philox(seed, 2**32 - 1 + call, group)]
        expected += [(words[2 * i] << 32 | words[2 * i + 1]) - 2**63 for i in range(4)]
    assert found.cpu().flatten().tolist() == expected[:14]
    assert generator.get_offset() == 4 * (2**32 + 1)


# --- distributions ----------------------------------------------------------------------------------------------------


def other_gpu() -> engine.device:
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return engine.device("cuda:1")


def moments(tensor: engine.Tensor) -> tuple[float, float, float, float]:
    values = tensor.cpu().double().numpy().ravel()
    return values.min(), values.max(), values.mean(), values.std()


@pytest.mark.parametrize("dtype", FLOATS)
def test_continuous_distributions(cuda, dtype) -> None:
    engine.manual_seed(1)
    made = engine.empty(101, 203, dtype=dtype, device=cuda)
    low, high, mean, deviation = moments(made.uniform_(2, 3))
    assert low >= 2
    assert high < 3
    assert mean == pytest.approx(2.5, abs=0.01)
    assert deviation == pytest.approx(1 / math.sqrt(12), abs=0.01)
    low, high, mean, deviation = moments(made.normal_(1, 2))
    assert -9 < low < -5
    assert 7 < high < 11
    assert mean == pytest.approx(1, abs=0.05)
    assert deviation == pytest.approx(2, abs=0.05)
    low, high, mean, deviation = moments(made.exponential_(2.0))
    assert low > 0
    assert mean == pytest.approx(0.5, abs=0.02)
    assert deviation == pytest.approx(0.5, abs=0.02)


def test_normal_values_are_those_of_box_and_muller(cuda) -> None:
    generator = DeviceGenerator(cuda).manual_seed(3)
    found = engine.randn(4, device=cuda, generator=generator).cpu().numpy()
    parts = [(word + 0.5) / 2**32 for word in philox(3, 0, 0)]
    expected = []
    for radius, angle in (parts[:2], parts[2:]):
        length = math.sqrt(-2 * math.log(radius))
        expected += [length * math.cos(2 * math.pi * angle), length * math.sin(2 * math.pi * angle)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_neighbours_of_one_draw_are_independent(cuda) -> None:
    values = engine.randn(5000, 4, device=cuda).cpu().numpy()
    correlation = np.corrcoef(values.T) - np.eye(4)
    assert abs(correlation).max() < 0.05


@pytest.mark.parametrize("dtype", [*INTEGERS, engine.float32, engine.bfloat16])
def test_integers(cuda, dtype) -> None:
    engine.manual_seed(2)
    high = 2 if dtype is engine.bool else 7
    values = engine.randint(0, high, (10_000,), dtype=dtype, device=cuda).cpu().long()
    counts = np.bincount(values.numpy(), minlength=high)
    assert len(counts) == high
    assert abs(counts - 10_000 / high).max() < 5 * math.sqrt(10_000 / high)


def test_integers_of_all_sizes(cuda) -> None:
    wide = engine.empty(1000, dtype=engine.int64, device=cuda).random_(-(2**63), 2**63).cpu()
    assert wide.min().item() < -(2**62)
    assert wide.max().item() > 2**62
    assert engine.empty(1000, dtype=engine.int8, device=cuda).random_().cpu().min().item() >= 0
    assert engine.empty(1000, dtype=engine.uint8, device=cuda).random_().cpu().long().max().item() > 200
    with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to', but got from=3 >= to=3"):
        engine.empty(2, device=cuda).random_(3, 3)


@pytest.mark.parametrize("dtype", [engine.float32, engine.bool, engine.int64])
def test_bernoulli(cuda, dtype) -> None:
    made = engine.empty(20_000, dtype=dtype, device=cuda)
    assert made.bernoulli_(0.25).cpu().double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert made.bernoulli_(0.0).cpu().double().sum().item() == 0
    assert made.bernoulli_(1.0).cpu().double().sum().item() == 20_000
    with pytest.raises(RuntimeError, match=r"bernoulli_ expects p to be in \[0, 1\], but got p=1.5"):
        made.bernoulli_(1.5)


def test_bernoulli_of_tensors(cuda) -> None:
    chances = engine.tensor([0.0, 0.5, 1.0], device=cuda)
    drawn = engine.bernoulli(chances.expand(4000, 3))
    np.testing.assert_allclose(drawn.cpu().mean(0).numpy(), [0, 0.5, 1], atol=0.05)
    drawn = engine.empty(4000, 3, device=cuda).bernoulli_(chances.cpu())
    np.testing.assert_allclose(drawn.cpu().mean(0).numpy(), [0, 0.5, 1], atol=0.05)


def test_permutations(cuda) -> None:
    found = engine.randperm(100, device=cuda)
    assert found.dtype is engine.int64
    assert sorted(found.tolist()) == list(range(100)) != found.tolist()
    assert engine.randperm(0, device=cuda).tolist() == []
    assert engine.randperm(5, device=cuda, dtype=engine.int32).dtype is engine.int32


def test_multinomial(cuda) -> None:
    weights = engine.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]], device=cuda)
    found = engine.multinomial(weights, 4000, replacement=True).cpu()
    assert np.bincount(found[0].numpy(), minlength=3) / 4000 == pytest.approx([0, 0.25, 0.75], abs=0.03)
    assert set(found[1].tolist()) == {0}
    firsts = [engine.multinomial(weights[0], 2).tolist() for _ in range(400)]
    assert all(sorted(pair) == [1, 2] for pair in firsts)
    assert sum(pair[0] == 2 for pair in firsts) / 400 == pytest.approx(0.75, abs=0.08)


def test_complex_numbers_share_the_variance(cuda) -> None:
    values = engine.randn(20_000, dtype=engine.complex64, device=cuda).cpu().numpy()
    assert values.real.var() == pytest.approx(0.5, abs=0.02)
    assert values.imag.var() == pytest.approx(0.5, abs=0.02)


def test_the_older_distributions(cuda) -> None:
    made = engine.empty(10_000, device=cuda)
    assert made.geometric_(0.25).cpu().mean().item() == pytest.approx(4, abs=0.3)
    assert made.log_normal_(0, 0.25).cpu().log().mean().item() == pytest.approx(0, abs=0.02)


GAMMAS = [0.0, 0.05, 0.7, 1.0, 2.5, 40.0]
POISSONS = [0.0, 0.3, 4.0, 9.9, 10.0, 55.0, 4000.0]
BINOMIALS = [(0, 0.3), (7, 0.0), (7, 1.0), (12, 0.3), (12, 0.9), (500, 0.004), (1000, 0.35), (1000, 0.8)]


def columns(drawn: engine.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values = drawn.cpu().double().numpy()
    return values.mean(0), values.var(0)


def test_gamma_poisson_and_binomial(cuda) -> None:
    engine.manual_seed(8)
    count = 20_000

    def close(found: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
        assert (abs(found - expected) <= 0.06 * scale).all(), (found, expected)

    alpha = np.array(GAMMAS)
    drawn = sampling.standard_gamma(engine.tensor(GAMMAS, device=cuda), (count, len(GAMMAS)))
    mean, variance = columns(drawn)
    close(mean, alpha, np.sqrt(alpha))
    close(variance, alpha, 5 * alpha)
    rate = np.array(POISSONS)
    mean, variance = columns(engine.poisson(engine.tensor(POISSONS, device=cuda).expand(count, -1)))
    close(mean, rate, np.sqrt(rate))
    close(variance, rate, 2 * rate)
    trials, chance = np.array(BINOMIALS).T
    each = [engine.tensor(values, device=cuda).expand(count, -1) for values in (trials, chance)]
    drawn = engine.binomial(*each)
    mean, variance = columns(drawn)
    expected = trials * chance * (1 - chance)
    close(mean, trials * chance, np.sqrt(expected))
    close(variance, expected, 2 * expected)
    assert (drawn.cpu().numpy() <= trials).all()


def test_small_counts_have_their_probabilities(cuda) -> None:
    """Both methods of each, from their inside out."""
    engine.manual_seed(9)
    count = 40_000
    for rate in (2.0, 12.0):
        drawn = engine.poisson(engine.full((count,), rate, device=cuda)).cpu().long().numpy()
        expected = [math.exp(-rate) * rate**k / math.factorial(k) for k in range(25)]
        np.testing.assert_allclose(np.bincount(drawn, minlength=25)[:25] / count, expected, atol=0.008)
    for trials, chance in ((6, 0.4), (40, 0.6)):
        both = [engine.full((count,), value, device=cuda) for value in (float(trials), chance)]
        drawn = engine.binomial(*both).cpu().long().numpy()
        expected = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
        np.testing.assert_allclose(np.bincount(drawn, minlength=trials + 1) / count, expected, atol=0.008)


def test_parameters_without_a_meaning_give_nan(cuda) -> None:
    bad = engine.tensor([-1.0, math.nan], device=cuda)
    assert engine.poisson(bad).isnan().all().item()
    assert engine.binomial(bad, bad).isnan().all().item()
    assert sampling.standard_gamma(bad, (2,)).isnan().all().item()


def test_an_infinite_concentration_ends(cuda) -> None:
    assert sampling.standard_gamma(engine.tensor([math.inf], device=cuda), (1,)).item() == math.inf


def test_distributions_on_a_gpu(cuda) -> None:
    one = engine.ones(4, device=cuda)
    engine.manual_seed(1)
    with cuda_device.counters() as count:
        kinds = [D.Gamma(one, one, False), D.Beta(one, one, False), D.Poisson(one, False), D.Normal(one, one, False)]
        drawn = [kind.sample((3,)) for kind in kinds]
    assert count.synchronizations == count.pageable == 0
    assert all(each.is_cuda and each.shape == (3, 4) for each in drawn)


# --- where values go --------------------------------------------------------------------------------------------------


def seeded(cuda) -> DeviceGenerator:
    return DeviceGenerator(cuda).manual_seed(7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layouts_do_not_change_values(cuda, dtype) -> None:
    expected = engine.empty(3, 5, 7, 2, dtype=dtype, device=cuda).normal_(generator=seeded(cuda)).cpu().tolist()
    for order in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)):
        memory = engine.zeros([(3, 5, 7, 2)[axis] for axis in order], dtype=dtype, device=cuda)
        view = memory.permute([order.index(axis) for axis in range(4)])
        assert view.normal_(generator=seeded(cuda)).cpu().tolist() == expected
    memory = engine.zeros(6, 5, 14, 2, dtype=dtype, device=cuda)
    memory[::2, :, 1::2].normal_(generator=seeded(cuda))
    assert memory[::2, :, 1::2].cpu().tolist() == expected
    assert memory[1::2].cpu().abs().sum().item() == memory[:, :, ::2].cpu().abs().sum().item() == 0


def test_seven_axes_that_do_not_merge(cuda) -> None:
    expected = engine.empty((2,) * 7, device=cuda).uniform_(generator=seeded(cuda)).cpu().tolist()
    view = engine.zeros((3,) * 7, device=cuda)[(slice(0, 2),) * 7]
    assert view.uniform_(generator=seeded(cuda)).cpu().tolist() == expected


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1023])
def test_any_number_of_elements_anywhere(cuda, count) -> None:
    """Also where memory is not aligned for accesses of four."""
    expected = engine.empty(count, device=cuda).uniform_(generator=seeded(cuda)).cpu().tolist()
    memory = engine.zeros(count + 2, device=cuda)
    assert memory[1 : count + 1].uniform_(generator=seeded(cuda)).cpu().tolist() == expected
    assert memory[0].item() == memory[count + 1].item() == 0


def test_every_access_is_in_bounds_and_ordered(cuda) -> None:
    for dtype in (engine.float32, engine.float64, engine.bfloat16, engine.bool):
        memory = engine.zeros(4, 3, 5, dtype=dtype, device=cuda)
        with cuda_device.checked(seed=5):
            memory[:, 1:].bernoulli_(0.5)
            memory.transpose(0, 2).bernoulli_(0.5)


def test_gradients_of_what_was_there_end(cuda) -> None:
    x = engine.ones(3, device=cuda, requires_grad=True)
    y = x * 2
    y.normal_()
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="leaf"):
        x.uniform_()


def test_nothing_waits_or_comes_from_the_host(cuda) -> None:
    engine.rand(4, device=cuda)
    with cuda_device.counters() as count:
        x = engine.randn(64, 32, device=cuda)
        engine.rand_like(x)
        engine.randint(0, 10, (32,), device=cuda)
        engine.randperm(32, device=cuda)
        engine.bernoulli(x.abs().clamp(max=1))
        F.dropout(x, 0.5)
        F.dropout2d(x[None], 0.5)
        engine.multinomial(x.abs(), 3)
    assert count.synchronizations == count.pageable == count.pinned == 0


def test_dropout(cuda) -> None:
    x = engine.ones(200, 100, device=cuda, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    kept = (y.cpu() != 0).float()
    assert kept.mean().item() == pytest.approx(0.75, abs=0.02)
    np.testing.assert_allclose(y.detach().cpu().numpy(), kept.numpy() / 0.75, rtol=1e-6)
    assert x.grad.cpu().tolist() == y.detach().cpu().tolist()


# --- generators -------------------------------------------------------------------------------------------------------


def test_one_seed_for_all_devices(cuda) -> None:
    found, other = [], other_gpu()
    for _ in range(2):
        engine.manual_seed(11)
        found.append([engine.rand(3).tolist(), *(engine.rand(3, device=each).tolist() for each in (cuda, other))])
    assert found[0] == found[1]
    assert found[0][1] == found[0][2]  # seeded alike, as in PyTorch
    assert engine.rand(3, device=cuda).tolist() != found[0][1]


def test_a_generator_first_used_after_seeding(cuda) -> None:
    engine.manual_seed(5)
    expected = engine.rand(3, device=cuda).tolist()
    engine.random._device_generators.pop(0)
    engine.manual_seed(5)
    assert engine.rand(3, device=cuda).tolist() == expected


def test_states_are_saved_and_restored(cuda) -> None:
    engine.manual_seed(2**64 - 3)
    engine.rand(5, device=cuda)
    state = engine.cuda.get_rng_state()
    assert state.dtype is engine.uint8
    assert state.device.type == "cpu"
    assert np.frombuffer(state.numpy().tobytes(), np.uint64).tolist() == [2**64 - 3, 4]
    expected = engine.randn(5, device=cuda).tolist()
    engine.cuda.set_rng_state(state)
    assert engine.randn(5, device=cuda).tolist() == expected
    states = engine.cuda.get_rng_state_all()
    assert len(states) == engine.cuda.device_count()
    expected = engine.randn(5, device=cuda).tolist()
    engine.cuda.set_rng_state_all(states)
    assert engine.randn(5, device=cuda).tolist() == expected
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        engine.cuda.set_rng_state(engine.zeros(3, dtype=engine.uint8))
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        device_generator(0).set_offset(2)


def test_everything_on_a_gpu_that_is_not_the_one_in_use(cuda) -> None:
    other = other_gpu()
    x = engine.rand(6, 5, device=other)
    made = [engine.randn(3, device=other), engine.randint(0, 5, (4,), device=other), engine.randperm(5, device=other)]
    made += [x.clone().bernoulli_(x), engine.bernoulli(x), engine.multinomial(x, 2), engine.multinomial(x, 2, True)]
    made += [F.dropout(x, 0.5), engine.poisson(x), x.clone().exponential_(), engine.normal(x, x)]
    assert all(each.device is other for each in made)
    assert engine.cuda.current_device() == 0
    assert device_generator(1).get_offset() > 0 == engine.Generator(cuda).get_offset()


def test_functions_of_engine_cuda(cuda) -> None:
    engine.cuda.manual_seed(4)
    assert engine.cuda.initial_seed() == 4
    first = engine.rand(2, device=cuda).tolist()
    engine.cuda.manual_seed_all(4)
    assert engine.rand(2, device=cuda).tolist() == first
    engine.cuda.seed()
    assert engine.cuda.initial_seed() != 4
    engine.cuda.seed_all()
    generators = engine.cuda.default_generators
    assert len(generators) == engine.cuda.device_count()
    assert generators[0].initial_seed() == generators[-1].initial_seed() == engine.cuda.initial_seed()
    with pytest.raises(IndexError):
        generators[len(generators)]


def test_own_generators(cuda) -> None:
    generator = engine.Generator(device=cuda).manual_seed(3)
    before = engine.cuda.get_rng_state().tolist()
    first = engine.rand(3, device=cuda, generator=generator).tolist()
    assert engine.cuda.get_rng_state().tolist() == before
    assert generator.device is cuda
    assert engine.rand(3, device=cuda, generator=generator).tolist() != first
    generator.manual_seed(3)
    assert engine.rand(3, device=cuda, generator=generator).tolist() == first
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        engine.rand(3, device=cuda, generator=engine.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        engine.rand(3, generator=generator)
    other = other_gpu()
    with pytest.raises(RuntimeError, match="Expected a generator of device cuda:1 but found one of cuda:0"):
        engine.rand(3, device=other, generator=generator)


def test_forks(cuda) -> None:
    engine.manual_seed(1)
    expected = [engine.rand(2).tolist(), engine.rand(2, device=cuda).tolist()]
    engine.manual_seed(1)
    with engine.random.fork_rng():
        engine.manual_seed(9)
        engine.rand(2)
        engine.rand(2, device=cuda)
    assert [engine.rand(2).tolist(), engine.rand(2, device=cuda).tolist()] == expected


def test_a_fork_of_some_devices_ends_with_an_exception(cuda) -> None:
    other = other_gpu()
    engine.manual_seed(1)
    expected = engine.rand(2, device=cuda).tolist()
    engine.manual_seed(1)

    def draw() -> None:
        with engine.random.fork_rng(devices=[cuda]):
            engine.rand(2, device=cuda)
            engine.rand(2, device=other)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        draw()
    assert engine.rand(2, device=cuda).tolist() == expected != engine.rand(2, device=other).tolist()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_again(cuda, reentrant) -> None:
    x = engine.ones(50, device=cuda, requires_grad=True)
    y = checkpoint(lambda x: F.dropout(x * 1, 0.5) * 3, x, use_reentrant=reentrant)
    engine.rand(3, device=cuda)
    before = engine.cuda.get_rng_state().tolist()
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    assert engine.cuda.get_rng_state().tolist() == before


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def test_replays_go_on_from_where_the_generator_is(cuda) -> None:
    """What a replay does: the launches of the capture again, with seed and offset from device memory."""
    generator = DeviceGenerator(cuda).manual_seed(6)
    expected = [engine.rand(2, 5, device=cuda, generator=generator).tolist() for _ in range(4)]
    generator.manual_seed(6)
    draws = []
    generator.begin_capture()
    for _ in range(2):
        draws.append(generator.draw(1))
    captured, calls = generator.end_capture()
    assert calls == 2
    assert generator.get_offset() == 0
    memory = engine.empty(2, 5, device=cuda)
    found = []
    for _ in range(2):
        kernels.set_captured(generator, captured, calls)
        for arguments in draws:
            kernels.uniform(memory._array, lambda calls, arguments=arguments: arguments, 0.0, 1.0)
            found.append(memory.tolist())
    assert found == expected
    assert generator.get_offset() == 16


def test_a_generator_in_a_capture_is_left_alone(cuda) -> None:
    generator = DeviceGenerator(cuda)
    generator.begin_capture()
    for call in (lambda: generator.manual_seed(1), lambda: generator.set_offset(4), generator.begin_capture):
        with pytest.raises(RuntimeError, match="is in use by a CUDA graph that is being captured"):
            call()
    place = generator.place()
    first = generator.draw(2)
    generator.return_to(place)
    assert generator.draw(2) == first
    generator.end_capture()
    with pytest.raises(RuntimeError, match="in that capture only"):
        generator.return_to(place)
