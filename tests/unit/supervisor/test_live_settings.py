"""Settings that are changed while a server runs: the messages about them, and their receivers."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.control.frontend_messages import Sampling
from stoker.errors import NotSupported
from stoker.metrics.journal import TracedRequest
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.trace_settings import TraceSettings
from stoker.system.logs import JsonFormatter, LimitedHandler, LineLimit, LogSettings, log_settings


class PuppetFleet:
    """Two processes, one of them a frontend, which only take note of what they are sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.sent_to_frontends: list[Any] = []
        self.frontends = SimpleNamespace(tell=self.sent_to_frontends.append)
        self.children = [SimpleNamespace(send=self.sent.append)] * 2


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> PuppetFleet:
    """Of a server that logs as JSON."""
    monkeypatch.setattr(
        logging.getLogger(), "handlers", [LimitedHandler(LineLimit(), JsonFormatter("supervisor"))]
    )
    return PuppetFleet()


def live(fleet: PuppetFleet, traces: TraceSettings | None) -> LiveSettings:
    return LiveSettings(fleet, traces, 0.5)  # type: ignore[arg-type]


def test_frontends_get_changed_sampling(fleet: PuppetFleet) -> None:
    """They get it when it changes, and when the last of the limited traces has come, and not otherwise."""
    traces = TraceSettings(1.0)
    settings = live(fleet, traces)
    assert settings.traced("", {}) == {"on": True, "rate": 1, "left": -1}
    assert settings.traced("", {"left": 1, "rate": 2}) == {"on": True, "rate": 2, "left": 1}
    traces.admit([TracedRequest("1" * 32, "2" * 16, "", "a", "m", "1", 200, "", 1, 0, 1, 2)])
    for _ in range(2):
        settings.notify_frontends()
    assert fleet.sent_to_frontends == [Sampling(0.5), Sampling(None)]


def test_where_traces_are_sent_nowhere_nothing_of_them_can_be_changed(fleet: PuppetFleet) -> None:
    """The refusal says how the server has to be started; what holds can be read."""
    settings = live(fleet, None)
    assert settings.traced("", {}) == {"on": False, "rate": 2, "left": -1}
    with pytest.raises(NotSupported, match="start the server with --otlp-endpoint"):
        settings.traced("m", {"on": True})


def test_all_processes_get_changed_log_settings(fleet: PuppetFleet) -> None:
    """The settings of this process change too; without a form, the one of the start holds."""
    settings = live(fleet, None)
    assert settings.logged({}) == {
        "info": True,
        "warning": True,
        "error": True,
        "verbose_level": 0,
        "form": "json",
    }
    assert fleet.sent == []
    settings.logged({"info": False, "form": "text"})
    assert fleet.sent == [LogSettings(info=False, form="text")] * 2
    assert log_settings() == fleet.sent[0]
    assert settings.logged({"form": None})["form"] == "json"
