"""Averages of weights. SWALR is compared with PyTorch in test_against_pytorch."""

import numpy as np
import pytest

import engine
from engine import nn, optim
from engine.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)


def model_of(value: float) -> nn.Module:
    model = nn.BatchNorm1d(2)
    nn.init.constant_(model.weight, value)
    model.running_mean.fill_(10 * value)
    return model


@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": get_swa_multi_avg_fn()}], ids=["default", "lists"])
def test_parameters_are_the_mean_and_buffers_the_last(options: dict) -> None:
    averaged = AveragedModel(model_of(0.0), **options)
    for value in (1.0, 2.0, 6.0):
        averaged.update_parameters(model_of(value))
    assert averaged.module.weight.tolist() == [3.0, 3.0]
    assert averaged.module.running_mean.tolist() == [60.0, 60.0]
    assert averaged.n_averaged == 3
    assert averaged.state_dict().keys() >= {"n_averaged", "module.weight"}


def test_buffers_are_averaged_on_request() -> None:
    averaged = AveragedModel(model_of(0.0), use_buffers=True)
    for value in (1.0, 2.0):
        averaged.update_parameters(model_of(value))
    assert averaged.module.running_mean.tolist() == [15.0, 15.0]


@pytest.mark.parametrize(
    "options", [{"avg_fn": get_ema_avg_fn(0.75)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.75)}], ids=["one", "lists"]
)
def test_exponential_average(options: dict) -> None:
    averaged = AveragedModel(model_of(0.0), **options)
    for value in (1.0, 2.0):
        averaged.update_parameters(model_of(value))
    assert averaged.module.weight.tolist() == [1.25, 1.25]


def test_calling_it_calls_the_averaged_module() -> None:
    averaged = AveragedModel(nn.Linear(2, 1)).eval()
    averaged.update_parameters(nn.Linear(2, 1))
    x = engine.ones(3, 2)
    assert engine.equal(averaged(x), averaged.module(x))
    assert not averaged.module.training


def test_update_bn_takes_the_mean_over_all_batches() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=0.3)).eval()
    model[0].running_mean.fill_(99.0)
    batches = [engine.tensor([[0.0], [2.0]]), [engine.tensor([[4.0], [6.0]]), "a label"]]
    update_bn(batches, model)
    np.testing.assert_allclose(model[0].running_mean.numpy(), [3.0])
    np.testing.assert_allclose(model[0].running_var.numpy(), [0.5 * (1.0 + 2.0 + 1.0)])
    assert model[0].momentum == 0.3
    assert not model.training


def test_wrong_arguments() -> None:
    optimizer = optim.SGD(nn.Linear(1, 1).parameters())
    with pytest.raises(ValueError, match=r"anneal_strategy must be one of 'cos' or 'linear', instead got step"):
        SWALR(optimizer, 0.1, anneal_strategy="step")
    with pytest.raises(ValueError, match=r"anneal_epochs must be equal or greater than 0, got -1"):
        SWALR(optimizer, 0.1, anneal_epochs=-1)
    with pytest.raises(ValueError, match=r"Invalid decay value 1.5"):
        get_ema_avg_fn(1.5)
    with pytest.raises(ValueError, match="not both"):
        AveragedModel(nn.Linear(1, 1), avg_fn=get_ema_avg_fn(), multi_avg_fn=get_swa_multi_avg_fn())
