"""Answers in pieces: reading them, without I/O, and the iterators for callers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Final, Self

from stoker_client.answers import Json, Reply, decode_json, error_behind
from stoker_client.steps import Flow, Piece

if TYPE_CHECKING:
    from stoker_client.flow import ServiceCalls
    from stoker_client.urgency import Urgency

__all__ = ["AsyncPieces", "Pieces", "pieces_of"]

_LINES: Final = "application/x-ndjson"
_EVENTS: Final = "text/event-stream"


def pieces_of(calls: ServiceCalls, body: object, urgency: Urgency, *, events: bool) -> Flow[None]:
    """Post a JSON body, and yield a `Piece` for each piece of the answer as it arrives.

    A connection that is lost after the beginning of the answer is not tried again: the caller already has pieces.

    Args:
        calls: The calls to the service.
        body: The body.
        urgency: The request's urgency, which applies to the first piece.
        events: Whether pieces are sent as server-sent events instead of lines of JSON.
    """
    reply = yield from calls.open(body, urgency, _EVENTS if events else _LINES)
    try:
        reader = _reader_of(reply)
        while content := (yield from calls.read()):
            for piece in reader.feed(content):
                yield Piece(piece)
        for piece in reader.rest():
            yield Piece(piece)
    finally:
        if reply.on_read is not None:
            reply.on_read()


class _Reader(ABC):
    """Reads the content of a reply; `feed` and `rest` return complete pieces, and raise `ErrorAnswer`."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._part = bytearray()

    def feed(self, content: bytes) -> Iterator[Json]:
        """The pieces that are whole with this."""
        end = content.rfind(b"\n") + 1
        if not end:
            self._part += content
            return
        lines, self._part = bytes(self._part) + content[:end], bytearray(content[end:])
        for line in lines.split(b"\n")[:-1]:
            yield from self.line(line.removesuffix(b"\r"))

    def rest(self) -> Iterator[Json]:
        """The pieces that are whole with the end."""
        if self._part:
            yield from self.line(bytes(self._part))

    @abstractmethod
    def line(self, line: bytes) -> Iterator[Json]:
        """The pieces that are whole with a line."""

    def decoded(self, content: bytes) -> Json:
        """A piece."""
        return decode_json(Reply(self._reply.status, content, self._reply.headers))


class _LineReader(_Reader):
    """Lines of JSON; an error is the last line, an object with the member `error` alone."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._last: Json = None

    def line(self, line: bytes) -> Iterator[Json]:
        yield from self._release_last()
        if line:
            piece = self.decoded(line)
            if _may_be_error(piece):
                self._last = piece
            else:
                yield piece

    def rest(self) -> Iterator[Json]:
        yield from super().rest()
        if self._last is not None:
            raise error_behind(self._reply, self._last["error"])

    def _release_last(self) -> Iterator[Json]:
        """Return a piece that looked like an error, now that something follows it."""
        held, self._last = self._last, None
        if held is not None:
            yield held


def _may_be_error(piece: Json) -> bool:
    return isinstance(piece, dict) and piece.keys() == {"error"} and _is_error(piece["error"])


def _is_error(piece: Json) -> bool:
    return isinstance(piece, dict) and isinstance(piece.get("message"), str)


class _EventReader(_Reader):
    """Reads server-sent events (HTML Living Standard, section 9.2.6); the event `error` is a failure."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._kind, self._data = b"", list[bytes]()

    def line(self, line: bytes) -> Iterator[Json]:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if line:
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._kind = value
            return
        kind, data = self._kind, b"\n".join(self._data)
        self._kind, self._data = b"", []
        if kind == b"error":
            raise error_behind(self._reply, self.decoded(data))
        if data and kind in (b"", b"message"):
            yield self.decoded(data)


class _WholeReader(_Reader):
    """Reads an answer that is a single piece, of a script that returns."""

    def feed(self, content: bytes) -> Iterator[Json]:
        self._part += content
        return iter(())

    def line(self, line: bytes) -> Iterator[Json]:
        yield self.decoded(line)


def _reader_of(reply: Reply) -> _Reader:
    media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return {_LINES: _LineReader, _EVENTS: _EventReader}.get(media_type, _WholeReader)(reply)


class Pieces(Iterator[Json]):
    """The pieces of an answer as they arrive; the request is sent for the first one.

    Use it as a context manager, or call `close`, if you leave it before its end: the server then closes the script's
    generator.
    """

    def __init__(self, pieces: Generator[Json, None, None]) -> None:
        self._pieces = pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Json:
        return next(self._pieces)

    def close(self) -> None:
        """Take no more of them."""
        self._pieces.close()


class AsyncPieces(AsyncIterator[Json]):
    """The same for asynchronous code; left before its end, it has to be closed, or used as a context manager."""

    def __init__(self, pieces: AsyncGenerator[Json, None]) -> None:
        self._pieces = pieces

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __anext__(self) -> Json:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Take no more of them."""
        await self._pieces.aclose()
