"""Parts of frames and of header blocks, until the rest has arrived."""

import pytest

from stoker.wire.http2.frames import MAX_BLOCK_BYTES, ConnectionFault
from stoker.wire.http2.partial_frames import HeaderBlock, UnreadBytes


def test_unread_bytes_are_joined_when_a_frame_is_whole() -> None:
    """Until then nothing is copied, however many parts arrive."""
    unread = UnreadBytes()
    unread.keep(b"ab", 5)
    assert not unread.is_due
    assert unread.join(b"cd") is None
    assert unread.join(b"ef") == b"abcdef"
    assert unread.size_bytes == 0


def test_unread_bytes_for_the_next_turn_are_due_at_once() -> None:
    """The owner need not wait for the client."""
    unread = UnreadBytes()
    assert not unread.is_due
    unread.keep(b"ab", 0)
    assert unread.is_due
    assert unread.join(b"") == b"ab"


def test_header_block_too_long_ends_the_connection() -> None:
    """No client fills the memory by continuing for ever."""
    block = HeaderBlock(1, b"a", ended=True)
    block.add(b"b")
    assert block.content() == b"ab"
    with pytest.raises(ConnectionFault, match="too long"):
        block.add(bytes(MAX_BLOCK_BYTES))
