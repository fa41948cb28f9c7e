"""Settings that are changed while a server runs: who is told of what."""

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
    """Two processes, one of them a frontend, which only take note of what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.told_frontends: list[Any] = []
        self.frontends = SimpleNamespace(tell=self.told_frontends.append)
        self.children = [SimpleNamespace(send=self.told.append)] * 2


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> PuppetFleet:
    """Of a server that logs as JSON."""
    monkeypatch.setattr(
        logging.getLogger(), "handlers", [LimitedHandler(LineLimit(), JsonFormatter("supervisor"))]
    )
    return PuppetFleet()


def live(fleet: PuppetFleet, traces: TraceSettings | None) -> LiveSettings:
    return LiveSettings(fleet, traces, 0.5)  # type: ignore[arg-type]


def test_frontends_are_told_which_requests_to_trace(fleet: PuppetFleet) -> None:
    """When that is changed, and when the last trace that was asked for is there; not when nothing is new."""
    traces = TraceSettings(1.0)
    settings = live(fleet, traces)
    assert settings.traced("", {}) == {"on": True, "rate": 1, "left": -1}
    assert settings.traced("", {"left": 1, "rate": 2}) == {"on": True, "rate": 2, "left": 1}
    traces.admit([TracedRequest("1" * 32, "2" * 16, "", "a", "m", "1", 200, "", 1, 0, 1, 2)])
    for _ in range(2):
        settings.notify_frontends()
    assert fleet.told_frontends == [Sampling(0.5), Sampling(None)]


def test_where_traces_are_sent_nowhere_nothing_of_them_can_be_changed(fleet: PuppetFleet) -> None:
    """The refusal says how the server has to be started; what holds can be read."""
    settings = live(fleet, None)
    assert settings.traced("", {}) == {"on": False, "rate": 2, "left": -1}
    with pytest.raises(NotSupported, match="start the server with --otlp-endpoint"):
        settings.traced("m", {"on": True})


def test_all_processes_are_told_what_the_log_has(fleet: PuppetFleet) -> None:
    """This one too; a form that is none is that of the start."""
    settings = live(fleet, None)
    assert settings.logged({}) == {
        "info": True,
        "warning": True,
        "error": True,
        "verbose_level": 0,
        "form": "json",
    }
    assert fleet.told == []
    settings.logged({"info": False, "form": "text"})
    assert fleet.told == [LogSettings(info=False, form="text")] * 2
    assert log_settings() == fleet.told[0]
    assert settings.logged({"form": None})["form"] == "json"
