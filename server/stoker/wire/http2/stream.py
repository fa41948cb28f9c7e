"""One stream of a connection, and who receives it."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from stoker.wire.http2.frames import ErrorCode, StreamFault
from stoker.wire.http2.limits import STREAM_WINDOW_BYTES

__all__ = ["NOBODY", "Receiver", "Stream"]


class Receiver(Protocol):
    """What takes the request of a stream. Nothing here raises."""

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Take some of the content; `ended` with the last of it."""

    def end(self) -> None:
        """Take note that the content has ended, apart from it."""

    def lost(self) -> None:
        """Take note that nobody waits for the answer any more; nothing can be sent."""

    def drained(self) -> None:
        """Take note that all that was queued has been sent; called where `Stream.tells_drained` is set."""


class _Nobody:
    """Receives what comes for a stream that has ended."""

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Overlook it."""

    def end(self) -> None:
        """Overlook it."""

    def lost(self) -> None:
        """Overlook it."""

    def drained(self) -> None:
        """Overlook it."""


NOBODY: Final = _Nobody()
"""The receiver of streams that have ended: a circle of stream and receiver would wait for a collection of garbage."""


class Stream:
    """A request and its answer.

    Attributes:
        number: Its number on the connection.
        receiver: What takes the request, while the stream is open.
        ended: Whether the client has sent all of its side.
        held: Whether its client is given no new room, until `Connection.release`.
        received_bytes: What has come that the client has not been given new room for.
        left_bytes: What is still to come by its content-length; None where it has none.
        window_bytes: What may be sent on it now; negative where the client has made its window smaller.
        queue: What is to be sent: a kind of frame and what is in it.
        queued_bytes: How much that is.
        sent_bytes: How much has been sent that was there.
        answered: Whether the last frame of its answer is in the queue, or has been sent.
        tells_drained: Whether the receiver is told when the queue is empty again.
    """

    __slots__ = (
        "answered",
        "ended",
        "held",
        "left_bytes",
        "number",
        "queue",
        "queued_bytes",
        "received_bytes",
        "receiver",
        "sent_bytes",
        "tells_drained",
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
        self.tells_drained = False

    def check(self, size_bytes: int, content_bytes: int, ended: bool) -> None:
        """Check a frame of content of a stream that is held, or has a content-length.

        Args:
            size_bytes: How long the frame is.
            content_bytes: How much of it is no padding.
            ended: Whether it is the last.

        Raises:
            StreamFault: There is no room for it, or the length of the content is another one.
        """
        if self.held and self.received_bytes + size_bytes > STREAM_WINDOW_BYTES:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more than there is room for")
        if self.left_bytes is not None:
            self.left_bytes -= content_bytes
            if self.left_bytes < 0 or (ended and self.left_bytes):
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content is not as long as its content-length")

    def check_end(self, *, fields_follow: bool = False) -> None:
        """Take note of fields that end the request, behind its content.

        Args:
            fields_follow: Whether they do not end it.

        Raises:
            StreamFault: It has ended already, or may not end here.
        """
        if self.ended:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "fields behind the end")
        if fields_follow or self.left_bytes:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "fields before the end")
        self.ended = True
