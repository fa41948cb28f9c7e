"""Fixtures of all unit tests."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.web import Web


@pytest.fixture
def web() -> Iterator[Web]:
    """A server of one file."""
    running = Web()
    yield running
    running.stop()


@pytest.fixture
def without_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nobody has imported Flask, as that of a script that does not; locust's tests import it."""
    monkeypatch.delitem(sys.modules, "flask", raising=False)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """No collection of garbage by itself: what is freed was in no circle."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def late_grpc_events() -> None:
    """Overlook what grpc.aio still has for the closed loop of an earlier test.

    Its poller serves all loops of a process, and hands the event of another loop over from whichever loop reads it.
    """
    loop = asyncio.get_running_loop()
    report = loop.get_exception_handler() or asyncio.AbstractEventLoop.default_exception_handler

    def overlook(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, RuntimeError) and "PollerCompletionQueue" in str(context.get("handle"))):
            report(loop, context)

    loop.set_exception_handler(overlook)
