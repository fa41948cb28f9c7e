"""HTTP over plain sockets: pipelining, odd framing, slow and rude clients."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.http.conftest import Served, rows_in_flight
from tests.http.raw_http import Connection, Headers, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, wait_until
from tests.patience import PATIENCE_S
from tests.tiny_models import HOLD

APP = ("Origin", "https://x.example")
DOORS: dict[str, Headers] = {"plain": [], "app": [APP]}
CHUNKED = ("Transfer-Encoding", "chunked")


_LONG_BYTES = 600_000


def _row(number: int) -> bytes:
    return rows_body([number, 0, 0, 0])


def _doubled(number: int) -> list[list[float]]:
    return [[2 * number, 0, 0, 0]]


def _chunks(body: bytes, *cuts: int) -> bytes:
    bounds = [0, *cuts, len(body)]
    pieces = [body[start:stop] for start, stop in pairwise(bounds)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "kinds",
    [
        "dd", "da", "ad", "aa", "dg", "gd",
        "ddd", "dad", "add", "dda", "gdg", "dgd", "age", "ede", "ddddddddddd",
        "l", "ll", "dl", "ld", "lel", "gla",
    ],
)  # fmt: skip
def test_pipelined_requests_are_answered_in_order(served: Served, kinds: str) -> None:
    """Requests sent without waiting get their answers in order, through either path."""
    path = served.path("doubler")
    messages: dict[str, Callable[[int], bytes]] = {
        "d": lambda number: scoring(path, PRIMARY, _row(number)),
        "a": lambda number: scoring(path, PRIMARY, _row(number), [APP]),
        "g": lambda _: request("GET", "/"),
        "e": lambda _: scoring(path, PRIMARY, b"{"),
        "l": lambda number: scoring(path, PRIMARY, _row(number).ljust(_LONG_BYTES)),
    }
    with served.server.connect() as connection:
        connection.send(b"".join(messages[kind](number) for number, kind in enumerate(kinds)))
        answers = [connection.answer() for _ in kinds]
        connection.assert_open()

    for number, (kind, answer) in enumerate(zip(kinds, answers, strict=True)):
        match kind:
            case "g":
                assert (answer.status, answer.body) == (200, b"Healthy")
            case "e":
                assert answer.error_code() == "malformed_body"
            case _:
                assert (answer.status, answer.json()) == (200, _doubled(number))


def test_long_bodies_and_short_ones_take_turns_on_a_connection(served: Served) -> None:
    """Each request gets its own answer after any other, and with any cuts of its head and body."""
    path = served.path("doubler")
    with served.server.connect() as connection:
        for number, length in enumerate((_LONG_BYTES, _LONG_BYTES, 0, 0, 1_500_000, _LONG_BYTES, 0, 1 << 20)):
            message = scoring(path, PRIMARY, _row(number).ljust(length))
            head_bytes = message.index(b"\r\n\r\n") + 4
            connection.send(message[: (head_bytes - 9, head_bytes, head_bytes + 5)[number % 3]])
            # The bytes that were sent so far have been read, or is read together with the rest: neither may matter.
            connection.send(message[(head_bytes - 9, head_bytes, head_bytes + 5)[number % 3] :])
            assert connection.answer().json() == _doubled(number)
        connection.assert_open()


def test_a_long_body_that_ends_too_soon_is_refused(served: Served) -> None:
    """A client that stops sending in the middle of a long body hears that, and the server goes on."""
    message = scoring(served.path("doubler"), PRIMARY, _row(1).ljust(_LONG_BYTES))
    with served.server.connect() as connection:
        assert connection.ask(message).status == 200
        connection.send(message[:-1])
        connection.socket.shutdown(socket.SHUT_WR)
        answer = connection.answer()
        connection.assert_ended()

    assert answer.error_code() == "malformed_body"
    assert "ended before its body" in answer.json()["message"]


def test_a_quick_request_does_not_overtake_a_slow_one(served: Served) -> None:
    """A pipelined request waits for the one before it, even where its own answer is ready at once."""
    gate = served.gates["batched"]
    with served.server.connect() as connection:
        connection.send(
            scoring(served.path("batched"), PRIMARY, rows_body([HOLD, 0, 0, 0]))
            + scoring(served.path("doubler"), PRIMARY, _row(1))
            + request("GET", "/")
        )
        wait_until(lambda: gate.entered, "the script holds the first request")
        assert served.server.score([1, 0, 0, 0], path=served.path("doubler")).status == 200
        gate.open()
        answers = [connection.answer() for _ in range(3)]

    assert answers[0].json() == [[3 * HOLD, 0, 0, 0]]
    assert answers[1].json() == _doubled(1)
    assert answers[2].body == b"Healthy"


def test_garbage_behind_a_request_leaves_its_answer(served: Served) -> None:
    """Garbage behind a request that is being answered ends the connection, after the answer."""
    gate = served.gates["batched"]
    with served.server.connect() as connection:
        connection.send(scoring(served.path("batched"), PRIMARY, rows_body([HOLD, 0, 0, 0])))
        wait_until(lambda: gate.entered, "the script holds the request")
        connection.send(b"\x00garbage\r\n\r\n")
        assert served.server.get("/").status == 200
        gate.open()
        answer = connection.answer()
        connection.assert_ended()

    assert (answer.status, answer.closes) == (200, True)
    assert answer.json() == [[3 * HOLD, 0, 0, 0]]


@pytest.mark.parametrize("door", DOORS)
def test_a_body_longer_than_its_length_is_cut(served: Served, door: str) -> None:
    """The announced part is malformed JSON, and the rest is no request: the connection ends."""
    body = rows_body([1, 2, 3, 4])
    message = scoring(served.path("doubler"), PRIMARY, body[:-4], DOORS[door])
    with served.server.connect() as connection:
        answer = connection.ask(message + body[-4:])
        connection.assert_ended()

    assert (answer.status, answer.error_code(), answer.closes) == (400, "malformed_body", True)
    assert "not valid JSON" in answer.json()["message"]


def test_the_last_of_pipelined_requests_can_end_the_connection(served: Served) -> None:
    """`Connection: close` on the second request ends the connection after both answers."""
    with served.server.connect() as connection:
        connection.send(
            scoring(served.path("doubler"), PRIMARY, _row(1))
            + scoring(served.path("doubler"), PRIMARY, _row(2), [("Connection", "close")])
        )
        answers = [connection.answer() for _ in range(2)]
        connection.assert_ended()

    assert [answer.json() for answer in answers] == [_doubled(1), _doubled(2)]
    assert [answer.closes for answer in answers] == [False, True]


@pytest.mark.parametrize("cuts", [(), (1,), (5, 6, 7), (10, 20)])
def test_a_chunked_body_is_scored(served: Served, cuts: tuple[int, ...]) -> None:
    """`Transfer-Encoding: chunked` is read whole, however it is cut."""
    head = request("POST", served.path("doubler"), [bearer(PRIMARY), CHUNKED])
    with served.server.connect() as connection:
        answer = connection.ask(head + _chunks(_row(3), *cuts))
        connection.assert_open()

    assert (answer.status, answer.json()) == (200, _doubled(3))


@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_asks_first_gets_its_go_ahead(served: Served, door: str) -> None:
    """`Expect: 100-continue` is answered by 100, and then by the result."""
    message = scoring(served.path("doubler"), PRIMARY, _row(4), [("Expect", "100-continue"), *DOORS[door]])
    head, _, body = message.partition(b"\r\n\r\n")
    with served.server.connect() as connection:
        go_ahead = connection.ask(head + b"\r\n\r\n")
        answer = connection.ask(body)
        connection.assert_open()

    assert go_ahead.status == 100
    assert (answer.status, answer.json()) == (200, _doubled(4))


def test_a_client_that_asks_first_without_a_key_sends_no_body(served: Served) -> None:
    """The refusal comes instead of the go-ahead."""
    headers = [("Expect", "100-continue"), ("Content-Length", "5000000")]
    with served.server.connect() as connection:
        answer = connection.ask(request("POST", served.path("doubler"), headers))

    assert answer.status == 401
    assert answer.closes


@pytest.mark.parametrize("door", DOORS)
def test_connection_close_is_obeyed(served: Served, door: str) -> None:
    """A client that says so gets its connection ended, and told so."""
    with served.server.connect() as connection:
        answer = connection.ask(
            scoring(served.path("doubler"), PRIMARY, _row(5), [("Connection", "close"), *DOORS[door]])
        )
        connection.assert_ended()

    assert answer.json() == _doubled(5)
    assert answer.closes


def test_http_1_0_ends_its_connection(served: Served) -> None:
    """HTTP/1.0 clients get their answer, and its end is the connection's end."""
    with served.server.connect() as connection:
        answer = connection.ask(scoring(served.path("doubler"), PRIMARY, _row(6), version="1.0"))
        connection.assert_ended()

    assert answer.json() == _doubled(6)


@pytest.mark.parametrize("door", DOORS)
def test_a_request_may_come_byte_by_byte(served: Served, door: str) -> None:
    """However a request is cut into packets, it is one request."""
    message = scoring(served.path("doubler"), PRIMARY, _row(7), DOORS[door])
    with served.server.connect() as connection:
        for position in range(len(message)):
            connection.send(message[position : position + 1])
        answer = connection.answer()
        connection.assert_open()

    assert answer.json() == _doubled(7)


def test_two_requests_cut_anywhere_are_two_requests(served: Served) -> None:
    """A cut at any place of two pipelined requests changes nothing."""
    path = served.path("doubler")
    both = scoring(path, PRIMARY, _row(1)) + scoring(path, PRIMARY, _row(2))
    with served.server.connect() as connection:
        for cut in range(1, len(both), 7):
            connection.send(both[:cut])
            connection.send(both[cut:])
            assert [connection.answer().json(), connection.answer().json()] == [_doubled(1), _doubled(2)]


UPGRADE = [
    ("Connection", "Upgrade, HTTP2-Settings"),
    ("Upgrade", "h2c"),
    ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
]
"""The headers that Java's HttpClient sends with its first request over plain HTTP."""


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("cut", [None, "in the head", "after the head", "in the body"])
def test_an_offer_to_upgrade_is_declined_quietly(served: Served, cut: str | None, framing: str) -> None:
    """A client that would rather speak HTTP/2 is answered in HTTP/1.1, and so are its next requests."""
    path = served.path("doubler")
    message = scoring(path, PRIMARY, _row(11), UPGRADE)
    if framing == "chunked":
        message = request("POST", path, [bearer(PRIMARY), CHUNKED, *UPGRADE]) + _chunks(_row(11), 5)
    end_of_head = message.index(b"\r\n\r\n") + 4
    place = {
        None: len(message),
        "in the head": end_of_head - 20,
        "after the head": end_of_head,
        "in the body": end_of_head + 10,
    }[cut]
    with served.server.connect() as connection:
        connection.send(message[:place])
        if cut:
            # The server has read the first part: what it answers to another client came later.
            assert served.server.get("/").status == 200
        connection.send(message[place:] + request("GET", "/", UPGRADE) + request("GET", "/"))
        answers = [connection.answer() for _ in range(3)]
        connection.assert_open()

    assert [answer.status for answer in answers] == [200] * 3
    assert answers[0].json() == _doubled(11)
    assert [answer.body for answer in answers[1:]] == [b"Healthy"] * 2


def test_empty_lines_before_a_request_are_ignored(served: Served) -> None:
    """Old clients send a line end after a body (RFC 9112, section 2.2)."""
    message = scoring(served.path("doubler"), PRIMARY, _row(8))
    with served.server.connect() as connection:
        answers = [connection.ask(message), connection.ask(b"\r\n" + message)]

    assert [answer.json() for answer in answers] == [_doubled(8)] * 2


def _head(served: Served, *lines: str) -> bytes:
    start = f"POST {served.path('doubler')} HTTP/1.1"
    return "\r\n".join([start, "Host: x", f"Authorization: Bearer {PRIMARY}", *lines, "", ""]).encode(
        "latin-1"
    )


SMUGGLING = {
    "two different lengths": ("Content-Length: 5", "Content-Length: 6"),
    "two equal lengths": ("Content-Length: 5", "Content-Length: 5"),
    "a list of lengths": ("Content-Length: 5, 5",),
    "length and chunked": ("Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunked and length": ("Transfer-Encoding: chunked", "Content-Length: 5"),
    "a negative length": ("Content-Length: -5",),
    "a length with a plus": ("Content-Length: +5",),
    "a hexadecimal length": ("Content-Length: 0x5",),
    "a length that is no number": ("Content-Length: five",),
    "chunked not last": ("Transfer-Encoding: chunked, identity",),
    "a space before the colon": ("Content-Length : 5",),
    "a folded header": ("X-Folded: a\r\n b", "Content-Length: 5"),
}


@pytest.mark.parametrize("case", SMUGGLING)
def test_ambiguous_framing_ends_the_connection(served: Served, case: str) -> None:
    """Where two readers could disagree on a body's length, the request is refused and nothing after it is read."""
    hidden = request("GET", "/")
    with served.server.connect() as connection:
        connection.send(_head(served, *SMUGGLING[case]) + b"7 \r\n\r\n" + hidden)
        answer = connection.answer()
        connection.assert_ended()

    assert (answer.status, answer.error_code()) == (400, "malformed_body")
    assert answer.closes


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), id="TLS hello"),
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="SSH"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET\r\n\r\n", id="half a request line"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", id="a version to come"),
        pytest.param(b"G\xc3\x84T / HTTP/1.1\r\n\r\n", id="a method that is no token"),
        pytest.param(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", id="a header without a colon"),
        pytest.param(b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", id="a header with a zero"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\n\n" + b"\x80", id="bare line feeds"),
    ],
)
def test_bytes_that_are_no_http_end_the_connection(served: Served, garbage: bytes) -> None:
    """Another protocol on the port gets at most an error, and its connection ends."""
    with served.server.connect() as connection:
        connection.send(garbage)
        received = b""
        try:
            while data := connection.socket.recv(65536):
                received += data
        except ConnectionResetError:
            pass

    assert received == b"" or received.startswith(b"HTTP/1.1 400 "), received
    assert served.server.get("/").status == 200


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("sent_share", ["half the head", "no body", "half the body"])
def test_a_request_cut_short_by_half_closing_is_refused(served: Served, door: str, sent_share: str) -> None:
    """The answer to a client that ends its side in the middle of a request says that it was incomplete."""
    message = scoring(served.path("doubler"), PRIMARY, _row(9), DOORS[door])
    end_of_head = message.index(b"\r\n\r\n") + 4
    cut = {"half the head": end_of_head // 2, "no body": end_of_head, "half the body": len(message) - 6}
    with served.server.connect() as connection:
        connection.send(message[: cut[sent_share]])
        connection.socket.shutdown(socket.SHUT_WR)
        answer = connection.answer()
        connection.assert_ended()

    assert (answer.status, answer.error_code()) == (400, "malformed_body")


def _reset(connection: Connection) -> None:
    """End a connection by a reset, as a killed client does."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_goes_away_leaves_nothing_behind(served: Served, door: str, how: str) -> None:
    """Rows of callers that have gone become free, those that wait without running, and the next answers are right."""
    gate, path = served.gates["batched"], served.path("batched")
    running, waiting = served.server.connect(), served.server.connect()
    running.send(scoring(path, PRIMARY, rows_body([HOLD, 0, 0, 0]), DOORS[door]))
    wait_until(lambda: gate.entered, "the script holds the first request")
    # Batches of earlier tests are counted now: one is counted before the next begins.
    batches = served.server.metric("stoker_batch_rows_sum", model="batched")
    waiting.send(scoring(path, PRIMARY, rows_body(*([1] * 4 for _ in range(7))), DOORS[door]))
    wait_until(lambda: rows_in_flight(served.server)["batched"] == 8, "the second request waits")
    gone_before = served.server.metric("stoker_requests_total", model="batched", status="499")

    for connection in (waiting, running):
        match how:
            case "close":
                connection.socket.close()
            case "reset":
                _reset(connection)
    wait_until(
        lambda: (
            served.server.metric("stoker_requests_total", model="batched", status="499") == gone_before + 2
        ),
        "both callers are known to have gone",
    )
    gate.open()

    wait_until(lambda: rows_in_flight(served.server)["batched"] == 0, "their rows are free")
    assert served.server.score([1, 2, 3, 4], path=path).json() == [[3, 6, 9, 12]]

    def ran() -> float:
        return served.server.metric("stoker_batch_rows_sum", model="batched") - batches

    # A batch is counted when its answers have left.
    wait_until(lambda: ran() >= 2, "the first caller's row and the last request have run")
    assert ran() == 2


@pytest.mark.parametrize("door", DOORS)
def test_client_that_leaves_with_pipelined_requests_leaves_nothing_behind(served: Served, door: str) -> None:
    """The server notices it with the first answer, abandons the running request, and logs nothing."""
    gate, path = served.gates["batched"], served.path("batched")
    logged = len(served.server.output())
    connection = served.server.connect()
    first = scoring(path, PRIMARY, rows_body([HOLD, 0, 0, 0]), DOORS[door])
    connection.send(
        first + b"".join(scoring(path, PRIMARY, _row(number), DOORS[door]) for number in range(3))
    )
    wait_until(lambda: gate.entered, "the script holds the first request")
    _reset(connection)
    gate.open()
    wait_until(lambda: rows_in_flight(served.server)["batched"] == 0, "its row is free")
    assert served.server.score([1, 2, 3, 4], path=path).json() == [[3, 6, 9, 12]]
    assert "ERROR" not in served.server.output()[logged:]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_only_stops_sending_is_answered(served: Served, door: str, version: str) -> None:
    """Whole requests of a client that closes its sending half are answered; it is then asked to close the rest.

    In HTTP/1.1 an interim answer comes first, by which the server finds out that somebody is there.
    """
    gate, path = served.gates["batched"], served.path("batched")
    with served.server.connect() as connection:
        connection.send(scoring(path, PRIMARY, rows_body([HOLD, 0, 0, 0]), DOORS[door], version=version))
        wait_until(lambda: gate.entered, "the script holds the request")
        connection.socket.shutdown(socket.SHUT_WR)
        statuses = [connection.answer().status] if version == "1.1" else []
        gate.open()
        answer = connection.answer()
        connection.assert_ended()

    assert statuses == ([100] if version == "1.1" else [])
    assert (answer.status, answer.json(), answer.closes) == (200, [[3 * HOLD, 0, 0, 0]], True)


def test_pipelined_requests_of_a_client_that_stops_sending_are_answered(served: Served) -> None:
    """All that it has asked for before is answered, in order, and then the connection ends."""
    gate = served.gates["batched"]
    with served.server.connect() as connection:
        connection.send(
            scoring(served.path("batched"), PRIMARY, rows_body([HOLD, 0, 0, 0]))
            + scoring(served.path("doubler"), PRIMARY, _row(1))
        )
        connection.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: gate.entered, "the script holds the first request")
        gate.open()
        answers = [connection.answer()]
        while len(answers) < 2 or answers[-1].status == 100:
            answers.append(connection.answer())
        connection.assert_ended()

    bodies = [answer.json() for answer in answers if answer.status != 100]
    assert bodies == [[[3 * HOLD, 0, 0, 0]], _doubled(1)]


@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_goes_away_while_it_sends_leaves_nothing_behind(served: Served, door: str) -> None:
    """Half a body leased no row; the server goes on."""
    message = scoring(served.path("doubler"), PRIMARY, rows_body(*([1] * 4 for _ in range(50))), DOORS[door])
    for _ in range(20):
        connection = served.server.connect()
        connection.send(message[:-100])
        connection.socket.close()

    assert rows_in_flight(served.server)["doubler"] == 0
    assert served.server.score([1, 2, 3, 4], path=served.path("doubler")).json() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("door", DOORS)
def test_slow_reader_gets_all_and_delays_no_other(served: Served, door: str) -> None:
    """Requests of a client that reads no answers are not read for long, others are served, and none is lost."""
    text = "a" * 50_000
    message = scoring(served.path("body"), PRIMARY, b'{"return": "%b"}' % text.encode(), DOORS[door])
    with Connection(served.server.port, receive_buffer=4096) as connection:
        connection.socket.setblocking(False)
        sent = refusals = 0
        while refusals < 20:
            assert sent < 100_000_000, "the server reads on from a client that does not read"
            position = sent % len(message)
            try:
                sent += connection.socket.send(message[position:])
                refusals = 0
            except BlockingIOError:
                refusals += 1
                assert served.server.score([1, 2, 3, 4], path=served.path("doubler")).status == 200

        connection.socket.settimeout(PATIENCE_S)
        answers = [connection.answer() for _ in range(sent // len(message) - 1)]
        connection.send(message[sent % len(message) :])
        answers += [connection.answer() for _ in range(2)]
        connection.assert_open()

    assert {(answer.status, answer.json()) for answer in answers} == {(200, text)}
