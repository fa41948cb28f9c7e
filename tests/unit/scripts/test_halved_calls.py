"""Requests whose call fails are scored in halves."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.errors import ScoringTimeout
from stoker.scripts.halved_calls import score_in_halves
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

REQUESTS = [ScriptRequest(b"id", b"%d" % number) for number in range(4)]


def alone(request: ScriptRequest) -> ScriptAnswer:
    """Answer one request."""
    return ScriptAnswer(b"alone " + request.body)


def refuse(error: Exception, request: ScriptRequest) -> ScriptAnswer:
    """Refuse a request."""
    return ScriptAnswer(b"late " + request.body, status=500)


def test_only_the_half_with_the_bad_request_is_divided_further() -> None:
    """The other half is scored in one call."""
    calls: list[int] = []

    def together(requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        calls.append(len(requests))
        if any(request.body == b"3" for request in requests):
            raise ValueError("three")
        return [ScriptAnswer(b"together " + request.body) for request in requests]

    answers = score_in_halves(REQUESTS, together, alone, refuse)
    assert [answer.body for answer in answers] == [b"together 0", b"together 1", b"alone 2", b"alone 3"]
    assert calls == [4, 2, 2]


def test_requests_of_a_late_call_are_refused() -> None:
    """A timeout leaves no time for another try."""

    def together(requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        raise ScoringTimeout(5)

    answers = score_in_halves(REQUESTS, together, alone, refuse)
    assert [answer.body for answer in answers] == [b"late 0", b"late 1", b"late 2", b"late 3"]
