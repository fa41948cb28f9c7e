"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): names, numbers, encoding, and the limits that the server sets."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

HEAD: Final = struct.Struct(">IBI")
"""The head of a frame: length (upper 24 bits) and type, flags, stream."""
HEAD_BYTES: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20

INITIAL_WINDOW_BYTES: Final = 65535
LARGEST_WINDOW_BYTES: Final = (1 << 31) - 1
LARGEST_STREAM: Final = (1 << 31) - 1
SMALLEST_MAX_FRAME_BYTES: Final = 1 << 14

_WORD: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")


class Kind(IntEnum):
    """The types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Settings that either side sends (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """A fault of the peer that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamFault(Exception):
    """A fault of the peer that ends one stream."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write a frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """Write a SETTINGS frame."""
    return frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, more_bytes: int) -> bytes:
    """Write a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, _WORD.pack(more_bytes))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """Write a RST_STREAM frame."""
    return frame(Kind.RST_STREAM, 0, stream, _WORD.pack(code))


def goaway(last_stream: int, code: ErrorCode = ErrorCode.NO_ERROR, reason: bytes = b"") -> bytes:
    """Write a GOAWAY frame: streams up to `last_stream` are answered, later ones were not processed."""
    return frame(Kind.GOAWAY, 0, 0, _WORD.pack(last_stream) + _WORD.pack(code) + reason)


MAX_LIST_BYTES: Final = 1 << 14
"""The longest header list that is read: names and values, and 32 bytes for each (RFC 9113, section 6.5.2)."""
MAX_FRAME_BYTES: Final = 1 << 16
MAX_STREAMS: Final = 256
"""The maximum number of open streams."""
MAX_BLOCK_BYTES: Final = MAX_LIST_BYTES
"""The longest encoded block of header fields."""
MAX_CONTINUATIONS: Final = 16

STREAM_WINDOW_BYTES: Final = 1 << 20
"""How much a client may send on a held stream."""
WINDOW_BYTES: Final = 1 << 22
"""How much a client may have in flight on all streams together."""

PATIENCE: Final = 1000
"""How many frames may move nothing until the owner checks the connection."""
RESETS: Final = 1000
"""How many streams a client may reset until the owner checks; answers with content earn more."""
TURN_WORK: Final = 1024
"""How much work a turn of the event loop does, in frames: enough for a client that begins all its streams with a
request of one frame each."""
HEAD_WORK: Final = 3
"""The work of a head, in frames."""
WORK_BYTES: Final = 64
"""So many bytes of any frame but DATA count as one more frame."""
TINY_BYTES: Final = 256
"""A DATA frame with less content, unless it is the last, moves nothing."""
COPIED_BYTES: Final = 1 << 12
"""Content up to this size is copied; of longer content, receivers get a view of the received bytes."""
MOST_KEPT: Final = 8
"""Content is also copied if the received bytes are so many times as long."""

GREETING: Final = settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
    }
) + window_update(0, WINDOW_BYTES - INITIAL_WINDOW_BYTES)
"""The first frames of a server."""
