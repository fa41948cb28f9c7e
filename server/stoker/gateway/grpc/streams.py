"""Calls of many messages: they wait while their caller takes no answers. Infer requests are the foremost of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from stoker.echo import cut
from stoker.errors import StokerError
from stoker.gateway.grpc.calls import Line, Method, RpcCall, closing, inflated_message
from stoker.gateway.grpc.framing import Message
from stoker.gateway.grpc.inquiry import Inquiry
from stoker.gateway.grpc.messages import ModelInferResponse, ModelStreamInferResponse
from stoker.gateway.grpc.responses import IS_FINAL, stream_answer

if TYPE_CHECKING:
    from stoker.gateway.grpc.heads import CallHead
    from stoker.gateway.grpc.infer import Scoring
    from stoker.wire.http2.fields import Fields
    from stoker.wire.http2.stream import Stream

__all__ = ["InferStream", "StreamedCall", "Streams"]

_MAX_REQUESTS: Final = 64
_UNSENT_BYTES: Final = 1 << 18
"""While a caller has so much of the answers left to take, no more messages of a stream are looked at."""
_UNTAKEN_BYTES: Final = 1 << 16
"""While a caller has so much of pieces left to take, no more are read of their scripts."""


class StreamedCall(RpcCall):
    """A call of many messages; a subclass says in `hear` what becomes of each."""

    __slots__ = ("_backlog", "_closing", "_inflating", "_received_all")

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self._backlog: deque[Message | StokerError] = deque()
        self._closing = self._received_all = False
        self._inflating: asyncio.Task[None] | None = None
        super().__init__(line, stream, head, method)
        stream.tells_drained = True
        self.watch_deadline()

    def hear(self, item: Message | StokerError) -> None:
        """Take a message that is not compressed, or the error in its place."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether no further message is to be looked at now."""
        return self._inflating is not None or self._stream.queued_bytes > _UNSENT_BYTES

    @property
    def complete(self) -> bool:
        """Whether all that was heard has been answered."""
        return True

    @property
    def arriving(self) -> bool:
        """Whether a message is there in part; between messages a caller may wait."""
        reader = self._reader
        return not (self.done or self._stream.held or reader is None or reader.between)

    def arrive(self, item: Message | StokerError) -> None:
        """Take a message when it is its turn."""
        self._backlog.append(item)
        self.advance()

    def drained(self) -> None:
        """Look at further messages."""
        self.advance()

    def end(self) -> None:
        """End when all has been answered."""
        self._received_all = True
        self.advance()

    def close(self) -> None:
        """End behind the answers to what has arrived."""
        self._closing = True
        self.advance()

    def advance(self) -> None:
        """Look at what has arrived, as far as that can be now; call this when something has been answered."""
        while self._backlog and not self.busy and not self.done:
            item = self._backlog.popleft()
            if isinstance(item, Message) and item.compressed:
                self._inflating = asyncio.ensure_future(self._inflate(item))
            else:
                self.hear(item)
        if self.done:
            return
        stream = self._stream
        if self.busy:
            stream.held = True
        elif stream.held:
            self.line.http.release(stream)
            self.line.flush_soon()
        if self.complete and not self._backlog and self._inflating is None:
            if self._received_all:
                self.succeed()
            elif self._closing:
                self.refuse(closing())

    async def _inflate(self, message: Message) -> None:
        item: Message | StokerError
        try:
            item = await inflated_message(self, message)
        except StokerError as error:
            item = error.with_traceback(None)
        self._inflating = None
        if self.done:
            _release(item)
            return
        self._backlog.appendleft(item)
        self.advance()

    def abandon(self) -> None:
        """Forget what has not been looked at."""
        if self._inflating is not None:
            self._inflating.cancel()

    def _finish(self) -> None:
        super()._finish()
        while self._backlog:
            _release(self._backlog.popleft())


def _release(item: Message | StokerError) -> None:
    if isinstance(item, Message) and item.hold is not None:
        item.hold.release()


class Streams:
    """The streams of infer requests of a server.

    Args:
        scoring: Answers requests.
        max_requests: How many requests of one stream are under way at once; it is not read further meanwhile.
    """

    def __init__(self, scoring: Scoring, max_requests: int = _MAX_REQUESTS) -> None:
        self.scoring = scoring
        self.max_requests = max_requests

    def check_key(self, authorization: bytes) -> StokerError | None:
        """See `Scoring.check_key`."""
        return self.scoring.check_key(authorization)


class _Place:
    """The place of an answer among those of its stream: what it is, once it is there."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: bytes | None = None


class InferStream(StreamedCall):
    """A stream of infer requests: scored side by side, answered in their order. `Streams` answers its method.

    Answers that come in pieces have no place in that order: each piece is sent when it is there.
    """

    __slots__ = ("_in_pieces", "_places", "_places_of", "_taken")

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self._places: deque[_Place] = deque()
        self._places_of: dict[Inquiry, _Place] = {}
        self._in_pieces: set[Inquiry] = set()
        self._taken: asyncio.Event | None = None
        super().__init__(line, stream, head, method)

    @property
    def busy(self) -> bool:
        """Whether there are as many requests under way as may be."""
        streams: Streams = self.method.answer
        return len(self._places) + len(self._in_pieces) >= streams.max_requests or super().busy

    @property
    def complete(self) -> bool:
        """Whether every request has been answered."""
        return not self._places and not self._in_pieces

    def check(self) -> None:
        """Refuse a caller without a key."""
        if not self.done:
            error = self.method.answer.check_key(self.authorization)
            if error is not None:
                self.give_up(error)

    def hear(self, item: Message | StokerError) -> None:
        """Score a request, or answer that it was none."""
        inquiry = Inquiry(self, self, item.hold if isinstance(item, Message) else None)
        place = _Place()
        self._places.append(place)
        self._places_of[inquiry] = place
        if isinstance(item, Message):
            inquiry.ask(self.method.answer.scoring, item.content)
        else:
            inquiry.refuse(item)

    def begin_pieces(self, inquiry: Inquiry) -> None:
        """Let those behind it be answered before it."""
        self._places.remove(self._places_of.pop(inquiry))
        self._in_pieces.add(inquiry)

    def piece(self, inquiry: Inquiry, content: bytes) -> None:
        """Send a piece."""
        if inquiry in self._in_pieces:
            self.send(content)

    async def room(self) -> None:
        """Wait until the caller has taken what was sent, once that is much."""
        while self._stream.queued_bytes > _UNTAKEN_BYTES and not self.done:
            self._taken = self._taken or asyncio.Event()
            self._taken.clear()
            await self._taken.wait()

    def drained(self) -> None:
        """Go on with pieces, and look at further messages."""
        if self._taken is not None:
            self._taken.set()
        super().drained()

    def answered(self, inquiry: Inquiry, content: bytes) -> None:
        """Send an answer, in its turn; behind pieces the last one, if there is to be one."""
        self._put(inquiry, stream_answer(content) if content else b"")

    def refused(self, inquiry: Inquiry, fields: Fields, text: str) -> None:
        """Answer with an error, in its turn."""
        request = inquiry.request
        named = None
        if request is not None:
            named = ModelInferResponse(model_name=cut(request.model_name), id=request.id)
            if inquiry in self._in_pieces:
                _explain(named, dict(fields))
        answer = ModelStreamInferResponse(error_message=text, infer_response=named)
        self._put(inquiry, answer.SerializeToString())

    def _put(self, inquiry: Inquiry, answer: bytes) -> None:
        if inquiry in self._in_pieces:
            self._in_pieces.discard(inquiry)
            if answer:
                self.send(answer)
            self.advance()
            return
        place = self._places_of.pop(inquiry, None)
        if place is None or self.done:
            return
        place.answer = answer
        places = self._places
        while places and places[0].answer is not None:
            self.send(places.popleft().answer or b"")
        self.advance()

    def abandon(self) -> None:
        """Give the rows of all requests up."""
        super().abandon()
        for inquiry in (*self._places_of, *self._in_pieces):
            inquiry.abandon()


def _explain(named: Any, fields: Mapping[bytes, bytes]) -> None:
    """Say in parameters what no trailing metadata say, as the stream goes on, and that no more pieces come."""
    named.parameters[IS_FINAL].bool_param = True
    for name in (b"error-code", b"error-id"):
        if name in fields:
            named.parameters[name.decode().replace("-", "_")].string_param = fields[name].decode("latin-1")
