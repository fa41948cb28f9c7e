"""Several servers of one service: where requests go, and what becomes of those that a server does not answer."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.puppet_server import Request, answer
from tests.unit.stoker_client.scripted import Caller, Kind, Timeline, error, ok

from stoker_client import AsyncClient, Client, ConnectionFailed, NotReady, Unauthorized
from stoker_client.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.stoker_client.puppet_server import Behaviour, PuppetServer

URIS = [f"http://127.0.0.1:{port}/score" for port in (8081, 8082, 8083)]
ROWS = np.zeros((1, 4))
REFUSED = httpx.ConnectError("refused")


def ports(caller: Caller) -> list[int | None]:
    """The server of each request."""
    return [request.url.port for request in caller.requests]


def servers(count: int = 2) -> tuple[Servers, Timeline]:
    """Servers on a clock that stands still."""
    timeline = Timeline()
    return Servers([httpx.URL(uri) for uri in URIS[:count]], timeline.clock), timeline


def test_the_one_with_the_fewest_in_flight_is_chosen() -> None:
    """Equals take turns; a server that has answered is chosen before one that still works."""
    three, _ = servers(3)
    first, second, third = (three.take() for _ in range(3))
    assert len({first.origin, second.origin, third.origin}) == 3
    three.give_back(second)
    assert three.take() is second
    three.give_back(third)
    three.give_back(first)
    assert three.take() is first


def test_failing_server_is_avoided_longer_each_time() -> None:
    """A server is avoided for 1 s, 2 s, 4 s, up to 30 s, or as long as it asks; an answer resets that."""
    two, timeline = servers()
    failing = two.take()
    other = two.take()
    for aside_s in (1, 2, 4, 8, 16, 30, 30):
        two.set_aside(failing, None)
        assert failing.aside_until_s == timeline.now_s + aside_s
        assert two.take() is other
        timeline.now_s = failing.aside_until_s
        assert two.take() is failing
        for server in (failing, other):
            two.give_back(server)
    two.set_aside(failing, 90)
    assert failing.aside_until_s == timeline.now_s + 90
    two.answered(failing)
    two.set_aside(failing, None)
    assert failing.aside_until_s == timeline.now_s + 1
    two.set_aside(other, 0.5)
    assert not two.has_ready()
    assert two.take() is other


@pytest.mark.parametrize("failure", [REFUSED, error(503, "not_ready", retry_after="9")], ids=["down", "503"])
def test_another_server_is_tried_at_once(kind: Kind, failure: Any) -> None:
    """It is tried without a pause, despite Retry-After; the failed one gets no request meanwhile."""
    caller = Caller(kind, [failure, ok([3]), ok([4])], URIS[:2], retries=0)
    assert caller.call("score_many", np.zeros((2, 4)), batch_rows=1, concurrency=1).tolist() == [3, 4]
    assert ports(caller) == [8081, 8082, 8082]
    assert not any(caller.pauses_s)


def test_when_all_fail_the_client_waits_as_ever(kind: Kind) -> None:
    """Each further server is tried once besides the retries; then the last error is raised."""
    failing = [error(503, "not_ready")] * 9
    caller = Caller(kind, failing, URIS, retries=1)
    with pytest.raises(NotReady, match="after 4 attempts"):
        caller.call("score", ROWS)
    assert ports(caller)[:3] == [8081, 8082, 8083]
    assert len([pause_s for pause_s in caller.pauses_s if pause_s]) == 1


def test_error_that_all_servers_would_give_is_not_repeated(kind: Kind) -> None:
    """A wrong key is wrong on every server, so only one server gets the request."""
    caller = Caller(kind, [error(401, "unauthorized")], URIS)
    with pytest.raises(Unauthorized):
        caller.call("score", ROWS)
    assert len(caller.requests) == 1


def test_one_ready_server_makes_the_client_ready(kind: Kind) -> None:
    """The client checks one server after the other until one is ready."""
    down = error(503, "not_ready")
    assert Caller(kind, [down, REFUSED, ok({})], URIS).call("ready")
    assert not Caller(kind, [down, REFUSED, down], URIS).call("ready")


@pytest.mark.parametrize("build", [Client, AsyncClient])
def test_servers_are_of_one_service(build: Any) -> None:
    """Another path is another service; no URI is none."""
    with pytest.raises(ValueError, match="have one path"):
        build(["http://a/score", "http://b/api/v1/service/x/score"])
    with pytest.raises(ValueError, match="no scoring URI"):
        build([])
    with pytest.raises(ValueError, match="absolute"):
        build(["http://a/score", "b"])


def test_a_server_that_ends_costs_no_request(kind: Kind, serve: Callable[[Behaviour], PuppetServer]) -> None:
    """Two real servers share the requests; when one closes all its connections, the other gets them."""
    counts: Counter[str] = Counter()
    gone = threading.Event()

    def behaviour(name: str) -> Behaviour:
        def behave(_: Request) -> bytes | None:
            if name == "a" and gone.is_set():
                return None
            counts[name] += 1
            return answer([1])

        return behave

    uris = [serve(behaviour(name)).uri for name in "ab"]
    if kind == "sync":
        with Client(uris) as client:
            many(lambda: client.score(ROWS).tolist(), counts, gone)
        return

    async def run() -> None:
        async with AsyncClient(uris) as client:
            for _ in range(10):
                await client.score(ROWS)
            assert counts == {"a": 5, "b": 5}
            gone.set()
            assert [(await client.score(ROWS)).tolist() for _ in range(10)] == [[1]] * 10

    anyio.run(run)
    assert counts == {"a": 5, "b": 15}


def many(score: Callable[[], list[int]], counts: Counter[str], gone: threading.Event) -> None:
    """Ten requests to both, and ten while one is gone."""
    assert [score() for _ in range(10)] == [[1]] * 10
    assert counts == {"a": 5, "b": 5}
    gone.set()
    assert [score() for _ in range(10)] == [[1]] * 10
    assert counts == {"a": 5, "b": 15}


def test_unreachable_servers_are_an_error(kind: Kind) -> None:
    """The error names the last server tried."""
    caller = Caller(kind, [REFUSED] * 9, URIS[:2], retries=0)
    with pytest.raises(ConnectionFailed, match=r"cannot reach http://127\.0\.0\.1:8082"):
        caller.call("score", ROWS)
