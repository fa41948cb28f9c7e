"""Models of PyTorch, loaded as a device process loads them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.runtimes.base import Runtime

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make test-torch` brings it")

CPU = Device("cpu", 0, "the CPU")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20261127)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Save a module by `torch.export`, the first axes of its inputs free up to `most_rows`."""

    def save(module: Any, *examples: Any, most_rows: int | None = 1024, name: str = "model.pt2") -> Path:
        rows = torch.export.Dim("rows", min=1, max=most_rows) if most_rows is not None else None
        shapes = None if rows is None else tuple({0: rows} for _ in examples)
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(module.eval(), examples, dynamic_shapes=shapes), path)
        return path

    return save


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    """Save a module as TorchScript that was traced."""

    def save(module: Any, *examples: Any, name: str = "model.pt") -> Path:
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(module.eval(), examples).save(str(path))
        return path

    return save


def load(path: Path, **settings: Any) -> Runtime:
    """Load a file on the CPU."""
    from stoker.runtimes.torch.loading import load_torch

    settings = {"max_batch_rows": 64, **settings}
    deployment = Deployment("net", 1, "torch", path, path.parent, max_body_bytes=1 << 20, **settings)
    return load_torch(deployment, CPU, 1)


def run(runtime: Runtime, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run one batch of rows."""
    return [np.array(output) for output in runtime.run(inputs)]
