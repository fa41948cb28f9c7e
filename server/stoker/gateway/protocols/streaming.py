"""Answers that come piece by piece: started by any protocol, and sent over HTTP as events or lines."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stoker.gateway.http.responses import Answer, split_lines
from stoker.gateway.protocols.endpoint import ScoringRequest, begin_scoring, disconnected
from stoker.gateway.scoring.piecewise import PiecewiseAnswer

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from stoker.gateway.scoring.service import Service
    from stoker.gateway.scoring.streams import ScriptStreams

__all__ = [
    "EventFormat",
    "PieceFormat",
    "format_for",
    "piecewise",
    "score_and_stream",
]

_OK: Final = 200


class PieceFormat(ABC):
    """How pieces are written one after the other."""

    media_type: bytes

    @abstractmethod
    def piece(self, content: bytes) -> bytes:
        """Return a piece, which is JSON without line breaks, as it is sent."""

    @abstractmethod
    def error(self, content: bytes) -> bytes:
        """Return an error that follows pieces, given its JSON."""


class EventFormat(PieceFormat):
    """Server-sent events (HTML Living Standard, section 9.2)."""

    media_type = b"text/event-stream"

    def piece(self, content: bytes) -> bytes:
        """Return a piece as an event."""
        return b"data: %b\n\n" % content

    def error(self, content: bytes) -> bytes:
        """Return an error as an event of type `error`."""
        return b"event: error\ndata: %b\n\n" % content


class _Lines(PieceFormat):
    """One JSON text per line."""

    media_type = b"application/x-ndjson"

    def piece(self, content: bytes) -> bytes:
        return content + b"\n"

    def error(self, content: bytes) -> bytes:
        return b'{"error": %b}\n' % content


_EVENTS: Final = EventFormat()
_LINES: Final = _Lines()


def format_for(headers: Mapping[bytes, bytes]) -> PieceFormat | None:
    """Return the format that `Accept` asks for: lines unless it names events.

    None for a single list, if it names plain JSON.
    """
    accepted = headers.get(b"accept", b"*/*").lower()
    if _EVENTS.media_type in accepted:
        return _EVENTS
    if b"application/json" in accepted and b"json" not in accepted.replace(b"application/json", b""):
        return None
    return _LINES


@contextmanager
def piecewise(service: Service, request: ScoringRequest, streams: ScriptStreams) -> Iterator[PiecewiseAnswer]:
    """Score, and give access to the answer as it is made; leaving the `with` block tells the script to stop.

    Args:
        service: Whose script yields.
        request: The request, with its head.
        streams: Where the pieces of scripts arrive.
    """
    assert request.head is not None, "scripts that yield want it"
    expected = streams.expect()
    try:
        head = replace(request.head, stream=expected.place)
        call, answered = begin_scoring(service, request._replace(head=head))
        try:
            yield PiecewiseAnswer(call, answered, expected)
        finally:
            call.abandon()
    finally:
        expected.close()


async def score_and_stream(
    service: Service,
    request: ScoringRequest,
    receive: Receive,
    send: Send,
    form: PieceFormat,
    lines: bytes,
    streams: ScriptStreams,
) -> Answer | None:
    """Score, and send each piece of the answer when it arrives.

    Args:
        service: Whose script yields.
        request: The request, with its head.
        receive: Tells that the caller has disconnected.
        send: Sends; waits while the caller does not read.
        form: The format of the pieces.
        lines: Further header lines.
        streams: Where the pieces of scripts arrive.

    Returns:
        An answer that is still to be sent, where there were no pieces; None if the caller has been answered, or
            gone.
    """
    # Proxies would otherwise buffer pieces.
    start = b"content-type: %b\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n" % form.media_type
    start += request.ids.lines + lines
    with piecewise(service, request, streams) as answer:
        sending = asyncio.ensure_future(_sent(answer, form, send, start))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            return sending.result() if sending.done() else None
        finally:
            gone.cancel()
            sending.cancel()


async def _sent(pieces: PiecewiseAnswer, form: PieceFormat, send: Send, lines: bytes) -> Answer | None:
    """Send the header lines and all pieces, and after them an error if there is one.

    Returns:
        The answer where nothing was yielded, which has not been sent: an error, or nothing; else None.
    """
    if not await pieces.begin():
        answer = await pieces.end()
        return Answer(_OK, lines + b"content-length: 0\r\n", b"") if answer.status == _OK else answer
    await send({"type": "http.response.start", "status": _OK, "headers": split_lines(lines)})
    while (piece := await pieces.next()) is not None:
        await send({"type": "http.response.body", "body": form.piece(piece), "more_body": True})
    end = await pieces.end()
    last = b"" if end.status == _OK else form.error(end.body)
    await send({"type": "http.response.body", "body": last, "more_body": False})
    return None
