"""Answers that come piece by piece, as a caller who measures them reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from stoker_client import StokerClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PIECE_FORMS", "PieceForm", "PiecesSeen", "read_pieces"]

PieceForm = Literal["lines", "events"]
"""Lines of JSON, or server-sent events."""
PIECE_FORMS: tuple[PieceForm, ...] = get_args(PieceForm)


@dataclass(frozen=True)
class PiecesSeen:
    """What came of one answer.

    Attributes:
        count: Pieces.
        first_s: Seconds from the request until the first one was there; None without any.
        end_s: Seconds until the end, or until it failed.
        complaint: What was wrong with it; None if it was right. It has no ids in it, so equal ones can be counted.
    """

    count: int
    first_s: float | None
    end_s: float
    complaint: str | None


def read_pieces(pieces: Iterable[object], clock: Callable[[], float]) -> PiecesSeen:
    """Read an answer of the client to its end.

    Args:
        pieces: Its iterator; the request is sent when the first piece is asked for.
        clock: Seconds.
    """
    began_s = clock()
    count, first_s, complaint = 0, None, None
    try:
        for _ in pieces:
            count += 1
            if first_s is None:
                first_s = clock() - began_s
        if not count:
            complaint = "no pieces"
    except StokerClientError as error:
        complaint = type(error).__name__ + (" behind pieces" if count else "")
    return PiecesSeen(count, first_s, clock() - began_s, complaint)
