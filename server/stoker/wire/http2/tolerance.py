"""How many useless frames a client may still send before its connection is ended."""

from __future__ import annotations

from typing import Final

from stoker.wire.http2.frames import PATIENCE, RESETS, ConnectionFault, ErrorCode

_MOST_PATIENCE: Final = 100 * PATIENCE
_MOST_RESETS: Final = 100 * RESETS


class Tolerance:
    """The useless frames that are left to the client of one connection; answers earn it more of them.

    Attributes:
        patience: How many more frames may come that move nothing.
        resets: How many more streams the client may reset.
    """

    __slots__ = ("patience", "resets")

    def __init__(self) -> None:
        self.patience, self.resets = PATIENCE, RESETS

    def spend_patience(self) -> None:
        """Count a frame that moves nothing; raise ConnectionFault if it is one too many."""
        self.patience -= 1
        if self.patience < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def spend_reset(self) -> None:
        """Count a stream that the client resets; raise ConnectionFault if it is one too many."""
        self.resets -= 1
        if self.resets < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def restore(self) -> None:
        """Allow at least as many as at the beginning, and at most so many as a short burst may need."""
        self.patience = min(max(self.patience, PATIENCE), _MOST_PATIENCE)
        self.resets = min(max(self.resets, RESETS), _MOST_RESETS)
