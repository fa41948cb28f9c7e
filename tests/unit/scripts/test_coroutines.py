"""Coroutines of scripts on a loop that several threads share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextvars import ContextVar
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from stoker.scripts import coroutines
from stoker.scripts.coroutines import SharedLoop

MARK: ContextVar[str] = ContextVar("mark")


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    """A loop that ends with the test."""
    made = SharedLoop()
    yield made
    made.close()


def test_awaited_result_or_error_comes_back_to_the_caller(loop: SharedLoop) -> None:
    """A coroutine runs on another thread in the caller's context; its errors are raised as they are."""

    async def read_context() -> tuple[str, int]:
        return MARK.get(), threading.get_ident()

    MARK.set("mine")
    mark, thread = loop.finish(read_context())
    assert (mark, thread == threading.get_ident()) == ("mine", False)

    async def fails() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.finish(fails())


def test_interrupted_caller_cancels_its_coroutine(loop: SharedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted caller's coroutine is cancelled; those of others go on."""
    begun, cancelled = threading.Event(), threading.Event()

    async def lasts() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(*_: Any) -> Any:
        assert begun.wait(PATIENCE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(coroutines, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.finish(lasts())
    assert cancelled.wait(PATIENCE_S)
    monkeypatch.setattr(coroutines, "wait", wait)
    assert loop.finish(asyncio.sleep(0, "on")) == "on"
