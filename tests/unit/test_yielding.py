"""Loading behind everything else that wants the cores."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker import yielding
from stoker.yielding import yielding_cores


def _niceness(thread: threading.Thread | None = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, 0 if thread is None else thread.native_id or 0)


def test_threads_that_load_yield_and_serve_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started while a model loads inherits its niceness, and loses it with the rest."""
    session = tmp_path / "autogroup"
    monkeypatch.setattr(yielding, "_AUTOGROUP", session)
    before, done = _niceness(), threading.Event()
    pool = threading.Thread(target=done.wait)
    with yielding_cores() as yields:
        assert session.read_text() == "10"
        pool.start()
        assert (_niceness() > before) == (_niceness(pool) > before) == yields
    try:
        assert (_niceness(), _niceness(pool), session.read_text()) == (before, before, "0")
    finally:
        done.set()
        pool.join()


def test_what_may_not_return_does_not_yield(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could not become important again would be slow for good."""

    def refuse(kind: int, which: int, niceness: int) -> None:
        raise PermissionError(kind, which, niceness)

    monkeypatch.setattr(yielding, "_AUTOGROUP", tmp_path / "no" / "autogroup")
    monkeypatch.setattr(os, "setpriority", refuse)
    before = _niceness()
    with yielding_cores() as yields:
        assert (yields, _niceness()) == (False, before)
