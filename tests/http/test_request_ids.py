"""Request ids, as the Azure inference server has them."""

from __future__ import annotations

import re

import pytest
from tests.http.conftest import Served
from tests.http.raw_http import Answer, Headers, bearer, request, rows_body
from tests.live_server import PRIMARY

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
DOORS = {"plain": [], "app": [("Origin", "https://x.example")]}


def _ask(served: Served, door: str, headers: Headers) -> Answer:
    with served.server.connect() as connection:
        sent = [bearer(PRIMARY), *headers, *DOORS[door]]
        answer = connection.ask(request("POST", served.path("doubler"), sent, rows_body([1, 2, 3, 4])))
        connection.assert_open()
    return answer


def _ids(answer: Answer) -> tuple[str | None, str | None, str | None]:
    return (
        answer.header("x-request-id"),
        answer.header("x-ms-request-id"),
        answer.header("x-ms-client-request-id"),
    )


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param([], ("uuid", "uuid", None), id="nothing"),
        pytest.param([("x-request-id", "A")], ("A", "A", None), id="request id"),
        pytest.param([("x-ms-request-id", "B")], ("uuid", "B", "B"), id="older id"),
        pytest.param([("x-ms-client-request-id", "C")], ("uuid", "C", "C"), id="client id"),
        pytest.param(
            [("x-request-id", "A"), ("x-ms-request-id", "B"), ("x-ms-client-request-id", "C")],
            ("A", "B", "C"),
            id="all",
        ),
        pytest.param([("x-request-id", "")], ("uuid", "uuid", None), id="empty"),
        pytest.param([("x-request-id", "caf\xe9")], ("caf\xe9", "caf\xe9", None), id="latin-1"),
        pytest.param([("x-request-id", "a" * 100)], ("a" * 100, "a" * 100, None), id="longest"),
    ],
)
def test_ids_come_back(served: Served, door: str, sent: Headers, expected: tuple[str | None, ...]) -> None:
    """Sent ids come back; a missing one is made, as a uuid."""
    answer = _ask(served, door, sent)

    assert answer.status == 200
    request_id, older, client = _ids(answer)
    if expected[0] == "uuid":
        assert request_id is not None
        assert UUID.fullmatch(request_id), request_id
    else:
        assert request_id == expected[0]
    assert older == (request_id if expected[1] == "uuid" else expected[1])
    assert client == expected[2]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("name", "message", "returned"),
    [
        ("x-request-id", "x-request-id must not exceed 100 characters", False),
        (
            "x-ms-request-id",
            "x-ms-request-id and x-ms-client-request-id must not exceed 100 characters",
            True,
        ),
        (
            "x-ms-client-request-id",
            "x-ms-request-id and x-ms-client-request-id must not exceed 100 characters",
            True,
        ),
    ],
)
def test_too_long_ids_are_refused(served: Served, door: str, name: str, message: str, returned: bool) -> None:
    """An id of 101 characters is 431, in the Azure server's words; a good request id comes back with it."""
    sent = [(name, "a" * 101), *([("x-request-id", "mine")] if returned else [])]
    answer = _ask(served, door, sent)

    assert (answer.status, answer.error_code()) == (431, "header_too_large")
    assert answer.json()["message"] == message
    assert (answer.header("x-request-id") == "mine") is returned


@pytest.mark.parametrize("path", ["/", "/v2/health/live", "/nothing"])
def test_ids_are_checked_first(served: Served, path: str) -> None:
    """A too long id is refused on routes that score nothing too, health included."""
    answer = served.server.get(path, [("x-request-id", "a" * 101)])

    assert answer.status == (404 if path == "/nothing" else 431)


@pytest.mark.parametrize(
    "path", ["/", "/v2/health/live", "/metrics", "/api/v1/service/doubler/swagger.json", "/nothing"]
)
def test_every_route_returns_ids(served: Served, path: str) -> None:
    """Ids come back on every answer, errors included."""
    answer = served.server.get(path, [("x-request-id", "mine")])

    assert _ids(answer) == ("mine", "mine", None)


@pytest.mark.parametrize("door", DOORS)
def test_errors_carry_the_ids_too(served: Served, door: str) -> None:
    """A caller finds a failed request by its id."""
    headers = [bearer(PRIMARY), ("x-ms-client-request-id", "C"), *DOORS[door]]
    with served.server.connect() as connection:
        answer = connection.ask(request("POST", served.path("doubler"), headers, b"{"))

    assert answer.status == 400
    assert _ids(answer)[1:] == ("C", "C")


def test_generated_ids_are_unique(served: Served) -> None:
    """No two requests get the same id."""
    with served.server.connect() as connection:
        message = request("POST", served.path("doubler"), [bearer(PRIMARY)], rows_body([1, 2, 3, 4]))
        ids = {connection.ask(message).header("x-request-id") for _ in range(200)}

    assert len(ids) == 200
