"""The requests of both clients, and the calls beside `score`."""

from __future__ import annotations

import json
import re
from itertools import repeat
from typing import Any

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import URI, Caller, Kind, error, ok

from stoker_client import AsyncClient, Client, NotFound, TimedOut, UnexpectedAnswer

KEY = "correct-horse-battery"


def test_score_posts_rows_and_returns_an_array(kind: Kind) -> None:
    """Rows go as `data` in a JSON body; classes come back as an array."""
    caller = Caller(kind, [ok([7, 2])])
    classes = caller.call("score", np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(classes, [7, 2])
    (request,) = caller.requests
    assert (request.method, str(request.url)) == ("POST", URI)
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {"data": [[1, 0], [0, 1]]}


def test_score_json_sends_and_returns_json_as_it_is(kind: Kind) -> None:
    """A body of the entry script's own is not wrapped, and its answer is not converted."""
    caller = Caller(kind, [ok({"classes": [1, 2]})])
    assert caller.call("score_json", {"data": [[1]], "method": "proba"}) == {"classes": [1, 2]}
    assert json.loads(caller.requests[0].content) == {"data": [[1]], "method": "proba"}


def test_the_key_is_sent_as_bearer(kind: Kind) -> None:
    """The key stands in the header that Azure's and Stoker's servers read."""
    caller = Caller(kind, [ok()], key=KEY)
    caller.call("score", [[1]])
    assert caller.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_key_may_come_from_the_environment(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """STOKER_KEY is used where no key is given, without the line end that files and shells leave."""
    monkeypatch.setenv("STOKER_KEY", f"{KEY}\n")
    caller = Caller(kind, [ok()])
    caller.call("score", [[1]])
    assert caller.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_given_key_goes_before_the_environment(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument decides where both are there."""
    monkeypatch.setenv("STOKER_KEY", "another-key")
    caller = Caller(kind, [ok()], key=KEY)
    caller.call("score", [[1]])
    assert caller.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_without_a_key_no_header_is_sent(kind: Kind) -> None:
    """A server started without keys gets no empty credentials."""
    caller = Caller(kind, [ok()])
    caller.call("score", [[1]])
    assert "authorization" not in caller.requests[0].headers


@pytest.mark.parametrize("build", [Client, AsyncClient])
@pytest.mark.parametrize("key", ["sec ret", "sec\nret", "secrét", "sec\x00ret", b"secret"])
def test_a_key_that_cannot_stand_in_a_header_is_refused(build: Any, key: Any) -> None:
    """The refusal does not print the key."""
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        build(URI, key)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("build", [Client, AsyncClient])
def test_the_client_does_not_show_its_key(build: Any) -> None:
    """A client in a log or a debugger shows its address and not its key."""
    assert repr(build(URI, KEY)) == f"{build.__name__}('{URI}')"


@pytest.mark.parametrize("build", [Client, AsyncClient])
@pytest.mark.parametrize(
    "uri", ["localhost:8080/score", "/score", "", "ftp://host/score", "http://", "http://a:b/"]
)
def test_the_scoring_uri_has_to_be_absolute(build: Any, uri: str) -> None:
    """A URI that cannot be posted to is refused with an example of one that can."""
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8080/score, not " + re.escape(repr(uri))):
        build(uri)


@pytest.mark.parametrize(
    ("uri", "probe"),
    [
        ("http://h:1/score", "http://h:1/v2/health/ready"),
        ("http://h:1/api/v1/service/a-b/score?x=1", "http://h:1/v2/health/ready"),
        ("https://h/models/gpu/score", "https://h/models/gpu/v2/health/ready"),
        ("https://h/gw/api/v1/service/digits/score/", "https://h/gw/v2/health/ready"),
        ("https://h/something/else", "https://h/v2/health/ready"),
    ],
)
def test_readiness_is_probed_beside_the_scoring_path(kind: Kind, uri: str, probe: str) -> None:
    """The readiness endpoint lies below the same prefix as the scoring path."""
    caller = Caller(kind, [ok({"ready": True})], uri)
    assert caller.call("ready") is True
    assert str(caller.requests[0].url) == probe
    assert caller.requests[0].method == "GET"


@pytest.mark.parametrize(
    "event",
    [error(503, "not_ready"), httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("x")],
)
def test_a_server_that_cannot_score_is_not_ready(kind: Kind, event: Any) -> None:
    """Not ready, unreachable and mute are all `False`, asked once and without a pause."""
    caller = Caller(kind, [event])
    assert caller.call("ready") is False
    assert caller.pauses_s == []


@pytest.mark.parametrize(
    ("event", "expected"), [(httpx.Response(404), NotFound), (httpx.Response(302), UnexpectedAnswer)]
)
def test_another_server_at_the_address_is_an_error(kind: Kind, event: Any, expected: type[Exception]) -> None:
    """Waiting for a server that is none of ours would never end well."""
    for method in ("ready", "wait_until_ready"):
        with pytest.raises(expected):
            Caller(kind, [event]).call(method)


def test_waiting_ends_when_the_server_is_ready(kind: Kind) -> None:
    """The probes become rarer up to one a second."""
    starting = [httpx.ConnectError("refused")] * 3 + [error(503, "not_ready")] * 3
    caller = Caller(kind, [*starting, ok({"ready": True})])
    caller.call("wait_until_ready", timeout_s=60)
    assert caller.pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def test_waiting_ends_with_the_reason(kind: Kind) -> None:
    """The error of a server that is not ready in time has its last answer."""
    caller = Caller(kind, repeat(error(503, "not_ready")))
    with pytest.raises(TimedOut, match="not ready within 2 s: it is not_ready"):
        caller.call("wait_until_ready", timeout_s=2)
    assert sum(caller.pauses_s) < 2


def test_a_closed_client_refuses() -> None:
    """Scoring after `close` is a fault of the program and says so."""
    client = Client(URI)
    client.close()
    with pytest.raises(RuntimeError, match="the client was closed"):
        client.score([[1]])


@pytest.mark.anyio
async def test_a_closed_asynchronous_client_refuses() -> None:
    """The asynchronous client does not open connections again after `aclose`."""
    client = AsyncClient(URI)
    await client.aclose()
    with pytest.raises(RuntimeError, match="the client was closed"):
        await client.score([[1]])
