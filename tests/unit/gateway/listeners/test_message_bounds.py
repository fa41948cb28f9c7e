"""Bounds on heads and on the framing of chunks."""

from __future__ import annotations

from stoker.gateway.http.requests import MAX_CHUNK_FRAMING_BYTES, MAX_HEAD_BYTES
from stoker.gateway.listeners.message_bounds import MessageBounds


def test_exceed_head_does_not_count_the_first_read() -> None:
    """That read may hold the end of the previous request."""
    bounds = MessageBounds()
    bounds.head_bytes = -1
    assert not bounds.exceed_head(10 * MAX_HEAD_BYTES)
    assert not bounds.exceed_head(MAX_HEAD_BYTES)
    assert bounds.exceed_head(1)


def test_exceed_framing_counts_bytes_beside_the_content_of_chunks() -> None:
    """Content and the length of each chunk are subtracted; without chunks nothing is counted."""
    bounds = MessageBounds()
    bounds.begin_chunk()
    assert not bounds.exceed_framing(1 << 30)
    bounds.expect_chunks()
    assert bounds.framing_bytes is not None
    bounds.framing_bytes = 0
    bounds.begin_chunk()
    assert bounds.framing_bytes < 0
    bounds.framing_bytes -= 1000
    assert not bounds.exceed_framing(1000 + MAX_CHUNK_FRAMING_BYTES)
    assert bounds.exceed_framing(100)
