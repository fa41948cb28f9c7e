"""A server's connection of HTTP/2 (RFC 9113): turns received bytes into requests, and enforces limits. Sans-I/O.

The owner passes received bytes in, and writes the frames in `out`. Whatever a client sends affects its own connection
alone, and costs a limited amount of memory and time:

- The sizes of frames, header blocks, open streams and unread content are limited.
- Frames that move nothing (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, tiny DATA, unknown ones) are counted: the
  `Tolerance` is the number of further ones. Sent answers earn some more, and the owner restores it from time to
  time.
- Streams that the client resets ("rapid reset", CVE-2023-44487) are counted too. Only answers with content
  earn more of these, so a client whose requests are refused cannot begin streams for ever.
- Each turn of the event loop reads a limited part; `more` tells the owner to come back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from stoker.wire.http2.fields import Fields, HeadReader, checked_trailers
from stoker.wire.http2.frames import (
    ACK,
    COPIED_BYTES,
    END_HEADERS,
    END_STREAM,
    GREETING,
    HEAD,
    HEAD_BYTES,
    HEAD_WORK,
    LARGEST_STREAM,
    LARGEST_WINDOW_BYTES,
    MAX_BLOCK_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAMS,
    MOST_KEPT,
    PADDED,
    PREFACE,
    PRIORITY_FIELDS,
    SMALLEST_MAX_FRAME_BYTES,
    STREAM_WINDOW_BYTES,
    TINY_BYTES,
    TURN_WORK,
    WINDOW_BYTES,
    WORK_BYTES,
    ConnectionFault,
    ErrorCode,
    Kind,
    Setting,
    StreamFault,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from stoker.wire.http2.partial_frames import HeaderBlock, UnreadBytes
from stoker.wire.http2.streams import Receiver, Sender, Stream

_SETTING: Final = struct.Struct(">HI")
_MOST_SETTINGS: Final = 64
_LARGEST_FRAME_BYTES: Final = (1 << 24) - 1
_PRIORITY_BYTES: Final = 5


def peer_settings(flags: int, number: int, payload: bytes) -> list[tuple[int, int]]:
    """Return the settings in a SETTINGS frame, in order; raise ConnectionFault for malformed or excessive ones."""
    if number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
    if len(payload) % _SETTING.size or (flags & ACK and payload):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
    if len(payload) > _MOST_SETTINGS * _SETTING.size:
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
    values = list(_SETTING.iter_unpack(payload))
    for name, value in values:
        if name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "push is neither on nor off")
        if name == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window is too large")
        if name == Setting.MAX_FRAME_SIZE and not SMALLEST_MAX_FRAME_BYTES <= value <= _LARGEST_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no size of frames")
    return values


def window_increment(payload: bytes) -> int:
    """Return the increment of a WINDOW_UPDATE frame; raise ConnectionFault if it is malformed."""
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed WINDOW_UPDATE")
    return int.from_bytes(payload, "big") & LARGEST_STREAM


def unpadded(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return begin and end of the content of a padded frame; raise ConnectionFault if the padding is too long."""
    if start == stop or start + 1 + data[start] > stop:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return start + 1, stop - data[start]


def check_priority(number: int, fields: bytes, *, alone: bool = False) -> None:
    """Raise ConnectionFault for a malformed priority, which is otherwise ignored (RFC 9113, section 5.3.2).

    `fields` begins with the priority; of a PRIORITY frame (`alone`) it is nothing else.
    """
    if not number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "priority of the connection")
    if len(fields) < _PRIORITY_BYTES or (alone and len(fields) > _PRIORITY_BYTES):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed priority")
    if int.from_bytes(fields[:4], "big") & LARGEST_STREAM == number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream depends on itself")


_DRAINING: Final = b"draining"
_ASKING: Final = b"are you "


class Head(Protocol):
    """The parsed fields of a request."""

    @property
    def content_bytes(self) -> int | None:
        """Its content-length."""


HeadT = TypeVar("HeadT", bound=Head)


class Connection(Sender, Generic[HeadT]):
    """The server's side of a connection.

    Attributes:
        failed: Whether the connection has ended: nothing more is read, and `out` has the last frames.
        greeted: Whether the client has sent its preface.
        settled: Whether the client knows which requests are the last to be answered.
        has_received: Whether anything has arrived since the owner set this to False.
        stuck: Whether no frame was completed since the owner set this to True.
    """

    def __init__(self, read: Callable[[Fields], HeadT], begin: Callable[[Stream, HeadT], Receiver]) -> None:
        """Start with the server's greeting.

        Args:
            begin: Called with each new stream; returns the receiver of its request. It may answer at once.
        """
        super().__init__()
        self.failed = self.greeted = self.settled = self.has_received = self.stuck = False
        self.on_settled: Callable[[], None] = lambda: None
        self._begin = begin
        self._heads = HeadReader(read)
        self._last = 0
        self._received_bytes = 0
        self._unread = UnreadBytes()
        self._block: HeaderBlock | None = None
        self._drains = False
        self.out.append(GREETING)

    @property
    def more(self) -> bool:
        """Whether frames are left for the next turn: the owner calls `receive` again."""
        return self._unread.is_due and not self.failed

    @property
    def arriving(self) -> bool:
        """Whether a frame or a header block has arrived in part."""
        return self._unread.size_bytes > 0 or self._block is not None or not self.greeted

    def receive(self, data: bytes) -> None:
        """Process received bytes, as many as fit into a turn; `more` tells whether some are left."""
        if self.failed:
            return
        self.has_received = True
        try:
            self._feed(data)
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))

    def fail(self, code: ErrorCode, reason: str) -> None:
        """End the connection at once, and notify the receivers of its streams."""
        if self.failed:
            return
        self.failed = True
        self.out.append(goaway(self._last, code, reason.encode()))
        self.lose()

    def lose(self) -> None:
        """Notify the receivers of all streams that the client has gone."""
        for stream in list(self.streams.values()):
            self._lose(stream)

    def drain(self) -> None:
        """Ask the client to begin no further streams; those that it sends before it reads that are answered."""
        if not self._drains and not self.failed:
            self._drains = True
            self.out += (goaway(LARGEST_STREAM), frame(Kind.PING, 0, 0, _DRAINING))

    def settle(self) -> None:
        """Announce the last stream; done when the client has acknowledged `drain`."""
        if not self.settled and not self.failed:
            self._drains = self.settled = True
            self.out.append(goaway(self._last))
            self.on_settled()

    def ask(self) -> None:
        """Ping a silent client."""
        self.out.append(frame(Kind.PING, 0, 0, _ASKING))

    def cancel(self, stream: Stream) -> None:
        """Reset a stream whose client does not read the answer."""
        self.reset(stream, ErrorCode.CANCEL)

    def release(self, stream: Stream) -> None:
        """Let the client of a held stream send again."""
        stream.held = False
        if stream.received_bytes >= STREAM_WINDOW_BYTES // 2 and not stream.ended:
            self._give_room(stream)

    def _feed(self, data: bytes) -> None:
        if self._unread.size_bytes:
            joined = self._unread.join(data)
            if joined is None:
                return
            data = joined
        self.stuck = False
        position = 0 if self.greeted else self._greet(data)
        end = len(data)
        needed = HEAD_BYTES if self.greeted else len(PREFACE) + HEAD_BYTES
        work = TURN_WORK
        while end - position >= HEAD_BYTES and self.greeted and not self.failed and work > 0:
            size_kind, flags, number = HEAD.unpack_from(data, position)
            start = position + HEAD_BYTES
            stop = start + (size_kind >> 8)
            kind = size_kind & 0xFF
            if stop - start > MAX_FRAME_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame is too long")
            if stop > end:
                needed = stop - position
                break
            number &= LARGEST_STREAM
            if self._block is not None and (kind != Kind.CONTINUATION or number != self._block.stream):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "header block is not continued")
            if kind == 0:
                work -= 1
                self._on_data(data, start, stop, flags, number)
            elif kind == 1:
                work -= HEAD_WORK + (stop - start) // WORK_BYTES
                self._on_headers(data, start, stop, flags, number)
            else:
                work -= 1 + (stop - start) // WORK_BYTES
                self._on_other(kind, flags, number, data[start:stop])
            position = stop
            needed = HEAD_BYTES
        if position < end and not self.failed:
            # Frames that are whole wait for the next turn, parts of one for the rest of it.
            self._unread.keep(data[position:] if position else data, 0 if work <= 0 else needed)

    def _greet(self, data: bytes) -> int:
        """Read the client's preface; return its length, or 0 if it is incomplete."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "connection does not speak HTTP/2")
        if len(data) < len(PREFACE) + HEAD_BYTES:
            return 0
        self.greeted = True
        kind, flags = data[len(PREFACE) + 3], data[len(PREFACE) + 4]
        if kind != Kind.SETTINGS or flags & ACK:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "client begins without its settings")
        return len(PREFACE)

    def _on_data(self, data: bytes, start: int, stop: int, flags: int, number: int) -> None:
        size = stop - start
        self._received_bytes += size
        if self._received_bytes >= WINDOW_BYTES // 2:
            self.out.append(window_update(0, self._received_bytes))
            self._received_bytes = 0
        if flags & PADDED:
            start, stop = unpadded(data, start, stop)
        ended = bool(flags & END_STREAM)
        if size < TINY_BYTES and not ended:
            self.tolerance.spend_patience()
        stream = self.streams.get(number)
        if stream is None or stream.ended:
            self._on_stray_data(number, stream)
            return
        if stream.left_bytes is not None or stream.held:
            try:
                stream.check(size, stop - start, ended)
            except StreamFault as fault:
                self.reset(stream, fault.code)
                return
        stream.received_bytes += size
        stream.ended = ended
        content_bytes = stop - start
        # A view keeps all bytes that arrived together.
        copied = content_bytes <= COPIED_BYTES or content_bytes * MOST_KEPT < len(data)
        stream.receiver.take(data[start:stop] if copied else memoryview(data)[start:stop], ended)
        if stream.received_bytes >= STREAM_WINDOW_BYTES // 2 and not (ended or stream.held):
            self._give_room(stream)

    def _give_room(self, stream: Stream) -> None:
        if stream.number in self.streams:
            self.out.append(window_update(stream.number, stream.received_bytes))
            stream.received_bytes = 0

    def _on_stray_data(self, number: int, stream: Stream | None) -> None:
        """Handle content of a stream that takes none."""
        if number in self._dropped:
            return
        self._check_begun(number)
        self.tolerance.spend_patience()
        if stream is None:
            self.out.append(rst_stream(number, ErrorCode.STREAM_CLOSED))
        else:
            self.reset(stream, ErrorCode.STREAM_CLOSED)

    def _on_headers(self, data: bytes, start: int, stop: int, flags: int, number: int) -> None:
        if not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream has a number of the server's")
        if flags & PADDED:
            start, stop = unpadded(data, start, stop)
        if flags & PRIORITY_FIELDS:
            check_priority(number, data[start:stop])
            start += 5
        ended = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(number, data[start:stop], ended)
            return
        self._block = HeaderBlock(number, data[start:stop], ended=ended)

    def _continue(self, flags: int, number: int, part: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "nothing is continued")
        block.add(part)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(number, block.content(), block.ended)

    def _on_block(self, number: int, block: bytes, ended: bool) -> None:
        if len(block) > MAX_BLOCK_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block is too long")
        if number <= self._last:
            self._on_trailers(number, block, ended)
            return
        self._last = number
        try:
            head = self._heads.head(block)
            stream = Stream(number, self._stream_window_bytes, head.content_bytes)
            if ended:
                stream.check_end()
        except StreamFault as fault:
            self._refuse(number, fault.code)
            return
        if self.settled or len(self.streams) >= MAX_STREAMS:
            self._refuse(number, ErrorCode.REFUSED_STREAM)
            return
        self.streams[number] = stream
        receiver = self._begin(stream, head)
        if number in self.streams:
            stream.receiver = receiver
            if ended:
                receiver.end()

    def _on_trailers(self, number: int, block: bytes, ended: bool) -> None:
        stream = self.streams.get(number)
        if stream is None and number not in self._dropped:
            code = ErrorCode.STREAM_CLOSED if number == self._last else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, "stream has ended")
        fields = self._heads.fields(block)
        self.tolerance.spend_patience()
        if stream is None:
            return
        try:
            stream.check_end(fields_follow=not ended)
            checked_trailers(fields)
        except StreamFault as fault:
            self.reset(stream, fault.code)
            return
        stream.receiver.end()

    def _on_other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == Kind.CONTINUATION:
            self._continue(flags, number, payload)
            return
        if kind == Kind.RST_STREAM:
            self._on_reset(number, payload)
            return
        self.tolerance.spend_patience()
        if kind == Kind.WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == Kind.PING:
            self._on_ping(flags, number, payload)
        elif kind == Kind.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == Kind.PRIORITY:
            check_priority(number, payload, alone=True)
        elif kind == Kind.PUSH_PROMISE or (kind == Kind.GOAWAY and (number or len(payload) < 8)):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "frame that a client does not send")

    def _on_window_update(self, number: int, payload: bytes) -> None:
        more_bytes = window_increment(payload)
        stream = self.streams.get(number)
        if number and stream is None:
            self._check_begun(number)
            return
        if stream is None:
            self._widen(more_bytes)
        elif not self._widen_stream(stream, more_bytes):
            self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR if more_bytes else ErrorCode.PROTOCOL_ERROR)

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed RST_STREAM")
        self._check_begun(number)
        self.tolerance.spend_reset()
        stream = self.streams.get(number)
        if stream is not None:
            self._lose(stream)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ping of a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed PING")
        if not flags & ACK:
            self.out.append(frame(Kind.PING, ACK, 0, payload))
        elif payload == _DRAINING and self._drains:
            self.settle()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        values = peer_settings(flags, number, payload)
        if not flags & ACK:
            # Before the frames that they allow.
            self.out.append(frame(Kind.SETTINGS, ACK, 0))
        # Only the last value of each: changing the window visits all streams.
        for name, value in dict(values).items():
            if name == Setting.INITIAL_WINDOW_SIZE:
                self.set_stream_windows(value)
            elif name == Setting.MAX_FRAME_SIZE:
                self._frame_bytes = min(value, MAX_FRAME_BYTES)

    def _check_begun(self, number: int) -> None:
        if number > self._last or not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream has not begun")

    def _refuse(self, number: int, code: ErrorCode) -> None:
        """Refuse a new stream."""
        self.tolerance.spend_patience()
        self.out.append(rst_stream(number, code))
        self._drop(number)
