"""How much a client may send, and what it is told of that."""

from __future__ import annotations

from typing import Final

from stoker.wire.http2.fields import MAX_LIST_BYTES
from stoker.wire.http2.frames import INITIAL_WINDOW_BYTES, Setting, settings, window_update

__all__ = [
    "COPIED_BYTES",
    "GREETING",
    "HEAD_WORK",
    "MAX_BLOCK_BYTES",
    "MAX_CONTINUATIONS",
    "MAX_FRAME_BYTES",
    "MAX_STREAMS",
    "MOST_KEPT",
    "PATIENCE",
    "RESETS",
    "STREAM_WINDOW_BYTES",
    "TINY_BYTES",
    "TURN_WORK",
    "WINDOW_BYTES",
    "WORK_BYTES",
]

MAX_FRAME_BYTES: Final = 1 << 16
MAX_STREAMS: Final = 256
"""How many streams may be open at once."""
MAX_BLOCK_BYTES: Final = MAX_LIST_BYTES
"""The longest block of header fields, as it is sent."""
MAX_CONTINUATIONS: Final = 16

STREAM_WINDOW_BYTES: Final = 1 << 20
"""How much a client may send on a stream that is held."""
WINDOW_BYTES: Final = 1 << 22
"""How much it may have on its way on all streams together."""

PATIENCE: Final = 1000
"""How many frames may move nothing before somebody looks."""
RESETS: Final = 1000
"""How many streams a client may give up before somebody looks; answers with content earn more."""
TURN_WORK: Final = 1024
"""How many frames are read in a turn of the event loop: enough for a client that begins all streams that it may have,
with a request in a frame of each. `HEAD_WORK` and `WORK_BYTES` say what counts as more than one."""
HEAD_WORK: Final = 3
"""A head counts as so many frames,"""
WORK_BYTES: Final = 64
"""and so many bytes of any frame but DATA count as one more."""
TINY_BYTES: Final = 256
"""A frame with less content, and more to follow, is such a one."""
COPIED_BYTES: Final = 1 << 12
"""Content up to this size is copied; of more, receivers get a view of what has arrived,"""
MOST_KEPT: Final = 8
"""unless that is so many times as much."""

GREETING: Final = settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
    }
) + window_update(0, WINDOW_BYTES - INITIAL_WINDOW_BYTES)
"""What a server says first."""
