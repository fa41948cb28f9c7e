"""Parts of frames and of header blocks, until the rest has arrived."""

from __future__ import annotations

from stoker.wire.http2.frames import MAX_BLOCK_BYTES, MAX_CONTINUATIONS, ConnectionFault, ErrorCode


class UnreadBytes:
    """Received bytes that are no whole frame yet, or that the next turn reads.

    Attributes:
        size_bytes: How many there are.
    """

    __slots__ = ("_needed_bytes", "_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size_bytes = self._needed_bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether they can be read before any more arrive."""
        return self.size_bytes > 0 and not self._needed_bytes

    def keep(self, data: bytes, needed_bytes: int) -> None:
        """Keep bytes until there are so many; 0 for the next turn."""
        self._parts.append(data)
        self.size_bytes, self._needed_bytes = len(data), needed_bytes

    def join(self, data: bytes) -> bytes | None:
        """Return the kept bytes with further ones, and keep nothing; None if too few have arrived."""
        self._parts.append(data)
        self.size_bytes += len(data)
        if self.size_bytes < self._needed_bytes:
            return None
        joined = b"".join(self._parts)
        self._parts.clear()
        self.size_bytes = 0
        return joined


class HeaderBlock:
    """A header block that arrives in several frames.

    Attributes:
        stream: The number of its stream.
        ended: Whether the client's side of the stream ends with it.
    """

    __slots__ = ("_parts", "_size_bytes", "ended", "stream")

    def __init__(self, stream: int, part: bytes, *, ended: bool) -> None:
        self.stream, self.ended = stream, ended
        self._parts = [part]
        self._size_bytes = len(part)

    def add(self, part: bytes) -> None:
        """Add a continuation; raise ConnectionFault if the block has too many, or becomes too long."""
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes > MAX_BLOCK_BYTES or len(self._parts) > MAX_CONTINUATIONS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block is too long")

    def content(self) -> bytes:
        """Return the whole block."""
        return b"".join(self._parts)
