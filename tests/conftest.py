"""What all tests share."""

import signal

import pytest


def pytest_configure() -> None:
    """Let what tests start hear Ctrl-C: a shell that runs the suite in the background has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the server does."""
    return "asyncio"
