"""Fixtures of the tests of batch engines: a million rows, a model, and a server's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.live_server import PRIMARY, LiveServer
from tests.zoo import ZOO

from stoker_client import Client

ROWS = 1_000_000


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax over rows of 4 numbers: y."""
    path = tmp_path_factory.mktemp("model") / "softmax.onnx"
    path.write_bytes(ZOO["softmax"][1]())
    return path


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    """float32[1000000, 4]."""
    return np.random.default_rng(24).standard_normal((ROWS, 4)).astype(np.float32)


@pytest.fixture(scope="session")
def answers(model: Path, rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Answers of a server, in requests of 4096 rows: float32[1000000, 4]."""
    with (
        LiveServer(tmp_path_factory.mktemp("server"), model, "--frontends", "1", "--device", "cpu") as server,
        Client(f"http://127.0.0.1:{server.port}/score", PRIMARY) as client,
    ):
        parts = [client.infer({"x": rows[start : start + 4096]})["y"] for start in range(0, ROWS, 4096)]
    return np.concatenate(parts)


@pytest.fixture(autouse=True)
def no_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A workspace of the tests' own, for the processes of engines too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_WORKSPACE", str(tmp_path_factory.getbasetemp() / "workspace"))
        yield
