"""Deadlines and tiers in a client's requests, and retry times in answers."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.unit.stoker_client.puppet_server import KEY, Behaviour, PuppetServer, like_stoker
from tests.unit.stoker_client.scripted import URI, Caller, Kind, error, ok

from stoker_client import AsyncClient, Client, NotReady, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = np.zeros((1, 784), np.float32)


def urgency_headers(caller: Caller) -> list[tuple[str | None, str | None]]:
    """Deadline and tier of each request."""
    return [
        (request.headers.get("x-request-timeout-ms"), request.headers.get("stoker-tier"))
        for request in caller.requests
    ]


def test_urgency_headers_are_absent_by_default(kind: Kind) -> None:
    """A client without these settings sends neither header, so the server's defaults hold."""
    caller = Caller(kind, [ok()])
    caller.call("score", ROWS)
    assert urgency_headers(caller) == [(None, None)]


@pytest.mark.parametrize(("method", "value"), [("score", ROWS), ("score_json", {"text": "a"})])
def test_urgency_of_the_client_goes_with_each_request(kind: Kind, method: str, value: Any) -> None:
    """Deadline and tier of the client go with each request."""
    caller = Caller(kind, [ok()], deadline_ms=150, tier="low")
    caller.call(method, value)
    assert urgency_headers(caller) == [("150", "low")]


def test_urgency_of_a_call_replaces_the_clients(kind: Kind) -> None:
    """Deadline and tier of a call count; one that it does not set is the client's."""
    caller = Caller(kind, [ok()], deadline_ms=150, tier="low")
    caller.call("score", ROWS, deadline_ms=2500)
    assert urgency_headers(caller) == [("2500", "low")]


@pytest.mark.parametrize("method", ["score_many", "score_batches"])
def test_each_batch_has_the_whole_deadline(kind: Kind, method: str) -> None:
    """A deadline is that of one request, however many are sent for a call."""
    caller = Caller(kind, repeat(ok([7])))
    batches = np.zeros((3, 784), np.float32) if method == "score_many" else [ROWS] * 3
    options = {"batch_rows": 1} if method == "score_many" else {}
    caller.call(method, batches, concurrency=1, deadline_ms=90, tier="high", **options)
    assert urgency_headers(caller) == [("90", "high")] * 3


def test_a_deadline_becomes_less_with_each_attempt(kind: Kind) -> None:
    """Each attempt sends the rest of its time, and no attempt starts too late."""
    caller = Caller(
        kind, repeat(error(503, "overloaded", retry_after_ms="400")), deadline_ms=1000, jitter=lambda: 0.0
    )
    with pytest.raises(Overloaded) as caught:
        caller.call("score", ROWS)
    assert urgency_headers(caller) == [("1000", None), ("600", None), ("200", None)]
    assert caught.value.attempts == 3
    assert caller.pauses_s == pytest.approx([0.4, 0.4])


def test_earlier_time_limit_replaces_the_deadline(kind: Kind) -> None:
    """Nobody waits longer than `timeout_s`, so a later deadline is not worth telling."""
    caller = Caller(kind, [ok()], timeout_s=2, deadline_ms=60_000)
    caller.call("score", ROWS)
    assert urgency_headers(caller) == [("2000", None)]
    assert caller.requests[0].extensions["timeout"]["read"] == 2


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({"retry_after": "3"}, 3),
        ({"retry_after": "1", "retry_after_ms": "85"}, 0.085),
        ({"retry_after_ms": "1250.5"}, 1.2505),
        ({"retry_after": "2", "retry_after_ms": "soon"}, 2),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_milliseconds_to_come_back_count_first(
    kind: Kind, headers: dict[str, str], retry_after_s: float | None
) -> None:
    """`retry-after-ms` is the exact form of Retry-After, which is whole seconds and at least one."""
    caller = Caller(kind, [error(503, "not_ready", **headers)], retries=0)
    with pytest.raises(NotReady) as caught:
        caller.call("score", ROWS)
    assert caught.value.retry_after_s == retry_after_s


def test_the_pause_is_that_of_the_milliseconds(kind: Kind) -> None:
    """The client comes back when the server says so to the millisecond, not a second later."""
    caller = Caller(
        kind, [error(429, "overloaded", retry_after="1", retry_after_ms="85"), ok()], jitter=lambda: 0.0
    )
    caller.call("score", ROWS)
    assert caller.pauses_s == pytest.approx([0.085])


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"deadline_ms": 0}, "above 0"),
        ({"deadline_ms": -5.0}, "above 0"),
        ({"tier": "urgent"}, "high, normal"),
    ],
)
def test_deadlines_and_tiers_are_checked(client: Any, option: dict[str, Any], message: str) -> None:
    """A deadline that is over and a tier that there is not are refused when the client is made."""
    with pytest.raises(ValueError, match=message):
        client(URI, **option)


def test_named_tensors_and_binary_rows_say_it_too(serve: Callable[[Behaviour], PuppetServer]) -> None:
    """Both ways to send tensors carry deadline and tier; the questions for the model's tensors carry neither."""
    server = serve(like_stoker)
    with Client(server.origin + "/score", KEY, deadline_ms=20_000, tier="normal") as client:
        client.infer({"x": np.ones((2, 784), np.float32)}, tier="high")
        client.score(np.ones((6, 784), np.float32))
    assert [request.path for request in server.descriptions] == ["/v2/models", "/v2/models/digits"]
    for request in server.descriptions:
        assert not {"stoker-tier", "x-request-timeout-ms"} & request.headers.keys()
    tiers = [(request.path, request.headers.get("stoker-tier")) for request in server.requests]
    assert tiers == [("/v2/models/digits/infer", "high"), ("/v2/models/digits/infer", "normal")]
    for request in server.requests:
        assert 0 < int(request.headers["x-request-timeout-ms"]) <= 20_000
