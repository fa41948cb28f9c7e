"""Fixtures of the process tests: model files, and servers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.live_server import LiveServer
from tests.tiny_models import write_doubler

Serve = Callable[..., LiveServer]


@pytest.fixture(scope="session")
def doubler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file that doubles rows of 4 numbers."""
    return write_doubler(tmp_path_factory.mktemp("model") / "doubler.onnx")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers that are killed with all their processes after the test."""
    with ExitStack() as servers:

        def start(*arguments: str | Path, **settings: Any) -> LiveServer:
            scratch = tmp_path / f"server{len(list(tmp_path.glob('server*')))}"
            scratch.mkdir()
            return servers.enter_context(LiveServer(scratch, *arguments, **settings))

        yield start
