"""The events of models that callers of the API read."""

import logging

import pytest

from stoker.supervisor import events as module
from stoker.supervisor.events import Events


def test_events_are_listed_by_model(caplog: pytest.LogCaptureFixture) -> None:
    """An event has its time and text; `tell` logs it too."""
    caplog.set_level("INFO")
    events = Events(lambda: 1_000_000_000.25)
    events.note("digits", 3, "available")
    events.tell(logging.WARNING, "letters", 1, "parity_warned", "it differs", requests=2)
    assert events.listed("digits") == [
        {"time": "2001-09-09T01:46:40.250Z", "model": "digits", "event": "available", "version": "3"}
    ]
    assert [entry["model"] for entry in events.listed()] == ["digits", "letters"]
    assert events.listed("letters")[0]["requests"] == 2
    assert caplog.messages == ["letters version 1: it differs"]


def test_the_oldest_events_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server keeps a thousand."""
    monkeypatch.setattr(module, "_KEPT", 3)
    events = Events()
    for number in range(5):
        events.note("digits", None, f"event {number}")
    assert [entry["event"] for entry in events.listed()] == ["event 2", "event 3", "event 4"]
