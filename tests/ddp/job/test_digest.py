"""`ddp.digest` sees every bit, and nothing of the layout."""

import pytest

import ddp
import engine
import engine.nn as nn
from engine.optim import Adam


def test_it_tells_one_bit_and_not_the_layout() -> None:
    model = nn.Conv2d(2, 3, 3)
    optimizer = Adam(model.parameters())
    model(engine.ones(1, 2, 4, 4)).sum().backward()
    optimizer.step()
    before = ddp.digest(model, optimizer)
    assert len(before) == 64
    assert ddp.digest(model.to(memory_format=engine.channels_last), optimizer) == before
    optimizer.param_groups[0]["lr"] *= 2
    assert ddp.digest(model, optimizer) != before
    optimizer.param_groups[0]["lr"] /= 2
    with engine.no_grad():
        model.bias[1] = -model.bias[1]
    assert ddp.digest(model, optimizer) != before


def test_what_has_no_bits_is_refused() -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"x": object()}

    with pytest.raises(TypeError, match="a object in a state_dict has no bits"):
        ddp.digest(Odd())
