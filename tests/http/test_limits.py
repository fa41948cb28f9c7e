"""Limits: sizes, encodings, time, and what fits at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.http.conftest import Served, rows_in_flight
from tests.http.raw_http import THE_APP, Connection, Headers, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, wait_until
from tests.tiny_models import HOLD

from stoker.keys.keyring import Keyring

APP = ("Origin", "https://x.example")
DOORS: dict[str, Headers] = {"plain": [], "app": [APP]}
CHUNKED = ("Transfer-Encoding", "chunked")
BODY = rows_body([1, 2, 3, 4])

ARENA_ROWS = 16384
"""Rows that the frontend leases at most at once, for rows as small as these."""


@pytest.fixture
def narrow_key(narrow_server: Served) -> str:
    """A key of the narrow server, whose limits are 0.25 MiB and 2 s."""
    return Keyring(narrow_server.server.workspace / "keys", "batched").show().primary


@pytest.fixture
def gated_server(narrow_server: Served) -> Iterator[Served]:
    """The narrow server with a closed gate."""
    gate = narrow_server.gates["batched"]
    gate.reset()
    yield narrow_server
    gate.open()


@pytest.mark.parametrize("door", [[], THE_APP])
def test_gateways_are_believed_where_the_operator_says_so(
    main_server: Served, narrow_server: Served, narrow_key: str, door: list[tuple[str, str]]
) -> None:
    """A tier and a deadline that a gateway says count on one server, and are a header like any other on another."""
    headers = [("x-gateway-inference-objective", "low"), ("x-envoy-expected-rq-timeout-ms", "0.001"), *door]
    with narrow_server.server.connect() as connection:
        ranked = connection.ask(scoring("/score", narrow_key, BODY, [headers[0], *door]))
        late = connection.ask(scoring("/score", narrow_key, BODY, headers))
    assert (ranked.status, ranked.header("stoker-tier")) == (200, "low")
    assert (late.status, late.header("stoker-tier")) == (504, "low")
    with main_server.server.connect() as connection:
        other = connection.ask(scoring(main_server.path("doubler"), PRIMARY, BODY, headers))
    assert (other.status, other.header("stoker-tier")) == (200, None)


def test_the_supervisor_is_the_last_that_the_kernel_ends(main_server: Served) -> None:
    """Where memory runs out, frontends go first: they are soon back, and it is the supervisor who starts them."""
    server = main_server.server

    def expendable(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    supervisor = expendable(server.process.pid)
    devices, frontends = server.device_pids(), server.frontend_pids()
    assert devices
    assert {expendable(pid) - supervisor for pid in devices} == {100}
    assert {expendable(pid) - supervisor for pid in frontends} == {300}


def test_the_budget_of_large_bodies_is_shown(main_server: Served) -> None:
    """With what they take of it: nothing, when all are answered; a frontend sets both gauges many times a second."""
    wait_until(lambda: gauge(main_server, "budget_bytes") > 100 << 20, "the frontend has said what it has")
    assert gauge(main_server, "bytes") == 0


def gauge(served: Served, name: str) -> float:
    """A figure of large bodies."""
    metrics = served.server.get("/metrics").body.decode()
    return float(metrics.partition(f"\nstoker_large_body_{name} ")[2].split()[0])


@pytest.mark.parametrize("door", DOORS)
def test_a_body_above_the_limit_is_refused_unread(narrow_server: Served, narrow_key: str, door: str) -> None:
    """A Content-Length above the limit is 413 before the body is sent, and ends the connection."""
    head = scoring("/score", narrow_key, b"", DOORS[door]).replace(
        b"Content-Length: 0", b"Content-Length: 262145"
    )
    with narrow_server.server.connect() as connection:
        answer = connection.ask(head)
        connection.assert_ended()

    assert (answer.status, answer.error_code()) == (413, "body_too_large")
    assert "0.25 MiB" in answer.json()["message"]
    assert answer.closes
    assert answer.header("x-request-id")


@pytest.mark.parametrize("door", DOORS)
def test_a_body_at_the_limit_is_scored(narrow_server: Served, narrow_key: str, door: str) -> None:
    """A body of exactly the limit passes."""
    body = BODY + b" " * (262144 - len(BODY))
    with narrow_server.server.connect() as connection:
        answer = connection.ask(scoring("/score", narrow_key, body, DOORS[door]))

    assert (answer.status, answer.json()) == (200, [[3, 6, 9, 12]])


def test_a_chunked_body_above_the_limit_is_refused(narrow_server: Served, narrow_key: str) -> None:
    """Without a length the limit is found while the body comes."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with narrow_server.server.connect() as connection:
        connection.send(request("POST", "/score", [bearer(narrow_key), CHUNKED]) + 5 * chunk)
        answer = connection.answer()

    assert (answer.status, answer.error_code()) == (413, "body_too_large")
    assert answer.closes


def test_an_absurd_length_is_refused(narrow_server: Served, narrow_key: str) -> None:
    """A length that no machine holds is 413, one that no number holds is not HTTP."""
    head = request("POST", "/score", [bearer(narrow_key), ("Content-Length", "9" * 18)])
    with narrow_server.server.connect() as connection:
        assert connection.ask(head).status == 413

    head = request("POST", "/score", [bearer(narrow_key), ("Content-Length", "9" * 40)])
    with narrow_server.server.connect() as connection:
        assert connection.ask(head).status == 400
        connection.assert_ended()


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, deflate", "nonsense"])
def test_unknown_encodings_are_not_read(served: Served, encoding: str) -> None:
    """Other encodings, or one around another, are 415 with the supported ones."""
    with served.server.connect() as connection:
        answer = connection.ask(
            scoring(served.path("doubler"), PRIMARY, BODY, [("Content-Encoding", encoding)])
        )
        connection.assert_open()

    assert (answer.status, answer.error_code()) == (415, "unsupported_encoding")
    assert answer.header("accept-encoding") == "gzip, deflate"


@pytest.mark.parametrize("encoding", ["identity", "Identity"])
def test_the_identity_encoding_is_none(served: Served, encoding: str) -> None:
    """`Content-Encoding: identity` says that there is none."""
    with served.server.connect() as connection:
        answer = connection.ask(
            scoring(served.path("doubler"), PRIMARY, BODY, [("Content-Encoding", encoding)])
        )

    assert answer.status == 200


@pytest.mark.interrupts
@pytest.mark.parametrize("door", DOORS)
def test_a_request_that_is_not_answered_in_time_is_504(
    gated_server: Served, narrow_key: str, door: str
) -> None:
    """Past `timeout_ms` the caller gets 504, whether the request runs or waits, and the server goes on."""
    gate = gated_server.gates["batched"]
    with gated_server.server.connect() as running, gated_server.server.connect() as waiting:
        running.send(scoring("/score", narrow_key, rows_body([HOLD, 0, 0, 0]), DOORS[door]))
        wait_until(lambda: gate.entered, "the script holds the first request")
        # It is held too, should it run at last: the first is interrupted at about its deadline.
        waiting.send(scoring("/score", narrow_key, rows_body([HOLD, 0, 0, 0]), DOORS[door]))
        answers = [running.answer(), waiting.answer()]
        gate.open()
        running.assert_open()
        later = waiting.ask(scoring("/score", narrow_key, BODY, DOORS[door]))

    assert [(answer.status, answer.error_code()) for answer in answers] == [(504, "deadline_exceeded")] * 2
    assert (later.status, later.json()) == (200, [[3, 6, 9, 12]])


@pytest.mark.parametrize("door", DOORS)
def test_when_all_rows_are_taken_requests_are_refused(served: Served, door: str) -> None:
    """More rows than fit are refused at once with a Retry-After; those that wait are answered in the end."""
    gate, path = served.gates["batched"], served.path("batched")
    half = rows_body([HOLD, 0, 0, 0], *([1, 2, 3, 4] for _ in range(ARENA_ROWS // 2 - 1)))
    refusals_before = served.server.metric("stoker_rejections_total", model="batched", reason="overloaded")
    with ExitStack() as connections:
        waiting = [connections.enter_context(served.server.connect()) for _ in range(2)]
        for connection in waiting:
            connection.send(scoring(path, PRIMARY, half, DOORS[door]))
        wait_until(
            lambda: rows_in_flight(served.server)["batched"] == ARENA_ROWS, "two requests have taken all rows"
        )
        with served.server.connect() as another:
            refused = another.ask(scoring(path, PRIMARY, BODY, DOORS[door]))
            elsewhere = another.ask(scoring(served.path("doubler"), PRIMARY, BODY, DOORS[door]))
        gate.open()
        answers = [connection.answer() for connection in waiting]
        afterwards = waiting[0].ask(scoring(path, PRIMARY, BODY, DOORS[door]))

    assert (refused.status, refused.error_code()) == (503, "overloaded")
    assert 1 <= int(refused.header("retry-after") or 0) <= 60
    assert (
        served.server.metric("stoker_rejections_total", model="batched", reason="overloaded")
        == refusals_before + 1
    )
    assert elsewhere.status == 200
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].json()[-1] == [3, 6, 9, 12]
    assert afterwards.json() == [[3, 6, 9, 12]]


@pytest.mark.parametrize(
    "line", [b"X-Padding: %b\r\n" % (b"a" * 8000), b"a" * 8000], ids=["lines", "one line"]
)
def test_a_head_without_end_ends_the_connection(narrow_server: Served, line: bytes) -> None:
    """A request whose headers never end is refused, not collected."""

    def send_headers_for_ever(connection: Connection) -> None:
        connection.send(b"POST /score HTTP/1.1\r\nHost: x\r\n")
        for _ in range(4000):
            connection.send(line)

    with narrow_server.server.connect() as connection, pytest.raises(ConnectionError):
        send_headers_for_ever(connection)
