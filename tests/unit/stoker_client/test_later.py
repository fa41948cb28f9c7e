"""Answers later: the request, the address of the answer, and the end of waiting."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import Caller, Kind, error, ok

from stoker_client import AnswerExpired, IdempotencyKeyReused, TimedOut, UnexpectedAnswer

LOCATION = "/later/6b0b54bd-0cd72af56e1d60c926991b478d962da2"
URL = f"http://127.0.0.1:8080{LOCATION}"
ACCEPTED = httpx.Response(202, json={"status": "waiting"}, headers={"location": LOCATION})


def test_rows_are_scored_later_and_fetched(kind: Kind) -> None:
    """The request may be sent again, and says so; the answer is waited for."""
    caller = Caller(kind, [error(503, "spool_full"), ACCEPTED])
    assert caller.call("score_later", np.ones((1, 2)), callback="https://a/") == URL
    first, second = caller.requests
    assert first.headers["prefer"] == "respond-async"
    assert first.headers["stoker-callback"] == "https://a/"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    caller = Caller(kind, [ACCEPTED, ACCEPTED, ok([3])], key="KEY")
    assert caller.call("fetch", URL).tolist() == [3]
    assert [str(request.url) for request in caller.requests] == [URL] * 3
    assert {request.headers["authorization"] for request in caller.requests} == {"Bearer KEY"}


def test_errors_of_later_answers_have_their_classes(kind: Kind) -> None:
    """No later answers, a reused key, an expired answer and a timeout each raise their error."""
    with pytest.raises(UnexpectedAnswer, match="--later-mb"):
        Caller(kind, [ok()]).call("score_later", [[1]])
    with pytest.raises(IdempotencyKeyReused):
        Caller(kind, [error(422, "idempotency_key_reused")]).call("score_later", [[1]], idempotency_key="k")
    with pytest.raises(AnswerExpired):
        Caller(kind, [error(410, "answer_expired")]).call("fetch", URL)
    with pytest.raises(TimedOut, match="fetch it later"):
        Caller(kind, [ACCEPTED] * 50).call("fetch", URL, timeout_s=5)
    with pytest.raises(ValueError, match="one scoring URI"):
        Caller(kind, [], uri=["http://a/score", "http://b/score"]).call("score_later", [[1]])


def test_the_key_goes_to_the_own_server_only(kind: Kind) -> None:
    """The host that a location names gets no request."""
    caller = Caller(kind, [ok([1])], key="KEY")
    caller.call("fetch", f"http://elsewhere{LOCATION}?a=b")
    assert str(caller.requests[0].url) == f"{URL}?a=b"
