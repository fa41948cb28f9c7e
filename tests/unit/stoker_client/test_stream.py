"""Answers that come piece by piece: requests, reading, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from tests.unit.stoker_client.scripted import URI, Caller, Kind, Timeline, error, is_description, ok

from stoker_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    ModelFailed,
    Overloaded,
    ServiceFailed,
    StokerClientError,
    TimedOut,
    UnexpectedAnswer,
)

FAILED = {"message": "it failed", "code": "model_failed", "error_id": "00"}


class Content(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Content that comes in parts, or fails between them; knows whether it was closed."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.parts = parts
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def lines(*parts: bytes | Exception) -> Any:
    return answered("application/x-ndjson", *parts)


def events(*parts: bytes | Exception) -> Any:
    return answered("text/event-stream; charset=utf-8", *parts)


def answered(media_type: str, *parts: bytes | Exception, content: Content | None = None) -> Any:
    """An event that answers with content of its own."""
    headers = {"content-type": media_type, "x-ms-request-id": "r-1"}
    return lambda _: httpx.Response(200, headers=headers, stream=content or Content(*parts))


class Streamer(Caller):
    """Streams one answer; `pieces` are the received ones, before any error."""

    def __init__(self, kind: Kind, *script: Any, **options: Any) -> None:
        super().__init__(kind, script, **options)
        self.pieces: list[Any] = []

    def stream(self, body: object = None, most: int = 100, **keywords: Any) -> list[Any]:
        """The pieces, and no more than so many."""
        transport = httpx.MockTransport(self.answer)
        if self.kind == "sync":
            options = {"sleep": self.timeline.sleep, "transport": transport, **self.options}
            with Client(self.uri, **options) as client, client.stream(body, **keywords) as pieces:
                for piece in pieces:
                    self.pieces.append(piece)
                    if len(self.pieces) == most:
                        break
            return self.pieces

        async def stream() -> None:
            options = {"sleep": self.timeline.sleep_async, "transport": transport, **self.options}
            async with AsyncClient(self.uri, **options) as client, client.stream(body, **keywords) as pieces:
                async for piece in pieces:
                    self.pieces.append(piece)
                    if len(self.pieces) == most:
                        break

        anyio.run(stream)
        return self.pieces


def test_lines_are_read_across_any_cuts(kind: Kind) -> None:
    """One JSON text each; the last one may lack its end."""
    streamer = Streamer(kind, lines(b'{"a"', b": 1}\n2\n", b"\n", b"[", b'"\xc3\xa9"]\nnull'), key="KEY")
    assert streamer.stream({"prompt": "once"}) == [{"a": 1}, 2, ["é"], None]
    (request,) = streamer.requests
    assert (request.headers["accept"], request.headers["authorization"]) == (
        "application/x-ndjson",
        "Bearer KEY",
    )
    assert json.loads(request.content) == {"prompt": "once"}


def test_events_are_read_as_browsers_read_them(kind: Kind) -> None:
    """Comments and other kinds are passed over, data of several lines belong together."""
    streamer = Streamer(
        kind,
        events(b": hi\n\ndata: 1\r\n\r", b"\ndata:{\ndata:}\n\nevent: ping\ndata: 3\n\nid: 7\ndata: 4\n\n"),
    )
    assert streamer.stream(events=True) == [1, {}, 4]
    assert streamer.requests[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("form", ["lines", "events"])
def test_an_error_behind_pieces_has_its_class(kind: Kind, form: str) -> None:
    """The pieces before it have come."""
    failure = json.dumps(FAILED).encode()
    event = (
        lines(b'1\n{"error": %b}\n' % failure)
        if form == "lines"
        else events(b"data: 1\n\nevent: error\ndata: %b\n\n" % failure)
    )
    streamer = Streamer(kind, event)
    with pytest.raises(ModelFailed, match="it failed") as caught:
        streamer.stream(events=form == "events")
    assert streamer.pieces == [1]
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (200, "model_failed", "r-1")


def test_unknown_error_is_raised(kind: Kind) -> None:
    """It has the parts that the answer has."""
    with pytest.raises(ServiceFailed, match="odd") as caught:
        Streamer(kind, lines(b'{"error": {"message": "odd"}}\n')).stream()
    assert caught.value.code is None
    with pytest.raises(ServiceFailed, match="behind pieces"):
        Streamer(kind, events(b"event: error\ndata: 7\n\n")).stream(events=True)


def test_error_shaped_piece_before_others_is_a_piece(kind: Kind) -> None:
    """Only the last line can be an error; other lines of that shape are pieces."""
    script = b'{"error": {"message": "m"}}\n{"error": "text"}\n{"error": {"message": "m"}, "more": 1}\n'
    assert len(Streamer(kind, lines(script)).stream()) == 3


def test_failed_stream_is_retried_only_before_its_first_piece(kind: Kind) -> None:
    """A stream is retried until its caller has had a piece."""
    streamer = Streamer(kind, error(503, "overloaded"), lines(b"1\n"))
    assert streamer.stream() == [1]
    assert len(streamer.pauses_s) == 1
    streamer = Streamer(kind, error(503, "overloaded"), retries=0)
    with pytest.raises(Overloaded):
        streamer.stream()
    for failure, kind_of_error in (
        (httpx.ReadError("reset"), ConnectionFailed),
        (httpx.ReadTimeout("late"), TimedOut),
    ):
        streamer = Streamer(kind, lines(b"1\n", failure))
        with pytest.raises(kind_of_error) as caught:
            streamer.stream()
        assert (streamer.pieces, len(streamer.requests)) == ([1], 1)
        assert isinstance(caught.value, StokerClientError)


def test_an_answer_that_is_no_stream_is_one_piece(kind: Kind) -> None:
    """A script that returns gives one piece, an empty answer none, and an answer without JSON an error."""
    assert Streamer(kind, ok([1, 2])).stream() == [[1, 2]]
    assert Streamer(kind, lines()).stream() == []
    assert Streamer(kind, httpx.Response(204)).stream() == []
    with pytest.raises(UnexpectedAnswer):
        Streamer(kind, lines(b"<html>\n")).stream()


def test_leaving_early_closes_the_answer(kind: Kind) -> None:
    """So the server hears of it, and nothing more is read."""
    content = Content(b"1\n", b"2\n", RuntimeError("read on"))
    streamer = Streamer(kind, answered("application/x-ndjson", content=content))
    assert streamer.stream(most=1) == [1]
    assert content.closed


def test_a_server_is_busy_until_its_pieces_have_been_read(kind: Kind) -> None:
    """Of two servers, the other one gets the requests in the meantime."""
    uris = [URI, URI.replace("8080", "8081")]
    ports: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if is_description(request):
            return error(404, "not_found")
        ports.append(request.url.port or 0)
        return lines(b"1\n", b"2\n")(request) if len(ports) == 1 else ok()

    options: dict[str, Any] = {"transport": httpx.MockTransport(answer), "jitter": lambda: 0.5}
    if kind == "sync":
        with Client(uris, clock=Timeline().clock, **options) as client:
            pieces = client.stream({})
            next(pieces)
            client.score([[1]]), client.score([[1]])
            assert list(pieces) == [2]
            client.score([[1]])
    else:

        async def ask() -> None:
            async with AsyncClient(uris, clock=Timeline().clock, **options) as client:
                pieces = client.stream({})
                await anext(pieces)
                await client.score([[1]])
                await client.score([[1]])
                assert [piece async for piece in pieces] == [2]
                await client.score([[1]])

        anyio.run(ask)
    first, second = ports[0], ports[1]
    assert ports == [first, second, second, first]


def test_each_piece_has_the_time_of_a_call(kind: Kind) -> None:
    """However little was left of it when the answer began."""
    waits: list[Any] = []
    streamer = Streamer(kind, error(503, "overloaded", retry_after="9"), timeout_s=10)

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])

        class Noting(Content):
            def __iter__(self) -> Iterator[bytes]:
                waits.append(request.extensions["timeout"]["read"])
                return super().__iter__()

        return answered("application/x-ndjson", content=Noting(b"1\n"))(request)

    streamer.script = iter([*streamer.script, answer])
    assert streamer.stream() == [1]
    assert (waits[0] < 1.1, waits[1]) == (True, 10)
