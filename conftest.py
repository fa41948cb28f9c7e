"""What all tests share."""

import os
import signal

import pytest


def pytest_configure() -> None:
    """Let what tests start hear Ctrl-C, which a shell has them ignore in the background; call nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some tests import ONNX Runtime before Stoker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the server does."""
    return "asyncio"
