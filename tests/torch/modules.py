"""Modules as models on the CPU, for tests of their forms."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.torch.conftest import torch

from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.torch.model import TorchModel

__all__ = ["model_of", "rows", "run_of"]


def rows(count: int, *shape: int) -> np.ndarray:
    """Return random rows, the same each time."""
    return np.random.default_rng(7).standard_normal((count, *shape)).astype(np.float32)


def model_of(module: Any) -> TorchModel:
    """Return a module as a model of the input `x`."""
    return TorchModel(module, lambda module, tensors: module(*tensors), ["x"])


def run_of(model: TorchModel) -> Run:
    """Return a model as a function of arrays, whose output `y` has to be float32."""

    def run(feeds: Feeds) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            output = model([torch.from_numpy(array) for array in feeds.values()])
        assert output.dtype == torch.float32
        return {"y": output.numpy().copy()}

    return run
