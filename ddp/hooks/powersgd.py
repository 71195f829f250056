"""PowerSGD: gradients travel as products of two thin matrices, and what that loses is added to the next ones.

A gradient M of shape (n, m) is sent as P (n, r) and Q (m, r): P = mean of M Q over the ranks, made orthonormal;
Q = mean of Mᵀ P; all ranks then take P Qᵀ for the mean. Source: Vogels, Karimireddy and Jaggi (2019), PowerSGD:
Practical Low-Rank Gradient Compression, algorithms 1 and 2; names of torch.distributed.algorithms.ddp_comm_hooks
.powerSGD_hook.
"""

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import engine
from ddp.execution.futures import Future
from ddp.gradients.grad_bucket import GradBucket
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from engine.memory.backend import Array, array_module, spec_of_array
from engine.tensor import array_of

_logger = logging.getLogger(__name__)


class PowerSGDState:
    """What PowerSGD remembers from one step to the next.

    Args:
        process_group: of the wrapped module; default all ranks.
        matrix_approximation_rank: r, the number of columns of P and Q.
        start_powerSGD_iter: as many steps are averaged exactly first, while gradients change most.
        min_compression_rate: only what shrinks by more than this factor is compressed, the rest travels exactly.
        use_error_feedback: add what was lost to the next gradient of this rank.
        warm_start: begin with the last Q instead of a random one.
        orthogonalization_epsilon: added to the norm of a column (r <= 2) before it divides.
        random_seed: of the random Q; alike on every rank.
        compression_stats_logging_frequency: steps between two lines in the log.
        batch_tensors_with_same_shape: no effect here, the numbers are the same.

    Raises ValueError when error feedback or warm start come with start_powerSGD_iter <= 1, as in PyTorch.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None = None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, "
                f"got {start_powerSGD_iter}: PowerSGD can only be applied after the first two iterations in DDP."
            )
        if matrix_approximation_rank < 1:
            raise ValueError(f"PowerSGDState: expected a rank of at least 1, got {matrix_approximation_rank}")
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.compression_stats_logging_frequency = max(1, compression_stats_logging_frequency)
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.rng = np.random.default_rng(random_seed)
        self.iter = 0
        self.error_dict: dict[int, list[Array]] = {}  # by bucket: what was lost of each matrix
        self.q_memory_dict: dict[int, list[Array]] = {}  # by bucket: the last Q of each matrix
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0

    def __getstate__(self) -> dict[str, Any]:
        warnings.warn("PowerSGDState: the process group is not saved", stacklevel=2)
        return {name: value for name, value in self.__dict__.items() if name != "process_group"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.process_group = resolve(None)

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Counts the step, with its last bucket."""
        if bucket.is_last():
            self.iter += 1
            if self.iter == self.start_powerSGD_iter:
                _logger.info("PowerSGD starts after %d iterations.", self.iter)
            if self.iter % self.compression_stats_logging_frequency == 0:
                _logger.info("PowerSGD: compression rate %.3g, %d elements before, %d after", *self.compression_stats())

    def compression_stats(self) -> tuple[float, int, int]:
        """Rate (before / after), elements before, elements after, of all steps so far."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after else 0.0), before, after


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients, each compressed as a matrix (first axis, all others)."""
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return bucket.average()
    gradients = [array_of(gradient) for gradient in bucket.gradients()]
    chosen = [_is_worth_it(state, gradient.shape) for gradient in gradients]
    low_rank = [gradient for gradient, yes in zip(gradients, chosen, strict=True) if yes]
    exact = [gradient for gradient, yes in zip(gradients, chosen, strict=True) if not yes]
    rest = _joined(exact, gradients[0].dtype, bucket.buffer().device)
    rest_mean = bucket.mean(rest, "exact")
    approximate = _start(state, bucket, [gradient.reshape(len(gradient), -1) for gradient in low_rank])
    state.total_numel_before_compression += bucket.buffer().numel()
    state.total_numel_after_compression += rest.numel()
    state.maybe_increase_iter(bucket)

    def finish() -> engine.Tensor:
        values = array_of(rest_mean.wait())
        begin = 0
        for gradient in exact:
            gradient[...] = values[begin : begin + gradient.size].reshape(gradient.shape)
            begin += gradient.size
        for gradient, matrix in zip(low_rank, approximate(), strict=True):
            gradient[...] = matrix.reshape(gradient.shape)
        return bucket.buffer()

    return Future(finish)


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of the whole bucket, compressed as one square matrix: faster and less exact."""
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return bucket.average()
    flat = array_of(bucket.buffer())
    side = math.isqrt(max(flat.size - 1, 0)) + 1
    square = array_module(bucket.buffer().device).zeros(side * side, flat.dtype)
    square[: flat.size] = flat
    approximate = _start(state, bucket, [square.reshape(side, side)])
    state.total_numel_before_compression += flat.size
    state.maybe_increase_iter(bucket)

    def finish() -> engine.Tensor:
        flat[...] = approximate()[0].reshape(-1)[: flat.size]
        return bucket.buffer()

    return Future(finish)


def _is_worth_it(state: PowerSGDState, shape: tuple[int, ...]) -> bool:
    if len(shape) < 2 or 0 in shape:
        return False
    n, m = shape[0], math.prod(shape[1:])
    rank = min(n, m, state.matrix_approximation_rank)
    return (n + m) * rank * state.min_compression_rate < n * m


def _start(state: PowerSGDState, bucket: GradBucket, matrices: list[Array]) -> Callable[[], list[Array]]:
    """Sends the P of each matrix (n, m) of this rank on its way.

    Returns a function that gives the low-rank means, the same on every rank, and keeps what they lack of this rank's
    matrices. It is computed in float32, or float64 where gradients are.
    """
    if not matrices:
        return list
    sent = matrices[0].dtype
    wide = sent if sent.itemsize >= 4 else np.dtype(np.float32)
    index, weight, device = bucket.index(), bucket.weight(), bucket.buffer().device
    xp = array_module(device)
    matrices = [matrix.astype(wide) for matrix in matrices]
    errors = state.error_dict.get(index) if state.use_error_feedback else None
    # A rank of weight 0 is not part of the mean, and so owes nothing: what it has lost so far is kept for later.
    if errors is not None and weight:
        for matrix, error in zip(matrices, errors, strict=True):
            matrix += error
    rights = state.q_memory_dict.get(index) if state.warm_start else None
    if rights is None:
        ranks = [min(*matrix.shape, state.matrix_approximation_rank) for matrix in matrices]
        rights = [
            xp.asarray(state.rng.standard_normal((matrix.shape[1], rank)).astype(wide))
            for matrix, rank in zip(matrices, ranks, strict=True)
        ]
    epsilon = state.orthogonalization_epsilon
    rights = [orthogonalize(right, epsilon, xp) for right in rights]
    lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
    state.total_numel_after_compression += sum(each.size for each in (*lefts, *rights))
    left_mean = bucket.mean(_joined(lefts, sent, device), "P")

    def finish() -> list[Array]:
        left = _split(array_of(left_mean.wait()).astype(wide), lefts)
        left = [orthogonalize(each, epsilon, xp) for each in left]
        right = [matrix.T @ each for matrix, each in zip(matrices, left, strict=True)]
        mean = bucket.mean(_joined(right, sent, device), "Q").wait()
        right = _split(array_of(mean).astype(wide), right)
        if state.warm_start:
            state.q_memory_dict[index] = right
        products = [p @ q.T for p, q in zip(left, right, strict=True)]
        if state.use_error_feedback and weight:
            state.error_dict[index] = [matrix - product for matrix, product in zip(matrices, products, strict=True)]
        return products

    return finish


def _joined(arrays: list[Array], dtype: np.dtype, device: engine.device) -> engine.Tensor:
    xp = array_module(device)
    joined = xp.concatenate([xp.zeros(0, dtype), *[array.reshape(-1).astype(dtype) for array in arrays]])
    return engine.Tensor(joined, spec_of_array(joined, device))


def _split(flat: Array, like: list[Array]) -> list[Array]:
    ends = np.cumsum([array.size for array in like]).tolist()
    return [flat[end - array.size : end].reshape(array.shape) for end, array in zip(ends, like, strict=True)]


def orthogonalize(matrix: Array, epsilon: float = 0, xp: Any = np) -> Array:
    """`matrix` (n, r) with orthonormal columns: by Gram and Schmidt for r <= 2, where a column of zeros stays one, else
    by QR. epsilon: added to norms, for r <= 2. xp: numpy or cupy.
    """
    if matrix.shape[1] > 2:
        return xp.linalg.qr(matrix)[0]
    matrix = matrix.copy()
    for column in range(matrix.shape[1]):
        own = matrix[:, column]
        norm = xp.sqrt(own @ own) + matrix.dtype.type(epsilon)
        own /= xp.where(norm != 0, norm, norm.dtype.type(1))  # without asking a GPU
        for other in range(column + 1, matrix.shape[1]):
            matrix[:, other] -= (own @ matrix[:, other]) * own
    return matrix
