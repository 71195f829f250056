"""The kernels of this package are what these tests are of, also where cuDNN is installed."""

import pytest

from engine.backends import cudnn


@pytest.fixture(autouse=True)
def _without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "enabled", False)
