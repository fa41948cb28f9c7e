"""The choice of traced requests: settings for all models and for single ones, and the limit of further traces."""

from __future__ import annotations

from stoker.control.frontend_messages import Sampling
from stoker.metrics.journal import TracedRequest
from stoker.supervisor.trace_settings import TraceSettings


def requests(model: str, count: int) -> list[TracedRequest]:
    """So many of a model."""
    return [
        TracedRequest("1" * 32, "2" * 16, "", str(n), model, "1", 200, "", 1, 0, 1, 2) for n in range(count)
    ]


def test_at_first_it_is_as_the_server_was_started() -> None:
    """A ratio is told as of how many requests one is traced, and any number of them may be."""
    settings = TraceSettings(0.01)
    assert settings.sampling == Sampling(0.01)
    assert settings.described("") == settings.described("m") == {"on": True, "rate": 100, "left": -1}
    assert TraceSettings(0.0).described("")["rate"] == 0


def test_a_model_follows_the_settings_for_all_but_its_own() -> None:
    """A removed setting follows those for all again, and these follow the start."""
    settings = TraceSettings(1.0)
    settings.change("m", {"rate": 4})
    settings.change("", {"on": False})
    assert settings.sampling == Sampling(None, {"m": None})
    settings.change("m", {"on": True})
    assert settings.sampling == Sampling(None, {"m": 0.25})
    assert settings.described("m") == {"on": True, "rate": 4, "left": -1}
    assert settings.described("other") == {"on": False, "rate": 1, "left": -1}
    settings.change("m", {"on": None, "rate": None, "left": None})
    settings.change("", {"on": None, "rate": 0})
    assert settings.sampling == Sampling(0.0)
    settings.change("", {"rate": None})
    assert settings.sampling == Sampling(1.0)


def test_no_more_are_admitted_than_there_are_to_be() -> None:
    """A model with a number of its own has it for itself; frontends are told when it is used up."""
    settings = TraceSettings(1.0)
    settings.change("", {"left": 3})
    settings.change("m", {"left": 1})
    admitted = settings.admit([*requests("a", 2), *requests("m", 2), *requests("b", 2)])
    assert [request.model for request in admitted] == ["a", "a", "m", "b"]
    assert (settings.described("a")["left"], settings.described("m")["left"]) == (0, 0)
    assert settings.sampling == Sampling(None, {"m": None})
    settings.change("m", {"left": -1})
    assert settings.sampling == Sampling(None, {"m": 1.0})
    assert len(settings.admit(requests("m", 9))) == 9
