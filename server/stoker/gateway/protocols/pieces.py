"""Answers in pieces: their formats over HTTP, and sending each piece when it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from starlette.types import Send

from stoker.gateway.http.responses import Answer, split_lines
from stoker.gateway.protocols.endpoint import OK, ScoringRequest, UnreadRequest, begin_scoring, disconnected
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.streams import PiecewiseAnswer

if TYPE_CHECKING:
    from stoker.gateway.scoring.streams import ScriptStreams


class PieceFormat:
    """How pieces, which are JSON without line breaks, are written one after the other."""

    def __init__(self, media_type: bytes, piece: bytes, error: bytes) -> None:
        self.media_type, self._piece, self._error = media_type, piece, error

    def piece(self, content: bytes) -> bytes:
        """Return a piece as it is sent."""
        return self._piece % content

    def error(self, content: bytes) -> bytes:
        """Return an error that follows pieces, given its JSON."""
        return self._error % content


EVENTS: Final = PieceFormat(b"text/event-stream", b"data: %b\n\n", b"event: error\ndata: %b\n\n")
"""Server-sent events (HTML Living Standard, section 9.2)."""
_LINES: Final = PieceFormat(b"application/x-ndjson", b"%b\n", b'{"error": %b}\n')
"""One JSON text per line."""


def format_for(headers: Mapping[bytes, bytes]) -> PieceFormat | None:
    """Return the format that `Accept` names: events, else lines; None for one list, if it names plain JSON."""
    accepted = headers.get(b"accept", b"*/*").lower()
    if EVENTS.media_type in accepted:
        return EVENTS
    if b"application/json" in accepted and b"json" not in accepted.replace(b"application/json", b""):
        return None
    return _LINES


@contextmanager
def piecewise(service: Service, request: ScoringRequest, streams: ScriptStreams) -> Iterator[PiecewiseAnswer]:
    """Score, and read the answer piece by piece; leaving the `with` block stops the script."""
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
    unread: UnreadRequest, request: ScoringRequest, form: PieceFormat, lines: bytes, streams: ScriptStreams
) -> Answer | None:
    """Score, and send each piece when it arrives; return an answer to send if there was none, else None."""
    # Proxies would otherwise buffer pieces.
    start = b"content-type: %b\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n" % form.media_type
    start += request.ids.lines + lines
    with piecewise(unread.service, request, streams) as answer:
        sending = asyncio.ensure_future(_send_pieces(answer, form, unread.send, start))
        gone = asyncio.ensure_future(disconnected(unread.receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            return sending.result() if sending.done() else None
        finally:
            gone.cancel()
            sending.cancel()


async def _send_pieces(pieces: PiecewiseAnswer, form: PieceFormat, send: Send, lines: bytes) -> Answer | None:
    """Send header lines, all pieces, and an error after them; return an answer to send if there were no pieces."""
    if not await pieces.begin():
        answer = await pieces.end()
        return Answer(OK, lines + b"content-length: 0\r\n", b"") if answer.status == OK else answer
    await send({"type": "http.response.start", "status": OK, "headers": split_lines(lines)})
    while (piece := await pieces.next()) is not None:
        await send({"type": "http.response.body", "body": form.piece(piece), "more_body": True})
    end = await pieces.end()
    last = b"" if end.status == OK else form.error(end.body)
    await send({"type": "http.response.body", "body": last, "more_body": False})
    return None
