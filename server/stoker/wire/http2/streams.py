"""Streams of a connection and their sending side: no faster than the client and its socket accept."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from stoker.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD,
    INITIAL_WINDOW_BYTES,
    LARGEST_WINDOW_BYTES,
    SMALLEST_MAX_FRAME_BYTES,
    STREAM_WINDOW_BYTES,
    ConnectionFault,
    ErrorCode,
    Kind,
    StreamFault,
    rst_stream,
)
from stoker.wire.http2.tolerance import Tolerance


class Receiver(Protocol):
    """Receives the request of a stream. Its methods do not raise."""

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Receive some of the content; `ended` with the last part."""

    def end(self) -> None:
        """Note that the content has ended without a further part."""

    def lost(self) -> None:
        """Note that nobody waits for the answer any more; nothing can be sent."""

    def drained(self) -> None:
        """Note that everything queued has been sent; called if `Stream.notifies_drained` is set."""


class _Nobody:
    """Ignores everything that comes for a stream that has ended."""

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Ignore it."""

    def end(self) -> None:
        """Ignore it."""

    lost = drained = end


NOBODY: Final = _Nobody()
"""The receiver of streams that have ended: otherwise stream and receiver would be a reference cycle."""


class Stream:
    """A request and its answer.

    Attributes:
        receiver: Receives the request, while the stream is open.
        ended: Whether the client has sent all of its side.
        held: Whether the client gets no new room, until `Connection.release`.
        received_bytes: Received bytes for which the client has not been given new room.
        left_bytes: The rest of the content by its content-length; None without one.
        window_bytes: How much may be sent now; negative if the client has made its window smaller.
        queue: Frames to send: kind and payload.
        sent_bytes: How much of the queue has been sent so far.
        answered: Whether the last frame of the answer is queued or sent.
        notifies_drained: Whether the receiver is notified when the queue is empty again.
    """

    __slots__ = (
        "answered",
        "ended",
        "held",
        "left_bytes",
        "notifies_drained",
        "number",
        "queue",
        "queued_bytes",
        "received_bytes",
        "receiver",
        "sent_bytes",
        "window_bytes",
    )

    def __init__(self, number: int, window_bytes: int, left_bytes: int | None) -> None:
        self.number = number
        self.receiver: Receiver = NOBODY
        self.window_bytes = window_bytes
        self.left_bytes = left_bytes
        self.ended = False
        self.held = False
        self.received_bytes = 0
        self.queue: deque[tuple[int, bytes | memoryview]] | None = None
        self.queued_bytes = self.sent_bytes = 0
        self.answered = False
        self.notifies_drained = False

    def check(self, size_bytes: int, content_bytes: int, ended: bool) -> None:
        """Raise StreamFault for content beyond a held stream's room, or contrary to the content-length.

        `size_bytes` counts padding, `content_bytes` does not.
        """
        if self.held and self.received_bytes + size_bytes > STREAM_WINDOW_BYTES:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more than there is room for")
        if self.left_bytes is not None:
            self.left_bytes -= content_bytes
            if self.left_bytes < 0 or (ended and self.left_bytes):
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content is not as long as its content-length")

    def check_end(self, *, fields_follow: bool = False) -> None:
        """Note fields after the request, which end it unless `fields_follow`; raise StreamFault if it may not end."""
        if self.ended:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "fields behind the end")
        if fields_follow or self.left_bytes:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "fields before the end")
        self.ended = True


_DATA: Final = int(Kind.DATA)
_HEADERS: Final = int(Kind.HEADERS)
_LAST: Final = END_STREAM | END_HEADERS
_TRAILERS: Final = -1
"""The kind of queued HEADERS that end a stream."""
_TURN_BYTES: Final = 1 << 18
_MOST_DROPPED: Final = 512
_EARNED_BY_ANSWER: Final = 4
_EARNED_BY_DATA: Final = 2
_EARNING_BYTES: Final = 1024


class Sender:
    """The sending side of one connection.

    Attributes:
        out: Frames to write to the socket, in order; the owner removes them.
        writable: Whether the socket accepts more; set by the owner.
        tolerance: The useless frames that are left to the client.
    """

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.writable = True
        self.streams: dict[int, Stream] = {}
        self.tolerance = Tolerance()
        self._window_bytes = INITIAL_WINDOW_BYTES
        self._stream_window_bytes = INITIAL_WINDOW_BYTES
        self._frame_bytes = SMALLEST_MAX_FRAME_BYTES
        self._waiting: dict[Stream, None] = {}
        self._dropped: dict[int, None] = {}

    @property
    def sending(self) -> bool:
        """Whether anything can be sent as soon as the socket accepts it."""
        return bool(self._waiting) and self._window_bytes > 0

    def answer(self, stream: Stream, block: bytes, content: bytes, trailers: bytes) -> None:
        """Send a whole answer, with encoded head and trailers, to a stream that has none yet."""
        size, number = len(content), stream.number
        if number not in self.streams:
            return
        if (
            size <= stream.window_bytes
            and size <= self._window_bytes
            and size <= self._frame_bytes
            and not self._waiting
            and self.writable
        ):
            self._window_bytes -= size
            self.tolerance.resets += _EARNED_BY_ANSWER
            self.out.append(
                b"".join(
                    (
                        HEAD.pack(len(block) << 8 | _HEADERS, END_HEADERS, number),
                        block,
                        HEAD.pack(size << 8, 0, number),
                        content,
                        HEAD.pack(len(trailers) << 8 | _HEADERS, _LAST, number),
                        trailers,
                    )
                )
            )
            self._end(stream)
            return
        self.begin_answer(stream, block)
        self.send(stream, content)
        self.end_answer(stream, trailers)

    def begin_answer(self, stream: Stream, block: bytes) -> None:
        """Send the head of an answer whose content comes later."""
        self._queue(stream, _HEADERS, block)

    def send(self, stream: Stream, content: bytes) -> None:
        """Send more of the content of an answer."""
        self._queue(stream, _DATA, content)

    def end_answer(self, stream: Stream, trailers: bytes) -> None:
        """End an answer with these fields; they are the whole answer if nothing was sent before."""
        stream.answered = True
        self._queue(stream, _TRAILERS, trailers)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Give up a stream."""
        self.out.append(rst_stream(stream.number, code))
        self._drop(stream.number)
        self._lose(stream)

    def pump(self) -> None:
        """Send as much of the queues as is possible now and fits one write, stream by stream."""
        turn_bytes = _TURN_BYTES
        while self._waiting and self.writable and turn_bytes > 0:
            stream = next(iter(self._waiting))
            sent_bytes = self._send_frame(stream)
            if sent_bytes is None:
                # The connection's window is used up.
                return
            turn_bytes -= sent_bytes

    def _queue(self, stream: Stream, kind: int, payload: bytes) -> None:
        if stream.number not in self.streams:
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append((kind, payload))
        stream.queued_bytes += len(payload)
        self._waiting[stream] = None
        self.pump()

    def _send_frame(self, stream: Stream) -> int | None:
        """Send the next frame of a stream, and put the stream last; None if no content can be sent."""
        queue = stream.queue
        assert queue, "waiting streams have something to send"
        kind, payload = queue[0]
        size, flags = len(payload), END_HEADERS
        if kind == _DATA:
            flags = 0
            if size:
                if self._window_bytes <= 0:
                    return None
                size = min(size, self._window_bytes, stream.window_bytes, self._frame_bytes)
                if size <= 0:
                    # It waits for a WINDOW_UPDATE.
                    del self._waiting[stream]
                    return 0
            self._window_bytes -= size
            stream.window_bytes -= size
            if size == len(payload) and isinstance(payload, bytes):
                # A whole message of any size, for which the client will give room back.
                self.tolerance.patience += _EARNED_BY_ANSWER
                self.tolerance.resets += _EARNED_BY_ANSWER
            elif size >= _EARNING_BYTES:
                # Only large parts count: a client that gives little room gets as many frames as it likes.
                self.tolerance.patience += _EARNED_BY_DATA
                self.tolerance.resets += _EARNED_BY_DATA
        elif kind == _TRAILERS:
            kind, flags = _HEADERS, _LAST
        self.out += (HEAD.pack(size << 8 | kind, flags, stream.number), bytes(payload[:size]))
        stream.queued_bytes -= size
        stream.sent_bytes += size
        del self._waiting[stream]
        if size < len(payload):
            queue[0] = (kind, memoryview(payload)[size:])
        else:
            queue.popleft()
        if flags == _LAST:
            self._end(stream)
        elif queue:
            self._waiting[stream] = None
        elif stream.notifies_drained and kind == _DATA:
            # Not after a head: content follows, before which nothing may end the answer.
            stream.receiver.drained()
        return size + HEAD.size

    def _end(self, stream: Stream) -> None:
        """Forget an answered stream."""
        stream.answered = True
        stream.receiver = NOBODY
        self.tolerance.patience += _EARNED_BY_ANSWER
        del self.streams[stream.number]
        if not stream.ended:
            # The rest of the request is useless (RFC 9113, section 8.1).
            self.out.append(rst_stream(stream.number, ErrorCode.NO_ERROR))
            self._drop(stream.number)

    def _lose(self, stream: Stream) -> None:
        """Forget a stream that will not be answered, and notify its receiver."""
        self.streams.pop(stream.number, None)
        self._waiting.pop(stream, None)
        receiver, stream.receiver = stream.receiver, NOBODY
        receiver.lost()

    def _drop(self, number: int) -> None:
        """Remember a stream of which more may be in flight, which is not a fault."""
        self._dropped[number] = None
        if len(self._dropped) > _MOST_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def _widen(self, more_bytes: int) -> None:
        """Widen the connection's window; raise ConnectionFault for an increment of 0 or too large a window."""
        if not more_bytes:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "window grows by nothing")
        self._window_bytes += more_bytes
        if self._window_bytes > LARGEST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window is too large")
        self.pump()

    def _widen_stream(self, stream: Stream, more_bytes: int) -> bool:
        """Widen a stream's window; return False for an increment of 0 or a window that is too large."""
        stream.window_bytes += more_bytes
        if not more_bytes or stream.window_bytes > LARGEST_WINDOW_BYTES:
            return False
        if stream.queue:
            self._waiting[stream] = None
            self.pump()
        return True

    def set_stream_windows(self, window_bytes: int) -> None:
        """Set the window of all streams; raise ConnectionFault if one becomes too large."""
        change = window_bytes - self._stream_window_bytes
        self._stream_window_bytes = window_bytes
        for stream in list(self.streams.values()):
            stream.window_bytes += change
            if stream.window_bytes > LARGEST_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window is too large")
            if stream.queue:
                self._waiting[stream] = None
        self.pump()
