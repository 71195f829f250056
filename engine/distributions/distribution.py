"""What all distributions have in common."""

from collections.abc import Sequence
from typing import Any, ClassVar

import engine
from engine.autograd.modes import no_grad
from engine.rules.spec import Size
from engine.tensor import Tensor


def tensors(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and tensors, broadcast against each other."""
    like = next((value for value in values if isinstance(value, Tensor)), None)
    kind = engine.get_default_dtype() if like is None else like.dtype
    made = [value if isinstance(value, Tensor) else engine.tensor(value, dtype=kind) for value in values]
    return engine.broadcast_tensors(*made)


def require(condition: Any, message: str) -> None:
    """Raises ValueError unless the condition holds everywhere."""
    if not bool(condition.all()):
        raise ValueError(message)


class Distribution:
    """A batch of distributions: `batch_shape` of them, each over values of shape `event_shape`.

    Log-probabilities and entropies have the batch shape and are differentiable in the parameters; so are samples of
    `rsample`, where there is one. `validate_args=False` leaves parameters unchecked.
    """

    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False
    batch_shape: Size
    event_shape = Size(())

    def _shape(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape, without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the parameters. Raises: NotImplementedError where there are none."""
        raise NotImplementedError(f"{type(self).__name__} has no reparameterized sample here; use sample()")

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability (density) of `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy in closed form")

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return self.entropy().exp()

    @property
    def mean(self) -> Tensor:
        """Expected value."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """Expected squared distance from the mean."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()

    def __repr__(self) -> str:
        own = {name: value for name, value in self.__dict__.items() if isinstance(value, Tensor) and name[0] != "_"}
        texts = [f"{name}: {value if value.numel() == 1 else value.size()}" for name, value in own.items()]
        return f"{type(self).__name__}({', '.join(texts)})"


def sum_last(value: Tensor, axes: int) -> Tensor:
    """Summed over the last axes."""
    return value.sum(tuple(range(-axes, 0))) if axes else value
