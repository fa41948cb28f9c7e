"""Bounds on what a request sends beside the content of its body: its head, and the extensions of its chunks."""

from __future__ import annotations

from typing import Final

from stoker.gateway.http.requests import MAX_CHUNK_FRAMING_BYTES, MAX_HEAD_BYTES

_CHUNK_FRAMING_BYTES: Final = 16
# The most that uvloop reads at once.
_READ_BYTES: Final = 1 << 18


class MessageBounds:
    """Counts the bytes of one request after the other.

    Attributes:
        head_bytes: The bytes of the head in further reads; -1 before the end of the read in which it began.
        framing_bytes: The bytes of chunks beside their content; None for a body without chunks.
    """

    __slots__ = ("framing_bytes", "head_bytes")

    def __init__(self) -> None:
        self.head_bytes = 0
        self.framing_bytes: int | None = None

    def exceed_head(self, received_bytes: int) -> bool:
        """Count bytes of the head; whether it is too long. Those of the read in which it began are not counted."""
        if self.head_bytes < 0:
            self.head_bytes = 0
            return False
        self.head_bytes += received_bytes
        return self.head_bytes > MAX_HEAD_BYTES

    def expect_chunks(self) -> None:
        """Count the framing of chunks from now on; bytes that arrived together with the head are not counted."""
        self.framing_bytes = -_READ_BYTES

    def begin_chunk(self) -> None:
        """Do not count the digits of a chunk's length and its line ends as an extension."""
        if self.framing_bytes is not None:
            self.framing_bytes -= _CHUNK_FRAMING_BYTES

    def exceed_framing(self, received_bytes: int) -> bool:
        """Count bytes of chunks; whether they are mostly extensions, which the parser skips at any length."""
        if self.framing_bytes is None:
            return False
        self.framing_bytes += received_bytes
        return self.framing_bytes > MAX_CHUNK_FRAMING_BYTES
