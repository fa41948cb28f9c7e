"""What frames say beside the requests, and the forms that they have to have."""

from __future__ import annotations

import struct
from typing import Final

from stoker.wire.http2.frames import (
    ACK,
    LARGEST_STREAM,
    LARGEST_WINDOW_BYTES,
    SMALLEST_MAX_FRAME_BYTES,
    ConnectionFault,
    ErrorCode,
    Kind,
    Setting,
)

__all__ = [
    "check_begins",
    "check_priority",
    "peer_settings",
    "ping_payload",
    "reset_code",
    "unpadded",
    "window_increment",
]

_SETTING: Final = struct.Struct(">HI")
_MOST_SETTINGS: Final = 64
_LARGEST_FRAME_BYTES: Final = (1 << 24) - 1
_PRIORITY_BYTES: Final = 5


def peer_settings(flags: int, number: int, payload: bytes) -> list[tuple[int, int]]:
    """Return what a SETTINGS frame says, in its order.

    Raises:
        ConnectionFault: It is malformed, says what cannot be, or more than anybody has to say.
    """
    if number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
    if len(payload) % _SETTING.size or (flags & ACK and payload):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
    if len(payload) > _MOST_SETTINGS * _SETTING.size:
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
    said = list(_SETTING.iter_unpack(payload))
    for name, value in said:
        if name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "push is neither on nor off")
        if name == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window is too large")
        if name == Setting.MAX_FRAME_SIZE and not SMALLEST_MAX_FRAME_BYTES <= value <= _LARGEST_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no size of frames")
    return said


def ping_payload(number: int, payload: bytes) -> bytes:
    """Return what a PING frame holds.

    Raises:
        ConnectionFault: It is malformed.
    """
    if number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ping of a stream")
    if len(payload) != 8:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed PING")
    return payload


def reset_code(payload: bytes) -> int:
    """Return why a stream is reset.

    Raises:
        ConnectionFault: The frame is malformed.
    """
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed RST_STREAM")
    return int.from_bytes(payload, "big")


def window_increment(payload: bytes) -> int:
    """Return by how much a window grows.

    Raises:
        ConnectionFault: The frame is malformed.
    """
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed WINDOW_UPDATE")
    return int.from_bytes(payload, "big") & LARGEST_STREAM


def check_begins(kind: int, flags: int) -> None:
    """Check the first frame of a client.

    Raises:
        ConnectionFault: It is not its settings.
    """
    if kind != Kind.SETTINGS or flags & ACK:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "client begins without its settings")


def unpadded(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return where the content of a padded frame begins and ends.

    Raises:
        ConnectionFault: The padding is longer than the frame.
    """
    if start == stop or start + 1 + data[start] > stop:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return start + 1, stop - data[start]


def check_priority(number: int, fields: bytes, *, alone: bool = False) -> None:
    """Check the form of a priority, which means nothing here (RFC 9113, section 5.3.2).

    Args:
        number: The stream.
        fields: The priority, and whatever follows it.
        alone: Whether nothing may follow, and nothing is begun by it.

    Raises:
        ConnectionFault: It has another form.
    """
    if not number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "priority of the connection")
    if len(fields) < _PRIORITY_BYTES or (alone and len(fields) > _PRIORITY_BYTES):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed priority")
    if int.from_bytes(fields[:4], "big") & LARGEST_STREAM == number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream depends on itself")
