"""A zoo of modules whose rows see each other, and beside each one its twin whose rows do not.

They are those of `tests.zoo` in PyTorch. Modules take float32 `x` of [rows, 4].
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tests.torch.conftest import torch

nn = torch.nn

__all__ = ["TRACED_ALONE", "ZOO"]


class _Function(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class _Training(nn.Module):
    """A normalisation by the statistics of the batch, whatever mode it is in."""

    def forward(self, x: Any) -> Any:
        return nn.functional.batch_norm(x, None, None, training=True)


def _perceptron() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def _quantised_dynamically() -> Any:
    """PyTorch's own: its operator takes the scale of an activation from the whole batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(_perceptron(), {nn.Linear}, dtype=torch.qint8)


def _rounded(scale_of: Callable[[Any], Any]) -> Any:
    return _Function(lambda x: (x / scale_of(x)).round() * scale_of(x))


ZOO: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "batch norm in training mode": (_Training, lambda: nn.BatchNorm1d(4).eval()),
    "softmax over the batch": (lambda: nn.Softmax(dim=0), lambda: nn.Softmax(dim=1)),
    "dynamic quantisation": (_quantised_dynamically, _perceptron),
    "a scale of the batch": (
        lambda: _rounded(lambda x: x.abs().max() / 127),
        lambda: _rounded(lambda x: x.abs().amax(1, keepdim=True) / 127),
    ),
    "centred by the batch": (
        lambda: _Function(lambda x: x - x.mean(0)),
        lambda: _Function(lambda x: x - x.mean(1, keepdim=True)),
    ),
    "sorted over the batch": (
        lambda: _Function(lambda x: x.sort(0).values),
        lambda: _Function(lambda x: x.sort(1).values),
    ),
    "a running sum": (
        lambda: _Function(lambda x: x.cumsum(0)),
        lambda: _Function(lambda x: x.cumsum(1)),
    ),
    "attention between rows": (
        lambda: _Function(lambda x: (x @ x.T).softmax(1) @ x),
        lambda: _Function(lambda x: (x[:, :, None] * x[:, None, :]).softmax(2) @ x[:, :, None]),
    ),
}
"""By name the module that mixes rows, and its twin."""

TRACED_ALONE = {"dynamic quantisation"}
"""Modules that torch.export does not take."""
