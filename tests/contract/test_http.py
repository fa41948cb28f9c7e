"""HTTP itself where the contract has a row for it (CONTRACT A.8); tests/http/test_sockets.py has the rest."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
from tests.contract.in_process import APP, DOORS, InProcessServer, script
from tests.http.raw_http import Answer, Connection, request

KIB = 1024

seen: list[str] = []


def echo(raw_data: str) -> str:
    """The body as it came; kept too."""
    seen.append(raw_data)
    return raw_data


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A script that returns its text."""
    with InProcessServer(script(echo)) as running:
        yield running


def _ask(server: InProcessServer, data: bytes, *, ends: bool) -> Answer:
    """Send bytes; make sure that the connection ends with the answer, or goes on."""
    with server.connect() as connection:
        answer = connection.ask(data)
        if ends:
            connection.assert_ended()
            assert answer.closes
        else:
            connection.assert_open()
    return answer


@pytest.mark.parametrize(
    "head",
    [
        b"POST /score HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /score HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["none", "two", "health"],
)
def test_one_host_is_needed(server: InProcessServer, head: bytes) -> None:
    """HTTP/1.1 without a Host, or with several, is 400, on every route (RFC 9112, section 3.2)."""
    answer = _ask(server, head, ends=False)

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")
    assert "Host" in answer.json()["message"]


@pytest.mark.parametrize("host", [b"Host:\r\n", b"Host: a:80\r\n", b"hOST: [::1]\r\n"])
def test_any_host_will_do(server: InProcessServer, host: bytes) -> None:
    """Its value is not looked at; it may be empty."""
    head = b"POST /score HTTP/1.1\r\n" + host + b"Content-Length: 2\r\n\r\n{}"

    assert _ask(server, head, ends=False).status == 200


def test_http_1_0_needs_none(server: InProcessServer) -> None:
    """Its answer ends the connection."""
    answer = _ask(server, b"POST /score HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", ends=True)

    assert answer.status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/score", "/", "/nothing"])
def test_other_expectations_fail(server: InProcessServer, method: str, path: str) -> None:
    """417 on every route; the body that may follow is not waited for."""
    body = b"{}" if method == "POST" else None
    data = request(method, path, [("Expect", "a-miracle")], body)
    answer = _ask(server, data, ends=method == "POST")

    assert (answer.status, answer.json()["code"]) == (417, "expectation_failed")


def test_a_refused_expectation_ends_the_connection(server: InProcessServer) -> None:
    """A client that is refused instead of told to go on does not send its body: nobody may wait for that."""
    sent = [("Expect", "100-continue"), ("Content-Encoding", "br"), ("Content-Length", "10")]

    assert _ask(server, request("POST", "/score", sent), ends=True).status == 415


def test_long_queries_are_read(server: InProcessServer) -> None:
    """32 KiB of path and query are accepted; one byte more is 414."""
    longest = "/score?a=" + "x" * (32 * KIB - len("/scorea="))

    assert len(server.ask("GET", longest).json()) == len('{"a": ""}') + longest.count("x")
    for path in (longest + "x", longest + "x" * 20 * KIB, "/" + "x" * 40 * KIB):
        answer = server.ask("GET", path)
        assert (answer.status, answer.json()["code"]) == (414, "target_too_long")


def test_a_query_without_end_is_414(server: InProcessServer) -> None:
    """A request line that goes on and on is not collected."""
    with server.connect() as connection:
        connection.send(b"GET /score?a=")
        answer = _send_until_answered(connection, b"x" * 8 * KIB)

    assert (answer.status, answer.json()["code"], answer.closes) == (414, "target_too_long", True)


def test_headers_without_end_are_431(server: InProcessServer) -> None:
    """The same for headers."""
    with server.connect() as connection:
        connection.send(b"GET /score HTTP/1.1\r\nHost: x\r\n")
        answer = _send_until_answered(connection, b"X-Padding: %b\r\n" % (b"x" * 8 * KIB))

    assert (answer.status, answer.json()["code"], answer.closes) == (431, "header_too_large", True)


def _send_until_answered(connection: Connection, piece: bytes) -> Answer:
    for _ in range(200):
        connection.send(piece)
        if select.select([connection.socket], [], [], 0.05)[0]:
            return connection.answer()
    raise AssertionError("the server reads on")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("count", "status"), [(100, 200), (101, 431), (1000, 431)])
def test_a_hundred_headers_are_read(server: InProcessServer, count: int, status: int, door: str) -> None:
    """More are 431."""
    sent = [*DOORS[door]]
    # Host and Content-Length are headers too.
    sent += [(f"x-{number}", "1") for number in range(count - len(sent) - 2)]

    assert server.ask("POST", "/score", sent, b"{}").status == status


@pytest.mark.parametrize("size", [8 * KIB, 60 * KIB])
def test_long_headers_are_read(server: InProcessServer, size: int) -> None:
    """Up to 64 KiB with all others."""
    assert server.ask("POST", "/score", [("x-long", "a" * size)], b"{}").status == 200
    assert server.ask("POST", "/score", [("x-long", "a" * (size + 60 * KIB)), *APP], b"{}").status == 431


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: gzip\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
    ids=["coding", "bad size", "long chunk", "both"],
)
def test_bad_framing_ends_the_connection(server: InProcessServer, framing: bytes) -> None:
    """400, and the script is not called."""
    seen.clear()
    answer = _ask(server, b"POST /score HTTP/1.1\r\nHost: x\r\n" + framing, ends=True)

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")
    assert seen == []


def test_bytes_behind_a_short_length_are_no_request(server: InProcessServer) -> None:
    """The script gets the cut body, and its answer is the last one of the connection."""
    seen.clear()
    answer = _ask(
        server, b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n" + b"[1, 2, 3]", ends=True
    )

    assert (answer.status, answer.json()) == (200, "[1, 2")
    assert len(seen) == 1


@pytest.mark.parametrize("line", [b"BOGUS /score HTTP/1.1", b"FETCH http://x/score HTTP/1.0"])
def test_unknown_methods_are_refused(server: InProcessServer, line: bytes) -> None:
    """405 as for those that are known; the connection ends, because its parser has."""
    answer = _ask(server, line + b"\r\nHost: x\r\n\r\n", ends=True)

    assert (answer.status, answer.json()["message"]) == (
        405,
        "The method is not allowed for the requested URL.",
    )
    assert answer.header("allow") == "GET, HEAD, OPTIONS, POST"


def test_errors_of_the_parser_have_the_shape_of_all_errors(server: InProcessServer) -> None:
    """They are JSON with message and code, and are not blamed on the script's `run`."""
    answer = _ask(server, b"not http at all\r\n\r\n", ends=True)

    assert answer.error_code() == "malformed_body"
    assert answer.header("x-ms-run-function-failed") == "False"
