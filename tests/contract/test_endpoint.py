"""Deployments of one endpoint: who answers, by which share, and who only gets a copy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.in_process import DOORS, KEY, InProcessServer, script
from tests.http.raw_http import Answer
from tests.live_server import wait_until

from stoker.gateway.traffic import Traffic
from stoker.settings.traffic import Endpoint

HEADER = "azureml-model-deployment"
SEEN: dict[str, list[str]] = {"blue": [], "green": []}


def named(name: str) -> Callable[..., Any]:
    """A `run` that tells its name; green fails for what begins with `fail`."""

    def run(raw_data: str) -> Any:
        SEEN[name].append(raw_data)
        if name == "green" and raw_data.startswith("fail"):
            raise RuntimeError(name)
        return name

    return run


def served(endpoint: Endpoint, **options: Any) -> InProcessServer:
    for bodies in SEEN.values():
        bodies.clear()
    return InProcessServer(
        {name: script(named(name)) for name in endpoint.shares}, endpoint=endpoint, **options
    )


@pytest.fixture(scope="module")
def both() -> Iterator[InProcessServer]:
    """Three of four requests for blue, one for green."""
    with served(Endpoint("shop", {"blue": 75, "green": 25}), key=KEY) as server:
        yield server


def deployment_of(answer: Answer) -> str:
    assert answer.status == 200, answer
    return str(json.loads(answer.body))


@pytest.mark.parametrize("shares", [{"a": 90, "b": 10}, {"a": 34, "b": 33, "c": 33}, {"a": 1, "b": 99}])
def test_shares_are_exact(shares: dict[str, int]) -> None:
    """Of any hundred requests in a row each deployment gets its share, and two of small shares never cluster."""
    traffic = Traffic(Endpoint("shop", shares))
    sequence = [traffic.next() for _ in range(500)]
    for start in range(400):
        assert Counter(sequence[start : start + 100]) == shares
    assert Traffic(Endpoint("shop", {"a": 50, "b": 50})).next() == "a"


def test_shares_hold_over_http(both: InProcessServer) -> None:
    """Requests go to the deployments by their shares, and each answer names who gave it."""
    answers = [both.ask("POST", "/score", body=b"x") for _ in range(8)]
    assert Counter(map(deployment_of, answers)) == {"blue": 6, "green": 2}
    assert all(answer.header(HEADER) == deployment_of(answer) for answer in answers)


def test_the_header_chooses(both: InProcessServer) -> None:
    """The named deployment answers without using up a turn; an unknown one is 404 with the known ones."""
    before = [deployment_of(both.ask("POST", "/score", body=b"x")) for _ in range(4)]
    for name in ("green", "green", "green", "blue"):
        assert deployment_of(both.ask("POST", "/score", [(HEADER, name)], b"x")) == name
    assert [deployment_of(both.ask("POST", "/score", body=b"x")) for _ in range(4)] == before
    missing = both.ask("POST", "/score", [(HEADER, "red")], b"x")
    assert missing.status == 404
    assert "no deployment 'red'" in json.loads(missing.body)["message"]


def test_strangers_take_no_turn(both: InProcessServer) -> None:
    """Requests without a valid key are refused without a change in the sequence of those that have one."""
    before = [deployment_of(both.ask("POST", "/score", body=b"x")) for _ in range(4)]
    with both.connect() as connection:
        for _ in range(3):
            connection.send(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            assert connection.answer().status == 401
    assert [deployment_of(both.ask("POST", "/score", body=b"x")) for _ in range(4)] == before


def test_each_has_its_own_path(both: InProcessServer) -> None:
    """A deployment is a service of its name, with any share."""
    assert deployment_of(both.ask("POST", "/api/v1/service/green/score", body=b"x")) == "green"


def test_the_leading_deployment_describes_the_endpoint(both: InProcessServer) -> None:
    """The deployment with the largest share answers the other requests to the endpoint."""
    endpoint, blue, green = (
        json.loads(both.ask("GET", f"{path}/swagger.json").body)["info"]
        for path in ("", "/api/v1/service/blue", "/api/v1/service/green")
    )
    assert endpoint == blue != green


def test_an_unloaded_deployment_says_so(both: InProcessServer) -> None:
    """While the deployment whose turn it is has been unloaded, the answer is 503; the others serve."""
    service = both.gateway.directory.services.pop("blue")
    try:
        statuses = Counter(both.ask("POST", "/score", body=b"x").status for _ in range(4))
    finally:
        both.gateway.directory.services["blue"] = service
    assert statuses == {503: 3, 200: 1}


@pytest.mark.parametrize("door", DOORS)
def test_one_deployment_is_served_directly(door: str) -> None:
    """A single deployment answers by both paths with its name, and another name is 404."""
    with served(Endpoint("shop", {"blue": 100})) as server:
        answer = server.ask("POST", "/score", DOORS[door], b"x")
        assert (deployment_of(answer), answer.header(HEADER)) == ("blue", "blue")
        assert b"/score" in server.gateway.targets.scoring
        assert deployment_of(server.ask("POST", "/score", [(HEADER, "blue"), *DOORS[door]], b"x")) == "blue"
        assert server.ask("POST", "/score", [(HEADER, "green"), *DOORS[door]], b"x").status == 404


def test_no_share_needs_the_header() -> None:
    """Where all shares are 0, only the header reaches a deployment."""
    with served(Endpoint("shop", {"blue": 0})) as server:
        refused = server.ask("POST", "/score", body=b"x")
        assert refused.status == 404
        assert HEADER in json.loads(refused.body)["message"]
        assert deployment_of(server.ask("POST", "/score", [(HEADER, "blue")], b"x")) == "blue"


def test_a_mirror_gets_copies_and_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the requests reach the mirror too, in order; callers get the other deployment's answers alone."""
    endpoint = Endpoint("shop", {"blue": 100, "green": 0}, {"green": 50})
    monkeypatch.setattr("stoker.gateway.protocols.azure.LARGE_BODY_BYTES", 100)
    with served(endpoint) as server:
        answers = [server.ask("POST", "/score", body=b"fail %d" % number) for number in range(4)]
        answers += [server.ask("POST", "/score", body=b"%d" % number) for number in range(4, 8)]
        assert deployment_of(server.ask("POST", "/score", [(HEADER, "blue")], b"named")) == "blue"
        # It takes the turn of a copy, and none is made of it.
        large = [server.ask("POST", "/score", body=b"x" * 101) for _ in range(2)]
        wait_until(lambda: len(SEEN["green"]) == 4, "the copies have arrived")
    assert [answer.status for answer in (*answers, *large)] == [200] * 10
    assert {answer.header(HEADER) for answer in answers} == {"blue"}
    assert SEEN["green"] == ["fail 1", "fail 3", "5", "7"]
    assert "named" in SEEN["blue"]


def test_a_mirror_that_is_not_ready_costs_nothing() -> None:
    """Requests are answered though the mirror has no device process."""
    endpoint = Endpoint("shop", {"blue": 100, "green": 0}, {"green": 50})
    with served(endpoint) as server:
        server.gateway.directory.services["green"].exchanges.clear()
        assert [deployment_of(server.ask("POST", "/score", body=b"x")) for _ in range(4)] == ["blue"] * 4
