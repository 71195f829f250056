"""Layers that take the size of their input from the first input they see."""

from typing import Any, ClassVar, NoReturn

import engine
from engine.nn import conv, norm
from engine.nn.linear import Linear
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet. `materialize` makes it an ordinary one.

    Raises: RuntimeError where the shape is asked for.
    """

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(engine.empty(0, device=device, dtype=dtype), requires_grad)

    @property
    def shape(self) -> NoReturn:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
            "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. Call `forward` "
            "to initialize the parameters before accessing their attributes."
        )

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Becomes an ordinary, uninitialised parameter of this shape."""
        made = engine.empty(shape, device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = Parameter  # type: ignore[assignment]
        with engine.no_grad():
            self.data = made

    def __deepcopy__(self, memo: dict[int, Any]) -> "UninitializedParameter":
        return memo.setdefault(id(self), type(self)(self.requires_grad, self.device, self.dtype))

    def __repr__(self) -> str:
        return "<UninitializedParameter>"


class LazyModuleMixin(Module):
    """What all lazy layers share: before the first call, sizes and parameters are made for its input, and the layer
    becomes one of class `cls_to_become`.
    """

    cls_to_become: ClassVar[type[Module] | None] = None

    def _wait(self) -> None:
        """Called at the end of construction."""
        self.register_forward_pre_hook(_infer_parameters)
        self.register_load_state_dict_pre_hook(_materialize_for)

    def has_uninitialized_params(self) -> bool:
        """Whether shapes are still to be found."""
        return any(isinstance(each, UninitializedParameter) for each in self._parameters.values())

    def initialize_parameters(self, input: Tensor) -> None:
        """Materialises and initialises the parameters for an input; every subclass defines it."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def _materialize_for(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Takes shapes from a state dict that is about to be loaded."""
        for name, own in self._parameters.items():
            given = state_dict.get(prefix + name)
            if isinstance(own, UninitializedParameter) and given is not None:
                own.materialize(given.shape)


# Hooks of a lazy layer; functions, so that they serve its copies as well.


def _infer_parameters(module: Any, args: tuple[Any, ...]) -> None:
    module.initialize_parameters(*args)
    if module.has_uninitialized_params():
        raise RuntimeError(f"module {module._get_name()} has not been fully initialized")
    for hooks in (module._forward_pre_hooks, module._load_state_dict_pre_hooks):
        for key in [key for key, hook in hooks.items() if hook in (_infer_parameters, _materialize_for)]:
            del hooks[key]
    if module.cls_to_become is not None:
        module.__class__ = module.cls_to_become


def _materialize_for(module: Any, *args: Any) -> None:
    module._materialize_for(*args)


class LazyLinear(LazyModuleMixin, Linear):
    """`Linear` whose `in_features` is the last size of the first input."""

    cls_to_become = Linear

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)
        self._wait()

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_features != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        self.in_features = input.shape[-1]
        if self.has_uninitialized_params():
            assert isinstance(self.weight, UninitializedParameter)
            self.weight.materialize((self.out_features, self.in_features))
            if self.bias is not None:
                self.bias.materialize((self.out_features,))
            self.reset_parameters()


class _LazyConvolution(LazyModuleMixin, conv._Convolution):
    """A convolution whose `in_channels` is that of the first input."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Any,
        *args: Any,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        if len(args) > 4:  # stride, padding, dilation or output_padding, groups, bias, ...
            bias, args = args[4], (*args[:4], False, *args[5:])
        else:
            options["bias"] = False
        super().__init__(0, 0, kernel_size, *args, **options)
        self.out_channels = out_channels
        if out_channels % self.groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)
        self._wait()

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_channels != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor, *args: Any) -> None:
        if input.dim() not in (self.dims + 1, self.dims + 2):
            raise RuntimeError(
                f"Expected {self.dims + 1}D (unbatched) or {self.dims + 2}D (batched) input to {self._get_name()}, but "
                f"got input of size: {list(input.shape)}"
            )
        self.in_channels = input.shape[-self.dims - 1]
        if self.in_channels % self.groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if not self.has_uninitialized_params():
            return
        sizes = (self.out_channels, self.in_channels // self.groups)
        if self.transposed:
            sizes = (self.in_channels, self.out_channels // self.groups)
        assert isinstance(self.weight, UninitializedParameter)
        self.weight.materialize((*sizes, *self.kernel_size))
        if self.bias is not None:
            self.bias.materialize((self.out_channels,))
        self.reset_parameters()


class LazyConv1d(_LazyConvolution, conv.Conv1d):
    """`Conv1d` for as many channels as the first input has."""

    cls_to_become = conv.Conv1d


class LazyConv2d(_LazyConvolution, conv.Conv2d):
    """`Conv2d` for as many channels as the first input has."""

    cls_to_become = conv.Conv2d


class LazyConv3d(_LazyConvolution, conv.Conv3d):
    """`Conv3d` for as many channels as the first input has."""

    cls_to_become = conv.Conv3d


class LazyConvTranspose1d(_LazyConvolution, conv.ConvTranspose1d):
    """`ConvTranspose1d` for as many channels as the first input has."""

    cls_to_become = conv.ConvTranspose1d


class LazyConvTranspose2d(_LazyConvolution, conv.ConvTranspose2d):
    """`ConvTranspose2d` for as many channels as the first input has."""

    cls_to_become = conv.ConvTranspose2d


class LazyConvTranspose3d(_LazyConvolution, conv.ConvTranspose3d):
    """`ConvTranspose3d` for as many channels as the first input has."""

    cls_to_become = conv.ConvTranspose3d


class _LazyNorm(LazyModuleMixin, norm._RunningNorm):
    """A batch or instance norm whose `num_features` is the number of channels of the first input."""

    instance: ClassVar[bool] = False

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool | None = None,
        track_running_stats: bool | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        affine = not self.instance if affine is None else affine
        tracked = not self.instance if track_running_stats is None else track_running_stats
        super().__init__(0, eps, momentum, False, False)  # type: ignore[call-arg] # of the class after this
        self.affine, self.track_running_stats = affine, tracked
        self._factory = {"device": device, "dtype": dtype}
        if affine:
            self.weight = UninitializedParameter(device=device, dtype=dtype)
            self.bias = UninitializedParameter(device=device, dtype=dtype)
        self._wait()

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.num_features != 0:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        if not self.num_features:
            self._size(input.shape[1 if input.dim() >= min(self.allowed_dims) + self.instance else 0])
            self.reset_parameters()

    def _materialize_for(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        given = state_dict.get(prefix + ("weight" if self.affine else "running_mean"))
        if given is not None and not self.num_features:
            self._size(given.shape[0])

    def _size(self, num_features: int) -> None:
        self.num_features = num_features
        for own in self._parameters.values():
            if isinstance(own, UninitializedParameter):
                own.materialize((num_features,))
        if self.track_running_stats:
            self.running_mean = engine.zeros(num_features, **self._factory)
            self.running_var = engine.ones(num_features, **self._factory)
            self.num_batches_tracked = engine.tensor(0, device=self._factory["device"])


class LazyBatchNorm1d(_LazyNorm, norm.BatchNorm1d):
    """`BatchNorm1d` for as many channels as the first input has."""

    cls_to_become = norm.BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, norm.BatchNorm2d):
    """`BatchNorm2d` for as many channels as the first input has."""

    cls_to_become = norm.BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, norm.BatchNorm3d):
    """`BatchNorm3d` for as many channels as the first input has."""

    cls_to_become = norm.BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, norm.InstanceNorm1d):
    """`InstanceNorm1d` for as many channels as the first input has."""

    cls_to_become = norm.InstanceNorm1d
    instance = True


class LazyInstanceNorm2d(_LazyNorm, norm.InstanceNorm2d):
    """`InstanceNorm2d` for as many channels as the first input has."""

    cls_to_become = norm.InstanceNorm2d
    instance = True


class LazyInstanceNorm3d(_LazyNorm, norm.InstanceNorm3d):
    """`InstanceNorm3d` for as many channels as the first input has."""

    cls_to_become = norm.InstanceNorm3d
    instance = True
