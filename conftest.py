"""What all tests share."""

import os
import signal

import pytest
from hypothesis import settings


def pytest_configure() -> None:
    """Let what tests start hear Ctrl-C, which a shell has them ignore in the background; call nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some tests import ONNX Runtime before Stoker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # `make examples`: four times as many where a test does not say how many.
    settings.register_profile("long", max_examples=400)


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the server does."""
    return "asyncio"
